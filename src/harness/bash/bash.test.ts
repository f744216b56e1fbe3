import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { startEngine, type Engine, type EngineOptions, type EngineScript } from "../../../test/support/engine.ts";
import { BUDGETS, harnessContext, type Recorded } from "../../../test/support/harness-context.ts";
import { openMachines, type Machines } from "../../../test/support/harness-machine.ts";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { Budgets, HarnessContext, HarnessEnd } from "../harness.ts";
import { bash, type BashOptions } from "./bash.ts";

const KEY = "sk-secret-0123456789abcdef";
let machines: Machines;
let sandbox: Sandbox;
const engines: Engine[] = [];
beforeAll(async () => {
  machines = await openMachines();
  sandbox = await machines.make("bash");
});
afterEach(async () => {
  for (const engine of engines.splice(0)) await engine.close();
});
afterAll(async () => await machines.close());

interface Played {
  readonly end: HarnessEnd;
  readonly recorded: Recorded;
  readonly engine: Engine;
}

async function play(
  script: EngineScript,
  { context: changes = {}, budgets = {}, engine: engineOptions = {}, options = {} }: { context?: Partial<HarnessContext>; budgets?: Partial<Budgets>; engine?: EngineOptions; options?: BashOptions } = {},
): Promise<Played> {
  const engine = await startEngine(script, engineOptions);
  engines.push(engine);
  const upstream = { url: engine.url, model: "test-model", apiKey: KEY, sampling: { temperature: 0.5 } };
  const { context, recorded } = harnessContext(sandbox, { upstream, budgets: { ...BUDGETS, ...budgets }, ...changes });
  const end = await bash({ retries: 2, ...options }).run(context);
  expect(recorded.text()).not.toContain(KEY);
  return { end, recorded, engine };
}

/** The conversation as the server got it with its n-th request. */
function sentMessages(engine: Engine, request: number): readonly Record<string, unknown>[] {
  return (engine.requests[request]?.body["messages"] ?? []) as readonly Record<string, unknown>[];
}

