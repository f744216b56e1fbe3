/** The vendors' own clients through the gateway, against each kind of model server: the same conversation in every dialect, streamed and whole, with its exact tokens in the log. */
import { afterEach, describe, expect, it } from "vitest";
import { Renderer } from "../../../src/gateway/render/renderer.ts";
import { openUpstream } from "../../../src/gateway/upstreams/open.ts";
import { parseUpstreamSpec } from "../../../src/gateway/upstreams/spec.ts";
import { answerKey, type Call, type GatewaySession, type SessionBudgets } from "../../../src/gateway/index.ts";
import { DIALOGUES, type Dialogue, type DialogueOptions, type Heard } from "../../support/dialogues.ts";
import { startEngine, type Engine, type EngineOptions, type EngineScript } from "../../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../../support/engine/tokenizer.ts";
import { openBench } from "../../support/gateway.ts";

const closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

interface Served {
  readonly engine: Engine;
  readonly session: GatewaySession;
  dialogue(prompt?: string, options?: DialogueOptions): Dialogue;
  calls(): Promise<readonly Call[]>;
}

interface ServeOptions extends EngineOptions {
  readonly purpose?: "train" | "evaluate";
  readonly budgets?: Partial<SessionBudgets>;
  /** The gateway renders prompts itself and sends token ids. */
  readonly tokensIn?: boolean;
}

async function serve(dialect: keyof typeof DIALOGUES, script: EngineScript, { purpose = "train", budgets = {}, tokensIn = false, ...options }: ServeOptions = {}): Promise<Served> {
  const engine = await startEngine(script, options);
  const upstream = openUpstream(parseUpstreamSpec(`${options.flavour ?? "vllm"}=${engine.root}`, "test"), { apiKey: null, ...(tokensIn ? { renderer: await Renderer.load(MODEL_DIRECTORY) } : {}) });
  const bench = await openBench();
  closers.push(() => engine.close(), () => upstream.close(), () => bench.close());
  const { session, calls } = await bench.open(() => Promise.reject(new Error("the engine answers")), {
    upstream,
    model: "test-model",
    purpose,
    budgets: { calls: null, tokens: null, timeMs: null, ...budgets },
  });
  return { engine, session, calls, dialogue: (prompt = "What is in the directory?", more = {}) => DIALOGUES[dialect](`${bench.url}${session.path}`, session.token, prompt, more) };
}

const DIALECTS = Object.keys(DIALOGUES) as (keyof typeof DIALOGUES)[];
const SCRIPT: EngineScript = [
  { reasoning: "Look first.", content: "I look. ", calls: [{ command: "ls -la" }, { name: "now", arguments: "" }] },
  { reasoning: "That is all.", content: "Two files: é, 北京 😀." },
];
/** In the model's own words, which end a text before a call and always spell arguments. */
const SPELLED: EngineScript = [{ reasoning: "Look first.", content: "I look.", calls: [{ command: "ls -la" }, { name: "now", arguments: "{}" }] }, ...SCRIPT.slice(1)];

