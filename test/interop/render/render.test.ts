/** Every family renders, text and ids, exactly as transformers does with the same tokenizer and template. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { beforeAll, describe, expect, it } from "vitest";
import { DEFAULT_SAMPLING, type AnswerBlock, type Message, type ToolDefinition, type TurnRequest } from "../../../src/gateway/conversation.ts";
import { Renderer } from "../../../src/gateway/render/renderer.ts";
import { Tokenizer } from "../../../src/gateway/render/tokenizer.ts";
import { modelDirectory, MODELS, type ModelName } from "../../support/models.ts";
import { pythonPath } from "../../support/python.ts";

const system = (text: string): Message => ({ role: "system", name: "system", content: [{ type: "text", text }] });
const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });
const assistant = (...content: AnswerBlock[]): Message => ({ role: "assistant", content });
const text = (text: string): AnswerBlock => ({ type: "text", text });
const thought = (text: string): AnswerBlock => ({ type: "reasoning", text, signature: null });
const call = (id: string, name: string, args: string): AnswerBlock => ({ type: "tool_call", id, name, arguments: args });
const result = (callId: string, name: string, text: string): Message => ({ role: "tool", callId, name, content: [{ type: "text", text }], isError: false });

const TOOLS: readonly ToolDefinition[] = [
  {
    name: "write_file",
    description: " Writes a file.\nOverwrites <it> & \"says\" so. ",
    parameters: {
      type: "object",
      properties: { path: { type: "string", description: "Where, e.g. `/tmp/ä`" }, mode: { type: ["integer", "null"], default: null, minimum: 0.5 }, lines: { type: "array", items: { type: "string", enum: ["a", "é"] } }, force: { type: "boolean", default: false } },
      required: ["path"],
      additionalProperties: false,
    },
  },
  { name: "now", description: "The time.", parameters: { type: "object", properties: {} } },
];

interface Case {
  readonly name: string;
  readonly messages: readonly Message[];
  readonly tools: readonly ToolDefinition[];
  readonly kwargs: Readonly<Record<string, unknown>>;
}

const CASES: readonly Case[] = [
  { name: "plain", messages: [user("  Hi there! \n")], tools: [], kwargs: {} },
  { name: "system", messages: [system("Be brief.\n\n"), user("你好，世界 🙂 e\u0301 \u00a0|<b>&")], tools: [], kwargs: {} },
  { name: "thinking off", messages: [user("Hi")], tools: [], kwargs: { enable_thinking: false } },
  { name: "turns", messages: [system("s"), user("one"), assistant(thought("r1\n"), text("\n  a1 ")), user("two"), assistant(text("a2")), user("three")], tools: [], kwargs: {} },
  { name: "tools offered", messages: [system("s"), user("Write.")], tools: TOOLS, kwargs: {} },
  {
    name: "a call and its result",
    messages: [user("Write."), assistant(call("abcdef123", "write_file", '{"path": "/tmp/\\u00e4", "mode": 1.0, "lines": ["a", "b\\n"], "force": true, "10": null, "2": {"k": "v\\"w"}}')), result("abcdef123", "write_file", "ok <done> & \"more\"\n")],
    tools: TOOLS,
    kwargs: {},
  },
  {
    name: "thoughts, calls, another turn",
    messages: [
      system("s"), user("Write."),
      assistant(thought("\nI must\nthink "), call("abcdef123", "now", "{}")), result("abcdef123", "now", "12:00"),
      assistant(text("Done.")), user("Again."), assistant(thought("hm"), call("abcdef124", "write_file", '{"path": "x"}')), result("abcdef124", "write_file", "{\"ok\": true}"),
    ],
    tools: TOOLS,
    kwargs: {},
  },
  {
    name: "two calls",
    messages: [user("Both."), assistant(text("Both, then."), call("abcdef123", "now", "{}"), call("abcdef124", "write_file", '{"path": "y"}')), result("abcdef123", "now", "1"), result("abcdef124", "write_file", "2")],
    tools: TOOLS,
    kwargs: {},
  },
];

function requestOf({ messages, tools, kwargs }: Case): TurnRequest {
  return {
    dialect: "openai-chat", model: "m", messages, tools, toolChoice: null, parallelToolCalls: null, sampling: DEFAULT_SAMPLING, reasoning: null, responseFormat: null,
    logprobs: null, stream: false, streamUsage: false, extra: { chat_template_kwargs: kwargs }, dropped: [],
  };
}

type Reference = Readonly<Record<string, Readonly<Record<string, { readonly text: string; readonly ids: readonly number[] } | { readonly error: string }>>>>;

describe("rendering", () => {
  const names = Object.keys(MODELS) as readonly ModelName[];
  const renderers = new Map<ModelName, Renderer>();
  let reference: Reference = {};

  beforeAll(async () => {
    const models: Record<string, unknown> = {};
    for (const name of names) {
      const directory = await modelDirectory(name);
      const renderer = new Renderer(await Tokenizer.load(directory));
      renderers.set(name, renderer);
      const source = renderer.tokenizer.templates.get("default") ?? "";
      models[name] = { directory, family: renderer.family.name, argumentsAsText: name === "deepseek-v3", developer: source.includes("developer") };
    }
    const packages = await pythonPath(["transformers==5.24.0", "tokenizers==0.23.3", "jinja2==3.1.6"]);
    reference = JSON.parse(await python(packages, JSON.stringify({ models, cases: CASES }))) as Reference;
  }, 1_200_000);

  it.each(names)("%s: text and ids are those of transformers", (name) => {
    let compared = 0;
    for (const one of CASES) {
      const expected = reference[name]?.[one.name];
      const renderer = renderers.get(name)!;
      const request = requestOf(one);
      if (expected === undefined || "error" in expected) {
        // What the template refuses there is refused here.
        expect(() => renderer.text(request, new Date()), `${one.name}: ${expected?.error ?? "missing"}`).toThrow(/./);
        continue;
      }
      expect(renderer.text(request, new Date()), one.name).toBe(expected.text);
      expect(renderer.render(request, null, new Date()).ids, one.name).toEqual(expected.ids);
      compared += 1;
    }
    expect(compared).toBeGreaterThanOrEqual(5);
  });
});

function python(packages: string, input: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const script = fileURLToPath(new URL("reference.py", import.meta.url));
    const child = execFile("python3", [script], { maxBuffer: 1 << 28, env: { ...process.env, PYTHONPATH: packages } }, (error, stdout, stderr) => (error === null ? resolve(stdout) : reject(new Error(stderr))));
    child.stdin?.end(input);
  });
}
