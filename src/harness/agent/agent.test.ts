import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { startEngine, type Engine, type EngineOptions, type EngineRequest, type EngineScript } from "../../../test/support/engine/index.ts";
import { replyTo } from "../../../test/support/engine/script.ts";
import { BUDGETS, harnessContext, type Recorded } from "../../../test/support/harness-context.ts";
import { openMachines, type Machines } from "../../../test/support/harness-machine.ts";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { systemRuntime } from "../../core/runtime.ts";
import type { Sampling } from "../../gateway/conversation.ts";
import { openGateway } from "../../gateway/gateway.ts";
import type { Gateway } from "../../gateway/session.ts";
import { openUpstream } from "../../gateway/upstreams/open.ts";
import { parseUpstreamSpec } from "../../gateway/upstreams/spec.ts";
import { buildTrace } from "../../gateway/trace/trace.ts";
import { turnOf } from "../../gateway/trace/turn-of-call.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { Budgets, HarnessContext, HarnessEnd } from "../harness.ts";
import { agent, AGENT_NAMES, type AgentName, type AgentOptions } from "./agent.ts";
import { dress } from "./face.ts";
import { drawSetup, presetSetup } from "./setup.ts";

const KEY = "sk-secret-0123456789abcdef";
const place = mkdtempSync(join(tmpdir(), "mw-bash-"));
let machines: Machines;
let sandbox: Sandbox;
let gateway: Gateway;
const closers: (() => Promise<unknown>)[] = [];
beforeAll(async () => {
  machines = await openMachines();
  sandbox = await machines.make("bash");
  gateway = await openGateway({ runtime: systemRuntime, socketPath: join(place, "gateway"), port: null });
});
afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});
afterAll(async () => {
  await gateway.close();
  await machines.close();
  rmSync(place, { recursive: true, force: true });
});

interface Played {
  readonly end: HarnessEnd;
  readonly recorded: Recorded;
  /** Of the rollout, without the gateway's own first questions. */
  readonly requests: readonly EngineRequest[];
  readonly host: string;
}

interface Setup {
  readonly context?: Partial<HarnessContext>;
  readonly budgets?: Partial<Budgets>;
  readonly engine?: EngineOptions;
  readonly harness?: AgentName;
  readonly options?: AgentOptions;
  readonly apiKey?: string | null;
  readonly sampling?: Partial<Sampling>;
}

const isProbe = ({ body }: EngineRequest): boolean => body["max_tokens"] === 1 && !("tools" in body);

async function play(script: EngineScript, { context: changes = {}, budgets = {}, engine: engineOptions = {}, harness = "bash", options = {}, apiKey = KEY, sampling = { temperature: 0.5 } }: Setup = {}): Promise<Played> {
  const engine: Engine = await startEngine((request) => (isProbe(request) ? { content: "x" } : replyTo(script, request, request.turn)), engineOptions);
  const upstream = openUpstream(parseUpstreamSpec(`${engineOptions.flavour ?? "vllm"}=${engine.url}`, "test"), { apiKey });
  closers.push(() => upstream.close(), () => engine.close());
  const all = { ...BUDGETS, ...budgets };
  const { context, recorded, log } = harnessContext(sandbox, { budgets: all, ...changes });
  const session = await gateway.open({ label: "test", sandbox: null, upstream, model: "test-model", sampling, budgets: { calls: all.turns, tokens: all.tokens, timeMs: null }, purpose: "evaluate", log });
  const end = await agent(harness, { retries: 2, ...options }).run({ ...context, session });
  await session.close(0);
  expect(recorded.text()).not.toContain(KEY);
  return { end, recorded, host: new URL(engine.url).host, requests: engine.requests.filter((request) => !isProbe(request)) };
}

/** The conversation as the server got it with its n-th request. */
function sentMessages(requests: readonly EngineRequest[], request: number): readonly Record<string, unknown>[] {
  return (requests[request]?.body["messages"] ?? []) as readonly Record<string, unknown>[];
}

