/** Every family renders, text and ids, exactly as transformers does with the same tokenizer and template. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import * as fc from "fast-check";
import { beforeAll, describe, expect, it } from "vitest";
import { DEFAULT_SAMPLING, type AnswerBlock, type Message, type ToolDefinition, type TurnRequest } from "../../../src/gateway/conversation.ts";
import type { Piece } from "../../../src/gateway/render/parse/output.ts";
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

/** DeepSeek's own templates before V3.2 spell calls, and never say which tools there are. */
function describesTools(renderer: Renderer): boolean {
  return (renderer.tokenizer.templates.get("default") ?? "").includes("tools");
}

/** Conversations that nobody thought of, the same in every run. */
const RANDOM: readonly Case[] = fc.sample(
  fc.record({
    head: fc.option(fc.string({ unit: "grapheme" })),
    offered: fc.boolean(),
    turns: fc.array(fc.record({ ask: words(), thought: fc.option(words()), say: words(), args: fc.option(fc.json({ maxDepth: 2 }).map((json) => `{"path": "p", "x": ${json}}`)), result: words() }), { minLength: 1, maxLength: 3 }),
  }),
  { seed: 20_260, numRuns: 25 },
).map(({ head, offered, turns }, at) => ({
  name: `random ${at}`,
  messages: [
    ...(head === null ? [] : [system(head)]),
    ...turns.flatMap(({ ask, thought: hm, say, args, result: told }, index) => [
      user(ask),
      ...(args === null || !offered ? [] : [assistant(...(hm === null ? [] : [thought(hm)]), call(`abcdef12${index}`, "write_file", args)), result(`abcdef12${index}`, "write_file", told)]),
      assistant(text(say)),
    ]),
    user("And?"),
  ],
  tools: offered ? TOOLS : [],
  kwargs: {},
}));

/** Never empty, never only space: templates differ on what is no text at all. */
function words(): fc.Arbitrary<string> {
  return fc.tuple(fc.string({ unit: "grapheme" }), fc.constantFrom("a", " b\n", "\n\nc ", "<d>")).map((parts) => parts.join(""));
}

function requestOf({ messages, tools, kwargs }: Case): TurnRequest {
  return {
    dialect: "openai-chat", model: "m", messages, tools, toolChoice: null, parallelToolCalls: null, sampling: DEFAULT_SAMPLING, reasoning: null, responseFormat: null,
    logprobs: null, stream: false, streamUsage: false, extra: { chat_template_kwargs: kwargs }, dropped: [],
  };
}

type Reference = Readonly<Record<string, Readonly<Record<string, { readonly text: string; readonly ids: readonly number[] } | { readonly error: string }>>>>;

const names = Object.keys(MODELS) as readonly ModelName[];
const renderers = new Map<ModelName, Renderer>();
beforeAll(async () => {
  for (const name of names) renderers.set(name, new Renderer(await Tokenizer.load(await modelDirectory(name))));
}, 1_200_000);

describe("rendering", () => {
  let reference: Reference = {};

  beforeAll(async () => {
    const models: Record<string, unknown> = {};
    for (const [name, renderer] of renderers) {
      const { directory } = renderer.tokenizer;
      const source = renderer.tokenizer.templates.get("default") ?? "";
      models[name] = { directory, family: renderer.family.name, argumentsAsText: name === "deepseek-v3", developer: source.includes("developer") };
    }
    const packages = await pythonPath(["transformers==5.24.0", "tokenizers==0.23.3", "jinja2==3.1.6"]);
    reference = JSON.parse(await python(packages, JSON.stringify({ models, cases: [...CASES, ...RANDOM] }))) as Reference;
  }, 1_200_000);

  it.each(names)("%s: text and ids are those of transformers", (name) => {
    let compared = 0;
    for (const one of [...CASES, ...RANDOM]) {
      const expected = reference[name]?.[one.name];
      const renderer = renderers.get(name)!;
      const request = requestOf(one);
      if (one.tools.length > 0 && !describesTools(renderer)) {
        expect(() => renderer.text(request, new Date()), one.name).toThrow(/does not tell it of tools/);
        continue;
      }
      if (expected === undefined || "error" in expected) {
        // What the template refuses there is refused here.
        expect(() => renderer.text(request, new Date()), `${one.name}: ${expected?.error ?? "missing"}`).toThrow(/./);
        continue;
      }
      expect(renderer.text(request, new Date()), one.name).toBe(expected.text);
      expect(renderer.render(request, null, new Date()).ids, one.name).toEqual(expected.ids);
      compared += 1;
    }
    expect(compared).toBeGreaterThanOrEqual(10);
  });

});