describe.each(DIALECTS)("%s", (dialect) => {
  describe.each([
    { flavour: "vllm", level: "tokens", tokensIn: false },
    { flavour: "vllm", level: "tokens", tokensIn: true },
    { flavour: "sglang", level: "tokens", tokensIn: false },
    { flavour: "sglang", level: "tokens", tokensIn: true },
    { flavour: "vllm", level: "logprobs", tokensIn: false },
    { flavour: "openai", level: "text", tokensIn: false },
  ] as const)("with $flavour that gives $level, and takes them: $tokensIn", ({ flavour, level, tokensIn }) => {
    it.each([false, true])("holds a conversation with tools, streamed: %s", async (stream) => {
      const { engine, dialogue, calls } = await serve(dialect, tokensIn ? SPELLED : SCRIPT, { flavour, level, tokensIn, drift: 0.2, purpose: level === "tokens" ? "train" : "evaluate" });
      const probes = engine.samples.length;
      const talk = dialogue();
      const first = await talk.ask(stream);
      expect(first).toMatchObject({ text: tokensIn ? "I look." : "I look. ", reasoning: "Look first." });
      expect(first.calls.map(({ name, args }) => ({ name, args }))).toEqual([
        { name: "bash", args: { command: "ls -la" } },
        { name: "now", args: {} },
      ]);
      expect(new Set(first.calls.map(({ id }) => id)).size).toBe(2);
      talk.results({ [first.calls[0]?.id ?? ""]: "a\nb", [first.calls[1]?.id ?? ""]: "noon" });
      expect(await talk.ask(stream)).toMatchObject({ text: "Two files: é, 北京 😀.", reasoning: "That is all.", calls: [], tokens: engine.samples.at(-1)?.completionIds.length });
      const samples = engine.samples.slice(probes);
      // What the model was shown the second time: by ids exactly what it said, else in its template's words.
      const said = [...(samples[0]?.promptIds ?? []), ...(samples[0]?.completionIds ?? [])];
      if (tokensIn) expect(samples[1]?.promptIds.slice(0, said.length)).toEqual(said);
      const { messages } = (engine.requests.at(-1)?.body ?? {}) as { readonly messages?: readonly Record<string, unknown>[] };
      if (messages !== undefined) expectShown(messages, flavour === "vllm" ? "reasoning" : "reasoning_content");
      expect(messages === undefined).toBe(tokensIn);
      const logged = await calls();
      expect(logged.map(({ status, capture }) => ({ status, capture }))).toEqual([1, 2].map(() => ({ status: "complete", capture: level })));
      // What came back is known as what was answered.
      expect(logged[1]?.conversation.messages[2]).toBe(answerKey(logged[0]?.answer ?? { blocks: [] }));
      expect(logged.map(({ tokens }) => (tokens === null ? null : { promptIds: [...tokens.promptIds], completionIds: [...tokens.completionIds], logprobs: tokens.logprobs }))).toEqual(level === "tokens" ? samples : samples.map(() => null));
    });
  });

  it.each([false, true])("comes through failures that its client tries again, and samples once, streamed: %s", async (stream) => {
    let calls = 0;
    const { engine, dialogue } = await serve(dialect, (request) => {
      if (request.body["max_tokens"] === 1) return { content: "probe" };
      calls++;
      return calls === 1 ? { status: 503, raw: "", headers: { "retry-after": "0" } } : { content: "fine" };
    });
    const before = engine.samples.length;
    expect((await dialogue().ask(stream)).text).toBe("fine");
    expect(engine.samples.length).toBe(before + 1);
  });

  it.each([false, true])("tells its client of the end of the context, streamed: %s", async (stream) => {
    const { dialogue } = await serve(dialect, [{ content: "x" }], { contextTokens: 300 });
    await expect(dialogue("word ".repeat(1_000)).ask(stream)).rejects.toMatchObject({ status: 400 });
  });

  it("passes limits, temperature, stop sequences and images on, and says how an answer ended", async () => {
    const image = "iVBORw0KGgo=";
    const { engine, dialogue } = await serve(dialect, [{ content: "one two three four five" }]);
    const cut: Heard[] = [];
    for (const stream of [false, true]) cut.push(await dialogue("Count.", { image, maxTokens: 4, temperature: 0.25 }).ask(stream));
    expect(cut[1]).toEqual(cut[0]);
    expect(cut[0]).toMatchObject({ tokens: 4, stop: { "openai-chat": "length", "openai-responses": "max_output_tokens", anthropic: "max_tokens", gemini: "MAX_TOKENS" }[dialect] });
    const body = engine.requests.at(-1)?.body ?? {};
    expect([body["temperature"], body["max_completion_tokens"] ?? body["max_tokens"]]).toEqual([0.25, 4]);
    expect(JSON.stringify(body["messages"])).toContain(`data:image/png;base64,${image}`);
    if (dialect === "openai-responses") return;
    const stopped: Heard[] = [];
    for (const stream of [false, true]) stopped.push(await dialogue("Count.", { stop: " three" }).ask(stream));
    expect(stopped[1]).toEqual(stopped[0]);
    expect(stopped[0]).toMatchObject({ text: "one two", stop: { "openai-chat": "stop", anthropic: "stop_sequence", gemini: "STOP" }[dialect] });
  });

  it("ends its client at once when the budget is used up", async () => {
    const { engine, session, dialogue } = await serve(dialect, [{ content: "one" }], { budgets: { calls: 1 } });
    await dialogue().ask(false);
    const asked = engine.requests.length;
    await expect(dialogue("And then?").ask(true)).rejects.toThrow(/budget/i);
    expect([engine.requests.length, session.totals().exhausted]).toEqual([asked, "calls"]);
  });

  it("never lets its client take a broken stream for an answer", async () => {
    const { dialogue, calls } = await serve(dialect, ({ body }) => (body["max_tokens"] === 1 ? { content: "probe" } : { content: "one two three four five six", breakOff: "body" }));
    await expect(dialogue().ask(true)).rejects.toBeInstanceOf(Error);
    const logged = await calls();
    expect(logged.length).toBeGreaterThan(0);
    for (const { status, failure, tokens } of logged) expect({ status, failure, tokens }).toMatchObject({ status: "incomplete", failure: { kind: "truncated" }, tokens: null });
  });
});

function expectShown(messages: readonly Record<string, unknown>[], reasoningField: string): void {
  expect(messages.map(({ role }) => role)).toEqual(["system", "user", "assistant", "tool", "tool"]);
  expect(messages[2]).toMatchObject({ content: "I look. ", [reasoningField]: "Look first." });
  expect(messages.slice(3).map(({ content }) => content)).toEqual(["a\nb", "noon"]);
}

describe("a session for training", () => {
  it.each(["text", "logprobs"] as const)("is refused on a server that gives %s, with the reason", async (level) => {
    await expect(serve("openai-chat", [{ content: "x" }], { level })).rejects.toMatchObject({ code: "unsupported", message: expect.stringContaining("0.10.2") as string });
  });
});
