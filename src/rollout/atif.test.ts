import * as fc from "fast-check";
import { writeFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { Call } from "../gateway/call.ts";
import { DEFAULT_SAMPLING } from "../gateway/conversation.ts";
import type { MessageRecord } from "../harness/harness.ts";
import type { CallId } from "../core/ids.ts";
import { atifTrajectory, type AtifCommand, type AtifInput } from "./atif.ts";
import type { SpokenMessage } from "./spoken-messages.ts";

const AT = "2026-01-02T03:04:05.678Z";
const command = (changes: Partial<AtifCommand> = {}): AtifCommand => ({ at: AT, command: "ls", code: 0, ended: "exited", cause: null, durationMs: 1.5, stdoutBytes: 2, stderrBytes: 0, stdout: "a\n", stderr: "", ...changes });
const call = (changes: Partial<Call> = {}): Call => ({
  id: "call1" as CallId,
  number: 1,
  at: AT,
  durationMs: 10,
  firstDeltaMs: null,
  dialect: "turn",
  route: { model: null, stream: null },
  status: "complete",
  failure: null,
  request: { model: "m", tools: [{ name: "bash", description: null, parameters: {} }] },
  conversation: { tools: "", toolCount: 1, messages: [], roles: "", structured: false },
  model: "m",
  sampling: DEFAULT_SAMPLING,
  notes: [],
  answer: { blocks: [{ type: "reasoning", text: "hm", signature: null }], finish: "stop", stopSequence: null, usage: { promptTokens: 2, completionTokens: 1, cachedTokens: 1, reasoningTokens: 0 }, logprobs: null },
  capture: "tokens",
  tokens: { promptIds: [1, 2], completionIds: [3], logprobs: [-0.5], versions: [] },
  replays: 0,
  ...changes,
});
const answered = (message: MessageRecord): SpokenMessage => ({ ...message, call: 1 });
const toolCall = (id: string, text: string): unknown => ({ id, type: "function", function: { name: "bash", arguments: text } });
const base: AtifInput = {
  rollout: "ro1",
  agent: { name: "bash", version: "1", settings: { tokens: true } },
  model: "m",
  instruction: "Do it.\n",
  messages: [],
  calls: [],
  tools: [],
  commands: [],
  facts: { run: "run1", task: "t", attempt: 0 },
  end: { outcome: "scored", reward: 1, stop_reason: "finished", error: null },
};
const talk: AtifInput = {
  ...base,
  messages: [
    { at: AT, role: "system", content: "sys" },
    { at: AT, role: "user", content: "Do it.\n" },
    { at: AT, role: "assistant", call: 1, content: null, toolCalls: [toolCall("c1", '{"command":"ls"}'), toolCall("c2", '{"invalid_arguments":"{"}')] },
    { at: AT, role: "tool", content: "Exit code: 0\na\n", toolCallId: "c1" },
    { at: AT, role: "tool", content: "Error: no", toolCallId: "c2" },
    { at: AT, role: "assistant", call: 3, content: "done" },
  ],
  tools: [{ name: "bash", description: null, parameters: {} }],
  calls: [call(), call({ number: 2, status: "failed", answer: null, tokens: null }), call({ number: 3, answer: null, tokens: null })],
  commands: [command()],
};

describe("an ATIF trajectory", () => {
  it("of a conversation is pinned", () => {
    expect(atifTrajectory(talk)).toEqual({
      schema_version: "ATIF-v1.7",
      session_id: "ro1",
      trajectory_id: "ro1",
      agent: { name: "bash", version: "1", model_name: "m", tool_definitions: [{ type: "function", function: { name: "bash", parameters: {} } }], extra: { settings: { tokens: true } } },
      steps: [
        { step_id: 1, timestamp: AT, source: "system", message: "sys" },
        { step_id: 2, timestamp: AT, source: "user", message: "Do it.\n" },
        {
          step_id: 3,
          timestamp: AT,
          source: "agent",
          model_name: "m",
          message: "",
          reasoning_content: "hm",
          metrics: { prompt_tokens: 2, completion_tokens: 1, cached_tokens: 1, prompt_token_ids: [1, 2], completion_token_ids: [3], logprobs: [-0.5], extra: { duration_ms: 10 } },
          llm_call_count: 1,
          tool_calls: [
            { tool_call_id: "c1", function_name: "bash", arguments: { command: "ls" }, extra: { exit_code: 0, ended: "exited", duration_ms: 1.5, stdout_bytes: 2, stderr_bytes: 0 } },
            { tool_call_id: "c2", function_name: "bash", arguments: { invalid_arguments: "{" } },
          ],
          observation: { results: [{ source_call_id: "c1", content: "Exit code: 0\na\n" }, { source_call_id: "c2", content: "Error: no" }] },
        },
        { step_id: 4, timestamp: AT, source: "agent", model_name: "m", message: "done", metrics: { extra: { duration_ms: 10 } }, llm_call_count: 1 },
      ],
      final_metrics: { total_prompt_tokens: 2, total_completion_tokens: 1, total_steps: 4, extra: { outcome: "scored", reward: 1, stop_reason: "finished" } },
      extra: { run: "run1", task: "t", attempt: 0 },
    });
  });

  it("of a scripted agent has a step for each command, and none for an idle one", () => {
    const { steps } = atifTrajectory({ ...base, model: null, commands: [command(), command({ command: ["bash", "x"], code: 9, stderr: "no\n", cause: "disk_full" })] }) as { steps: Record<string, unknown>[] };
    expect(steps).toEqual([
      { step_id: 1, source: "user", message: "Do it.\n" },
      expect.objectContaining({ step_id: 2, source: "agent", llm_call_count: 0, observation: { results: [{ source_call_id: "command-1", content: "a\n" }] } }),
      expect.objectContaining({ tool_calls: [{ tool_call_id: "command-2", function_name: "bash", arguments: { command: "bash x" }, extra: expect.objectContaining({ exit_code: 9, cause: "disk_full" }) as unknown }] }),
    ]);
    expect(atifTrajectory(base)["steps"]).toEqual([{ step_id: 1, source: "user", message: "Do it.\n" }]);
  });

  it("keeps the format's rules for any records", () => {
    const words = fc.string({ unit: "binary", maxLength: 8 });
    const message = fc.record({
      at: fc.constant(AT),
      role: fc.constantFrom<MessageRecord["role"]>("system", "user", "assistant", "tool"),
      content: fc.oneof(words, fc.constant(null), fc.constant([{ type: "text", text: "x" }]), fc.constant("half \ud800 pair")),
      toolCalls: fc.oneof(fc.array(fc.tuple(fc.constantFrom("c1", "c2"), words).map(([id, text]) => toolCall(id, text)), { maxLength: 3 }), fc.constant("garbage"), fc.constant([null, 3, {}])),
      toolCallId: fc.constantFrom("c1", "c2", "c3"),
    });
    const samples: unknown[] = [];
    fc.assert(
      fc.property(fc.array(message, { maxLength: 8 }), fc.nat(4), fc.nat(3), (messages, calls, commands) => {
        const made = atifTrajectory({ ...base, messages: messages.map((one, at) => (at < calls && one.role === "assistant" ? answered(one) : one)), calls: Array.from({ length: calls }, () => call()), commands: Array.from({ length: commands }, () => command()) });
        const json = JSON.stringify(made);
        expect(Buffer.from(json, "utf8").toString("utf8")).toBe(json);
        expect(json).not.toMatch(/\\ud[89a-f]/);
        checkRules(JSON.parse(json));
        samples.push(made);
      }),
      { numRuns: 300 },
    );
    // For checking by hand against the format's own models: MW_ATIF_SAMPLES=FILE writes what was made, one document a line.
    const file = process.env["MW_ATIF_SAMPLES"];
    if (file !== undefined) writeFileSync(file, [atifTrajectory(talk), ...samples].map((made) => `${JSON.stringify(made)}\n`).join(""));
  });
});

/** The rules of ATIF v1.7 that its own models enforce, for the fields used here. */
function checkRules(value: unknown): void {
  const trajectory = value as { steps: Record<string, unknown>[] };
  expect(Object.keys(trajectory).filter((key) => !["schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics", "extra"].includes(key))).toEqual([]);
  expect(trajectory.steps.length).toBeGreaterThan(0);
  for (const [index, step] of trajectory.steps.entries()) {
    expect(step["step_id"]).toBe(index + 1);
    expect(["system", "user", "agent"]).toContain(step["source"]);
    expect(step["message"]).toBeTypeOf("string");
    const forbidden = step["source"] === "agent" ? [] : ["model_name", "reasoning_content", "tool_calls", "metrics"];
    if (step["llm_call_count"] === 0) forbidden.push("metrics", "reasoning_content");
    expect(Object.keys(step).filter((key) => forbidden.includes(key))).toEqual([]);
    const ids = ((step["tool_calls"] ?? []) as readonly { tool_call_id: string; arguments: unknown }[]).map((made) => {
      expect(made.arguments).toBeTypeOf("object");
      expect(made.arguments).not.toBeNull();
      return made.tool_call_id;
    });
    const observation = step["observation"] as { results: readonly { source_call_id?: string; content: string }[] } | undefined;
    for (const result of observation?.results ?? []) {
      expect([undefined, ...ids]).toContain(result.source_call_id);
      expect(result.content).toBeTypeOf("string");
    }
  }
}