describe("answers", () => {
  it.each(names)("%s: what the template spells is read back, and extended as the template goes on", (name) => {
    const renderer = renderers.get(name)!;
    const { tokenizer, family } = renderer;
    let wholeHistories = 0;
    for (const { answer, next } of EXCHANGES) {
      const ask = (messages: readonly Message[]): TurnRequest => requestOf({ name: "", messages, tools: describesTools(renderer) ? TOOLS : [], kwargs: {} });
      const before = [user("Do it.")];
      const prompt = renderer.render(ask(before), null, new Date());
      const promptText = renderer.text(ask(before), new Date());
      const request = ask([...before, answer, ...next]);
      const whole = renderer.text(request, new Date());
      const sent = answerStart(promptText, whole);
      const end = family.ends.map((token) => ({ token, at: whole.indexOf(token, sent) })).filter(({ at }) => at >= 0).toSorted((one, other) => one.at - other.at)[0];
      if (end === undefined) {
        expect(name).toBe("deepseek-v3");
        continue;
      }
      const spelled = whole.slice(sent, end.at);
      const ids = [...prompt.ids, ...tokenizer.encode(spelled), tokenizer.idOf(end.token)!];

      // Reading, token by token. What a history leaves out of a prompt is no answer of that prompt.
      const reader = renderer.reader(request, { inThought: spelled.startsWith("</think>") || (prompt.inThought && spelled.includes("</think>")), hasTools: true });
      const text = renderer.detokeniser();
      const pieces = [...ids.slice(prompt.ids.length).flatMap((id) => reader.push(text.push(id))), ...reader.push(text.end()), ...reader.end()];
      expect(content(pieces.filter(({ type }) => type !== "reasoning")), `${name}: ${spelled}`).toEqual(content(asPieces(answer)).slice(0, family.name === "llama" || family.name === "harmony" ? 1 : undefined));

      // Going on, with and without the end of the answer.
      for (const recorded of [ids, ids.slice(0, -1)]) {
        const extended = renderer.render(request, { longestPrefix: () => ({ messages: 2, ids: recorded }) }, new Date());
        expect(extended.notes, name).toEqual([]);
        expect(extended.ids.slice(0, recorded.length)).toEqual(recorded);
        const spell = (all: readonly number[]): string => Buffer.concat(all.map((id) => tokenizer.bytesOf(id))).toString("utf8");
        const tail = spell(extended.ids.slice(recorded.length));
        expect(whole.endsWith(tail), `${name}: ${tail}`).toBe(true);
        if (!whole.startsWith(promptText)) continue;
        expect(spell(extended.ids)).toBe(whole);
        wholeHistories += 1;
      }
    }
    // Those whose prompts open a thought that their history leaves out.
    if (!["qwen3.5", "glm-4.7", "qwq", "deepseek-r1-distill", "deepseek-v3.1", "deepseek-v3.2", "minimax-m2"].includes(name)) expect(wholeHistories).toBeGreaterThan(0);
  });
});

describe("an end that means something else", () => {
  it.each([["gpt-oss", "<|return|>", "<|end|>"], ["glm-4.6", "<|observation|>", "<|user|>"]] as const)("%s: is not taken for the template's, and the call says so", (name, ended, wanted) => {
    const renderer = renderers.get(name)!;
    const request = requestOf({ name: "", messages: [user("one"), assistant(text("two")), user("three")], tools: [], kwargs: {} });
    const ids = [...renderer.tokenizer.encode("two"), renderer.tokenizer.idOf(ended)!];
    const prompt = renderer.render(request, { longestPrefix: () => ({ messages: 2, ids }) }, new Date());
    expect(prompt).toMatchObject({ extended: 0, notes: [`Rendered anew, as a new segment: the answer ended with ${ended}, and ${wanted} would follow.`] });
    expect(prompt.ids).toEqual(renderer.render(request, null, new Date()).ids);
  });
});

/** Answers that every family can spell: a text, and a call without one. */
const EXCHANGES: readonly { readonly answer: Message & { readonly role: "assistant" }; readonly next: readonly Message[] }[] = [
  { answer: { role: "assistant", content: [text("Here it is: 北京 😀.")] }, next: [user("Go on.")] },
  { answer: { role: "assistant", content: [call("abcdef123", "write_file", '{"path": "/tmp/ä \\"b\\"\\n", "mode": 4, "force": true, "lines": ["a", "é"]}')] }, next: [result("abcdef123", "write_file", "ok")] },
];

/** Where the answer to `prompt` begins in a history that need not begin with that prompt: some templates open a thought in one and not in the other, or move the tools. */
function answerStart(prompt: string, whole: string): number {
  if (whole.startsWith(prompt)) return prompt.length;
  const anchor = prompt.slice(-10);
  if (anchor.endsWith("[/INST]")) return whole.indexOf(anchor) + anchor.length;
  let at = 0;
  while (prompt[at] === whole[at]) at += 1;
  const mark = whole.slice(0, at).lastIndexOf("<");
  return mark >= 0 && !whole.slice(mark, at).includes(">") ? mark : at;
}

function asPieces(answer: Message & { readonly role: "assistant" }): readonly Piece[] {
  return answer.content.flatMap((block): Piece[] => (block.type === "text" ? [{ type: "text", text: block.text }] : block.type === "tool_call" ? [{ type: "tool_call", id: null, name: block.name }, { type: "arguments", text: block.arguments }] : []));
}

/** Texts without the space around them, calls with their arguments parsed. */
function content(pieces: readonly Piece[]): readonly unknown[] {
  const blocks: { type: string; text: string }[] = [];
  for (const piece of pieces) {
    const last = blocks.at(-1);
    if (piece.type === "tool_call") blocks.push({ type: piece.name, text: "" });
    else if (piece.type === "text" && last?.type !== "text") blocks.push({ type: "text", text: piece.text });
    else if (last !== undefined) last.text += piece.text;
  }
  return blocks.map(({ type, text }) => (type === "text" ? text.trim() : [type, JSON.parse(text) as unknown])).filter((block) => block !== "");
}

function python(packages: string, input: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const script = fileURLToPath(new URL("reference.py", import.meta.url));
    const child = execFile("python3", [script], { maxBuffer: 1 << 28, env: { ...process.env, PYTHONPATH: packages } }, (error, stdout, stderr) => (error === null ? resolve(stdout) : reject(new Error(stderr))));
    child.stdin?.end(input);
  });
}