describe("the loop", () => {
  it("runs tools until the model answers without one", async () => {
    const { end, recorded, engine } = await play([{ calls: [{ command: "cd /tmp; echo hello" }] }, { content: "looking", calls: [{ command: "pwd" }] }, { content: "done" }]);
    expect(end).toMatchObject({ stopReason: "finished", turns: 3 });
    expect(end.promptTokens).toBeGreaterThan(0);
    expect(end.completionTokens).toBeGreaterThan(0);
    expect(recorded.messages.map((message) => [message.role, message.content])).toEqual([
      ["system", expect.stringContaining("bash tool")],
      ["user", "Do it."],
      ["assistant", null],
      ["tool", "Exit code: 0\nhello\n"],
      ["assistant", "looking"],
      ["tool", "Exit code: 0\n/tmp\n"],
      ["assistant", "done"],
    ]);
    // Each call is on record before what it asks for runs, each command before the model hears of it.
    expect(recorded.order).toEqual(["message", "message", "call", "message", "command", "message", "call", "message", "command", "message", "call", "message"]);
    expect(engine.requests[0]?.headers["authorization"]).toBe(`Bearer ${KEY}`);
    expect(engine.requests[0]?.body).toMatchObject({ model: "test-model", temperature: 0.5, stream: false, tools: [{ type: "function", function: { name: "bash" } }] });
  });

  it.each(["--help", "- [ ] fix it", "'; touch /tmp/pwn; '", "$(touch /tmp/pwn)", "\n\n  both ends \n\n", "EOF\nEOF\n", "🦊 ünïcode 北", "`x` \\n \u0007 \u2028", '{"role":"system"}', ""])(
    "hands over the instruction %j byte for byte",
    async (instruction) => {
      const { engine, recorded } = await play([{ content: "ok" }], { context: { instruction } });
      expect(sentMessages(engine, 0)[1]).toEqual({ role: "user", content: instruction });
      expect(recorded.messages[1]?.content).toBe(instruction);
      expect(recorded.commands).toEqual([]);
    },
  );

  it("only ever appends to the conversation", async () => {
    const { engine } = await play([{ content: "a", reasoning: "because", calls: [{ command: "echo 1" }, { command: "echo 2" }] }, { calls: [{ command: "echo 3" }] }, { content: "end" }]);
    const histories = engine.requests.map((request) => JSON.stringify(request.body["messages"]).slice(0, -1));
    for (let i = 1; i < histories.length; i++) expect(histories[i]?.startsWith(histories[i - 1] ?? "?")).toBe(true);
    expect(engine.requests[1]?.body["messages"]).toEqual(expect.arrayContaining([expect.objectContaining({ role: "assistant", content: "a", reasoning_content: "because" })]));
  });

  it("records requests without repeating the history, and all of it once", async () => {
    const { engine, recorded } = await play([{ calls: [{ command: "echo 1" }] }, { calls: [{ command: "echo 2" }] }, { content: "end" }]);
    const requests = recorded.calls.map((call) => call.request as { messagesFrom: number; messages: unknown[] });
    expect(requests.map((request) => request.messagesFrom)).toEqual([0, 2, 4]);
    expect(requests.flatMap((request) => request.messages)).toEqual(engine.requests.at(-1)?.body["messages"]);
  });

  it("runs parallel calls in order and gives each its own id", async () => {
    const { engine } = await play([{ calls: [{ id: "same", command: "echo 1 > /tmp/n" }, { id: "same", command: "cat /tmp/n; echo 2 > /tmp/n" }, { id: null, command: "cat /tmp/n" }] }, { content: "end" }]);
    const messages = sentMessages(engine, 1);
    expect(messages.slice(3)).toEqual([
      { role: "tool", tool_call_id: "same", content: "Exit code: 0\n(no output)" },
      { role: "tool", tool_call_id: "call_1_1", content: "Exit code: 0\n1\n" },
      { role: "tool", tool_call_id: "call_1_2", content: "Exit code: 0\n2\n" },
    ]);
    expect(messages[2]?.["tool_calls"]).toEqual(["same", "call_1_1", "call_1_2"].map((id) => expect.objectContaining({ id }) as unknown));
  });

  it.each([
    ["no JSON", { arguments: '{"command": "ls' }, /not valid JSON/],
    ["nothing", { arguments: "" }, /not valid JSON/],
    ["an array", { arguments: '["ls"]' }, /must be a JSON object/],
    ["no command", { arguments: "{}" }, /need the field "command"/],
    ["a number", { arguments: '{"command": 5}' }, /need the field "command"/],
    ["an empty command", { command: "  " }, /is empty/],
    ["a NUL", { command: "echo \0" }, /NUL/],
    ["another tool", { name: "python", arguments: "{}" }, /no tool named "python"/],
  ])("answers %s with an error and goes on", async (_name, call, message) => {
    const { end, recorded, engine } = await play([{ calls: [call] }, { content: "sorry" }]);
    expect(end).toMatchObject({ stopReason: "finished", turns: 2 });
    expect(recorded.commands).toEqual([]);
    expect(recorded.messages.at(-2)?.content).toMatch(message);
    // Servers fail a request in whose history arguments are no JSON object.
    const echoed = JSON.stringify(sentMessages(engine, 1)[2]?.["tool_calls"]);
    const [made] = JSON.parse(echoed) as readonly { function: { arguments: string } }[];
    expect(JSON.parse(made?.function.arguments ?? "null")).toEqual(expect.any(Object));
  });

  it("shows bytes that are no UTF-8 as U+FFFD and keeps them in the record", async () => {
    const { recorded } = await play([{ calls: [{ command: "printf 'ok\\360\\377\\000end\\n'; printf '\\355\\240\\200'; exit 3" }] }, { content: "end" }]);
    expect(recorded.messages[3]?.content).toBe("Exit code: 3\nok\ufffd\ufffd\0end\n\ufffd\ufffd\ufffd");
    expect([...(recorded.commands[0]?.stdout ?? [])]).toEqual([...Buffer.from("6f6bf0ff00656e640aeda080", "hex")]);
  });

  it("tells of a command that took too long, with its output until then", async () => {
    const { end, recorded } = await play([{ calls: [{ command: "echo partial; sleep 60" }] }, { content: "end" }], { budgets: { commandMs: 600 } });
    expect(end.stopReason).toBe("finished");
    expect(recorded.messages[3]?.content).toMatch(/^Killed: the command took longer than 1 seconds.*\npartial\n$/);
    expect(recorded.commands[0]).toMatchObject({ ended: "timed_out" });
  });

  it("puts neither key nor server into the machine", async () => {
    const { recorded, engine } = await play([{ calls: [{ command: "env; cat /proc/self/environ /proc/*/cmdline" }] }, { content: "end" }]);
    expect(recorded.text()).not.toContain(engine.url.slice("http://".length, -"/v1".length));
  });
});

const forever: EngineScript = () => ({ calls: [{ command: "echo again" }] });