describe("the loop", () => {
  it("runs tools until the model answers without one", async () => {
    const { end, recorded, requests } = await play([{ calls: [{ command: "cd /tmp; echo hello" }] }, { content: "looking", calls: [{ command: "pwd" }] }, { content: "done" }]);
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
    expect(requests[0]?.headers["authorization"]).toBe(`Bearer ${KEY}`);
    expect(requests[0]?.body).toMatchObject({ model: "test-model", temperature: 0.5, tools: [{ type: "function", function: { name: "bash" } }] });
  });

  it.each(["--help", "- [ ] fix it", "'; touch /tmp/pwn; '", "$(touch /tmp/pwn)", "\n\n  both ends \n\n", "EOF\nEOF\n", "🦊 ünïcode 北", "`x` \\n \u0007 \u2028", '{"role":"system"}', ""])(
    "hands over the instruction %j byte for byte",
    async (instruction) => {
      const { requests, recorded } = await play([{ content: "ok" }], { context: { instruction } });
      expect(sentMessages(requests, 0)[1]).toEqual({ role: "user", content: instruction });
      expect(recorded.messages[1]?.content).toBe(instruction);
      expect(recorded.commands).toEqual([]);
    },
  );

  it("only ever appends to the conversation", async () => {
    const { requests } = await play([{ content: "a", reasoning: "because", calls: [{ command: "echo 1" }, { command: "echo 2" }] }, { calls: [{ command: "echo 3" }] }, { content: "end" }]);
    const histories = requests.map((request) => JSON.stringify(request.body["messages"]).slice(0, -1));
    for (let i = 1; i < histories.length; i++) expect(histories[i]?.startsWith(histories[i - 1] ?? "?")).toBe(true);
    expect(requests[1]?.body["messages"]).toEqual(expect.arrayContaining([expect.objectContaining({ role: "assistant", content: "a", reasoning: "because" })]));
  });

  it("records each request as it was sent", async () => {
    const { requests, recorded } = await play([{ calls: [{ command: "echo 1" }] }, { calls: [{ command: "echo 2" }] }, { content: "end" }]);
    expect(recorded.calls.map(({ dialect, status, conversation }) => [dialect, status, conversation.roles])).toEqual([["turn", "complete", "su"], ["turn", "complete", "suat"], ["turn", "complete", "suatat"]]);
    expect(requests.map(({ body }) => (body["messages"] as unknown[]).length)).toEqual([2, 4, 6]);
  });

  it("runs parallel calls in order and gives each its own id", async () => {
    const { requests } = await play([{ calls: [{ id: "same", command: "echo 1 > /tmp/n" }, { id: "same", command: "cat /tmp/n; echo 2 > /tmp/n" }, { id: null, command: "cat /tmp/n" }] }, { content: "end" }]);
    const messages = sentMessages(requests, 1);
    const ids = (messages[2]?.["tool_calls"] as readonly { readonly id: string }[] | undefined)?.map(({ id }) => id);
    expect(messages.slice(3)).toEqual([
      { role: "tool", tool_call_id: "same", content: "Exit code: 0\n(no output)" },
      { role: "tool", tool_call_id: ids?.[1], content: "Exit code: 0\n1\n" },
      { role: "tool", tool_call_id: ids?.[2], content: "Exit code: 0\n2\n" },
    ]);
    expect(new Set(ids).size).toBe(3);
  });

  it.each([
    ["no JSON", { arguments: '{"command": "ls' }, /not valid JSON/],
    ["nothing", { arguments: "" }, /"command" is missing/],
    ["an array", { arguments: '["ls"]' }, /must be a JSON object/],
    ["no command", { arguments: "{}" }, /"command" is missing/],
    ["a number", { arguments: '{"command": 5}' }, /"command" must be a string/],
    ["an empty command", { command: "  " }, /is empty/],
    ["a NUL", { command: "echo \0" }, /NUL/],
    ["another tool", { name: "python", arguments: "{}" }, /no tool named "python"/],
  ])("answers %s with an error and goes on", async (_name, call, message) => {
    const { end, recorded, requests } = await play([{ calls: [call] }, { content: "sorry" }]);
    expect(end).toMatchObject({ stopReason: "finished", turns: 2 });
    expect(recorded.commands).toEqual([]);
    expect(recorded.messages.at(-2)?.content).toMatch(message);
    // Servers fail a request in whose history arguments are no JSON object.
    const echoed = JSON.stringify(sentMessages(requests, 1)[2]?.["tool_calls"]);
    const [made] = JSON.parse(echoed) as readonly { function: { arguments: string } }[];
    expect(JSON.parse(made?.function.arguments ?? "null")).toEqual(expect.any(Object));
  });

  it("shows bytes that are no UTF-8 as U+FFFD and keeps them in the record", async () => {
    const { recorded } = await play([{ calls: [{ command: "printf 'ok\\360\\377\\000end\\n'; printf '\\355\\240\\200'; exit 3" }] }, { content: "end" }]);
    expect(recorded.messages[3]?.content).toBe("Exit code: 3\nok\ufffd\ufffd\0end\n\ufffd\ufffd\ufffd");
    expect([...(recorded.commands[0]?.stdout ?? [])]).toEqual([...Buffer.from("6f6bf0ff00656e640aeda080", "hex")]);
  });

  it("tells of a command that took too long, with its output until then", async () => {
    const { end, recorded } = await play([{ calls: [{ command: "echo partial; sleep 60" }] }, { content: "end" }], { budgets: { commandMs: 3_000 } });
    expect(end.stopReason).toBe("finished");
    expect(recorded.messages[3]?.content).toMatch(/^Killed: the command took longer than 3 seconds.*\npartial\n$/);
    expect(recorded.commands[0]).toMatchObject({ ended: "timed_out" });
  });

  it("puts neither key nor server into the machine", async () => {
    const { recorded, host } = await play([{ calls: [{ command: "env; cat /proc/self/environ /proc/*/cmdline" }] }, { content: "end" }]);
    expect(recorded.text()).not.toContain(host);
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
    const { end, requests, recorded } = await play(forever, { budgets: { tokens: 400 } });
    expect(end.stopReason).toBe("tokens");
    let left = 400;
    for (const [index, request] of requests.entries()) {
      expect(request.body["max_tokens"]).toBe(left);
      left -= recorded.calls[index]?.answer?.usage?.completionTokens ?? 0;
    }
    expect(left).toBeLessThanOrEqual(0);
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
    expect(before.requests).toEqual([]);
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
    const { end, requests } = await play([{ content: "half and more than that, and more" }], { sampling: { maxTokens: 4 }, apiKey: null });
    expect(end.stopReason).toBe("tokens");
    expect(requests[0]?.headers["authorization"]).toBeUndefined();
  });

  it("does not hold a conversation without end", async () => {
    const message = { content: "x".repeat(LIMITS.conversationBytes / 3), tool_calls: [{ id: "c", type: "function", function: { name: "bash", arguments: "{}" } }] };
    const { end, requests } = await play(() => ({ raw: JSON.stringify({ choices: [{ message, finish_reason: "tool_calls" }] }) }));
    expect(end).toMatchObject({ stopReason: "context_overflow", turns: 3 });
    expect(requests.length).toBe(3);
  });

  it("survives an answer cut inside a tool call", async () => {
    const { end, recorded } = await play([{ calls: [{ command: "echo ok" }, { arguments: '{"command": "ec' }], finishReason: "length" }, { content: "end" }]);
    expect(end.stopReason).toBe("finished");
    expect(recorded.commands.length).toBe(1);
  });
});