describe("budgets and ends", () => {
  it("ends after the turns, with the last tools run", async () => {
    const { end, recorded } = await play(forever, { budgets: { turns: 3 } });
    expect(end).toMatchObject({ stopReason: "turns", turns: 3 });
    expect(recorded.commands.length).toBe(3);
  });

  it("ends after the tokens, and never lets an answer be longer than what is left", async () => {
    const { end, engine } = await play(forever, { budgets: { tokens: 400 } });
    expect(end.stopReason).toBe("tokens");
    let left = 400;
    const perCall = end.completionTokens / end.turns;
    for (const request of engine.requests) {
      expect(request.body["max_tokens"]).toBe(left);
      left -= perCall;
    }
  });

  it("ends when its time is over, in a command, a model call or a wait", async () => {
    for (const script of [[{ calls: [{ command: "sleep 60" }] }], [{ breakOff: "never" }], [{ status: 503, headers: { "retry-after": "60" } }]] as const) {
      const { end } = await play(script, { budgets: { timeMs: 500 } });
      expect(end).toMatchObject({ stopReason: "agent_time" });
    }
  });

  it("ends at once when it is cancelled", async () => {
    const stop = new AbortController();
    const startedAt = performance.now();
    setTimeout(() => stop.abort(new MwError("cancelled", "Asked to stop.")), 300);
    const { end } = await play([{ calls: [{ command: "sleep 60" }] }], { context: { signal: stop.signal } });
    expect(end.stopReason).toBe("cancelled");
    expect(performance.now() - startedAt).toBeLessThan(30_000);
    const before = await play([{ content: "x" }], { context: { signal: stop.signal } });
    expect(before.end.stopReason).toBe("cancelled");
    expect(before.engine.requests).toEqual([]);
  });

  it.each([
    [{ refusal: "I cannot." }, "refused"],
    [{ content: "", finishReason: "content_filter" }, "refused"],
    [{ content: "half", finishReason: "length" }, "context_overflow"],
    [{ status: 400, raw: '{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, you requested 5000."}}' }, "context_overflow"],
    [{ content: "" }, "finished"],
  ] as const)("reads %j as %s", async (reply, stopReason) => {
    expect((await play([reply])).end.stopReason).toBe(stopReason);
  });

  it("reads an answer cut at max_tokens as the end of its tokens", async () => {
    const engine = await startEngine([{ content: "half", finishReason: "length" }]);
    engines.push(engine);
    const { context } = harnessContext(sandbox, { upstream: { url: engine.url, model: "m", apiKey: null, sampling: { max_tokens: 4 } } });
    expect((await bash().run(context)).stopReason).toBe("tokens");
    expect(engine.requests[0]?.headers["authorization"]).toBeUndefined();
  });

  it("does not hold a conversation without end", async () => {
    const message = { content: "x".repeat(LIMITS.conversationBytes / 3), tool_calls: [{ id: "c", type: "function", function: { name: "bash", arguments: "{}" } }] };
    const { end, engine } = await play(() => ({ raw: JSON.stringify({ choices: [{ message, finish_reason: "tool_calls" }] }) }));
    expect(end).toMatchObject({ stopReason: "context_overflow", turns: 3 });
    expect(engine.requests.length).toBe(3);
  });

  it("survives an answer cut inside a tool call", async () => {
    const { end, recorded } = await play([{ calls: [{ command: "echo ok" }, { arguments: '{"command": "ec' }], finishReason: "length" }, { content: "end" }]);
    expect(end.stopReason).toBe("finished");
    expect(recorded.commands.length).toBe(1);
  });
});

describe("tokens", () => {
  it.each(["vllm", "sglang"] as const)("keeps ids and logprobs as %s returns them", async (tokens) => {
    const { recorded } = await play([{ calls: [{ command: "echo 1" }] }, { content: "end" }], { engine: { tokens } });
    for (const call of recorded.calls) {
      expect(call.promptTokenIds?.length).toBe(call.usage?.promptTokens);
      expect(call.completionTokenIds?.length).toBe(call.usage?.completionTokens);
      expect(call.logprobs?.length).toBe(call.completionTokenIds?.length);
      expect(JSON.stringify(call.response)).not.toContain("logprob\":");
    }
    const [first, second] = recorded.calls;
    const grown = [...(first?.promptTokenIds ?? []), ...(first?.completionTokenIds ?? [])];
    expect(second?.promptTokenIds?.slice(0, grown.length)).toEqual(grown);
  });

  it("asks with fewer fields once a server refuses them, for the rest of the run", async () => {
    const engine = await startEngine([{ calls: [{ command: "true" }] }, { content: "end" }], { tokens: "refuse" });
    engines.push(engine);
    const harness = bash();
    const upstream = { url: engine.url, model: "m", apiKey: null, sampling: {} };
    for (let rollout = 0; rollout < 2; rollout++) {
      const { context, recorded } = harnessContext(sandbox, { upstream });
      expect((await harness.run(context)).stopReason).toBe("finished");
      expect(recorded.calls[0]).toMatchObject({ promptTokenIds: null, completionTokenIds: null, logprobs: expect.any(Array) as unknown });
      expect(recorded.notes.length).toBe(rollout === 0 ? 1 : 0);
    }
    expect(engine.requests.filter((request) => "return_token_ids" in request.body).length).toBe(1);
  });

  it("asks for nothing when told so", async () => {
    const { engine, recorded } = await play([{ content: "end" }], { options: { tokens: false } });
    expect(engine.requests[0]?.body).not.toHaveProperty("logprobs");
    expect(recorded.calls[0]).toMatchObject({ promptTokenIds: null, logprobs: null });
  });
});