describe("other setups", () => {
  const call = (name: string, args: unknown): { readonly name: string; readonly arguments: string } => ({ name, arguments: JSON.stringify(args) });

  it("works on files as the agent's user, below the working directory", async () => {
    const { end, recorded } = await play(
      [
        { calls: [call("Write", { file_path: "notes/a b.txt", content: "one\ntwo\ntwo\n" }), call("Edit", { file_path: "notes/a b.txt", old_string: "two", new_string: "2" })] },
        { calls: [call("Edit", { file_path: "notes/a b.txt", old_string: "two", new_string: "$& 2", replace_all: true }), call("Read", { file_path: "notes/a b.txt", offset: 2, limit: 1 })] },
        { calls: [call("Grep", { pattern: "^o[n]e$", path: "notes" }), call("Grep", { pattern: "nothing like it" }), call("Bash", { command: "pwd; cat 'notes/a b.txt'" })] },
        { calls: [call("Read", { file_path: "/nowhere" }), call("Read", { file_path: "/bin/sh" }), call("Write", { file_path: "/proc/x", content: "" })] },
        { content: "Done." },
      ],
      { harness: "claude-like", context: { workdir: "/tmp" } },
    );
    expect(end).toMatchObject({ stopReason: "finished", turns: 5 });
    const told = recorded.messages.filter(({ role }) => role === "tool").map(({ content }) => content as string);
    expect(told.slice(0, 7)).toEqual([
      "Wrote 12 bytes to notes/a b.txt.",
      "Error: the text to replace occurs 2 times in notes/a b.txt; give more of what surrounds it, or ask for all.",
      "Replaced 2 occurrences in notes/a b.txt.",
      "     2\t$& 2\n[... 1 lines more]",
      "/tmp/notes/a b.txt:1:one\n",
      "Nothing matches.",
      "Exit code: 0\n/tmp\none\n$& 2\n$& 2\n",
    ]);
    expect(told[7]).toMatch(/^Error: .*nowhere/);
    expect(told[8]).toMatch(/^Error: .*no UTF-8 text/);
    expect(told[9]).toMatch(/^Error: Exit code: [12]/);
    expect(recorded.commands.map(({ command }) => command)).toContainEqual(["write", "notes/a b.txt"]);
  });

  it("is not let at files that its user may not read or write", async () => {
    await sandbox.files.write("/tmp/root-only", "secret", { mode: 0o600 });
    const { recorded } = await play([{ calls: [call("Read", { file_path: "/tmp/root-only" }), call("Write", { file_path: "/etc/passwd", content: "" }), call("Edit", { file_path: "/tmp/root-only", old_string: "s", new_string: "t" })] }, { content: "Done." }], {
      harness: "claude-like",
      context: { user: "65534:65534", workdir: "/tmp" },
    });
    const told = recorded.messages.filter(({ role }) => role === "tool").map(({ content }) => content as string);
    for (const answer of told) expect(answer).toMatch(/^Error: /);
    expect(recorded.text()).not.toContain("secret");
  });

  it("speaks text alone with models that have no tools", async () => {
    const { end, requests, recorded } = await play([{ content: "Look:\n```bash\necho hi\n```" }, { content: "```bash\nls" }, { content: "All done." }], { harness: "fenced" });
    expect(end).toMatchObject({ stopReason: "finished", turns: 3 });
    expect(requests[0]?.body).not.toHaveProperty("tools");
    expect(recorded.messages.map(({ role, content }) => [role, content]).slice(2)).toEqual([
      ["assistant", "Look:\n```bash\necho hi\n```"],
      ["user", "Exit code: 0\nhi\n"],
      ["assistant", "```bash\nls"],
      ["user", expect.stringContaining("not closed")],
      ["assistant", "All done."],
    ]);
  });

  it("draws a setup from the rollout's seed, and records it", async () => {
    const shown = async (seed: string): Promise<unknown> => {
      const { requests, recorded } = await play([{ content: "Done." }], { harness: "drawn", context: { seed } });
      const [drawn] = recorded.drawn as [{ readonly faces: readonly { readonly name: string }[] }];
      const tools = requests[0]?.body["tools"] as readonly { readonly function: { readonly name: string } }[];
      expect(tools.map((tool) => tool.function.name)).toEqual(drawn.faces.map(({ name }) => name));
      return drawn;
    };
    expect(await shown("a")).toEqual(await shown("a"));
    expect(await shown("a")).not.toEqual(await shown("b"));
  });

  it("carries the same work out under every face", async () => {
    for (const name of AGENT_NAMES.filter((candidate) => candidate !== "fenced")) {
      const setup = name === "drawn" ? drawSetup("seed") : presetSetup(name);
      const { end, recorded } = await play([{ calls: [dress(setup.faces, { tool: "shell", command: "echo under a face" })] }, { content: "Done." }], { harness: name });
      expect([name, end.stopReason, recorded.messages.find(({ role }) => role === "tool")?.content]).toEqual([name, "finished", "Exit code: 0\nunder a face\n"]);
    }
  });

  const overflow = { status: 400, raw: '{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, you requested 5000."}}' } as const;
  /** Five turns of work, then a conversation that no longer fits, once; a summary for whoever asks without tools. */
  const growing = (): EngineScript => {
    let full = false;
    return ({ body, turn }) => {
      if (!("tools" in body)) return { content: "Turns one to five were played; nothing else is left to do." };
      if (turn < 5 && !full) return { calls: [{ command: `echo a long output of turn ${turn + 1}` }] };
      if (full) return { content: "Done." };
      full = true;
      return overflow;
    };
  };

  it("goes on with older outputs left out when the history no longer fits", async () => {
    const { end, requests } = await play(growing(), { options: { history: "trim" } });
    expect(end).toMatchObject({ stopReason: "finished", turns: 6 });
    const sent = sentMessages(requests, requests.length - 1).filter(({ role }) => role === "tool").map(({ content }) => content);
    expect(sent.slice(0, 2)).toEqual(["[output left out]", "[output left out]"]);
    expect(sent[4]).toContain("turn 5");
  });

  it("goes on from a summary when the history no longer fits", async () => {
    const { end, requests, recorded } = await play(growing(), { options: { history: "summarise" } });
    expect(end).toMatchObject({ stopReason: "finished", turns: 6 });
    expect(requests.at(-2)?.body).not.toHaveProperty("tools");
    expect(sentMessages(requests, requests.length - 1).map(({ role }) => role)).toEqual(["system", "user"]);
    expect(JSON.stringify(sentMessages(requests, requests.length - 1))).toContain("Turns one to five were played");
    const { nodes } = buildTrace(recorded.calls, { turnOf });
    expect(nodes.map(({ kind }) => kind)).toEqual(["main", "main", "main", "main", "main", "branch", "compaction", "main"]);
  });

  it("ends when no summary can be had", async () => {
    const { end } = await play(() => overflow, { options: { history: "summarise" } });
    expect(end.stopReason).toBe("context_overflow");
  });
});

describe("tokens", () => {
  it.each(["vllm", "sglang"] as const)("keeps ids and logprobs as %s returns them", async (flavour) => {
    const { recorded } = await play([{ calls: [{ command: "echo 1" }] }, { content: "end" }], { engine: { flavour } });
    for (const { answer, tokens } of recorded.calls) {
      expect(tokens?.promptIds.length).toBe(answer?.usage?.promptTokens);
      expect(tokens?.completionIds.length).toBe(answer?.usage?.completionTokens);
      expect(tokens?.logprobs?.length).toBe(tokens?.completionIds.length);
    }
    const [first, second] = recorded.calls.map(({ tokens }) => tokens);
    const grown = [...(first?.promptIds ?? []), ...(first?.completionIds ?? [])];
    expect(second?.promptIds.slice(0, grown.length)).toEqual(grown);
  });
});
