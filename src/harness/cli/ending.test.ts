import { describe, expect, it } from "vitest";
import type { SessionTotals } from "../../gateway/session.ts";
import type { ExecExit } from "../../sandbox/sandbox.ts";
import type { CliDescriptor } from "./descriptor.ts";
import { CLI_DESCRIPTORS } from "./descriptors/index.ts";
import { endOfCli } from "./ending.ts";
import { genericCli } from "./generic.ts";

const exit = (code: number, changes: Partial<ExecExit> = {}): ExecExit => ({ code, signal: null, ended: "exited", cause: null, durationMs: 1, stdoutBytes: 0, stderrBytes: 0, truncated: false, ...changes });
const totals = (changes: Partial<SessionTotals> = {}): SessionTotals => ({ complete: 1, incomplete: 0, failed: 0, promptTokens: 1, cachedTokens: 0, completionTokens: 1, modelMs: 1, policyVersions: [], exhausted: null, lastFailure: null, ...changes });
const output = (stdout: string, stderr = "") => ({ stdout: Buffer.from(stdout), stderr: Buffer.from(stderr) });
const NONE = output("");
const generic = genericCli("true");
const FAILURE = { kind: "upstream", message: "502 from the server" };

function descriptorOf(name: string): CliDescriptor {
  const found = CLI_DESCRIPTORS.find((descriptor) => descriptor.name === name);
  if (found === undefined) throw new Error(name);
  return found;
}

/** The outcome in one word: a stop reason, or the code of what was thrown. */
function verdict(descriptor: CliDescriptor, code: number, text: { stdout: Uint8Array; stderr: Uint8Array }, of: SessionTotals | null = null): string {
  try {
    return endOfCli(descriptor, exit(code), text, of).stopReason;
  } catch (error) {
    return (error as { readonly code: string }).code;
  }
}

describe("the end of a CLI", () => {
  it("is what the machine did to it, before anything that it says", () => {
    expect(endOfCli(generic, exit(137, { ended: "timed_out" }), NONE, totals()).stopReason).toBe("agent_time");
    expect(endOfCli(generic, exit(137, { cause: "oom_killed", signal: "SIGKILL" }), NONE, totals()).stopReason).toBe("oom_killed");
    expect(endOfCli(generic, exit(137, { ended: "killed" }), NONE, null).stopReason).toBe("cancelled");
    expect(() => endOfCli(generic, exit(137, { ended: "lost" }), NONE, null)).toThrow(expect.objectContaining({ code: "sandbox_failed" }));
  });

  it("is a budget of the session, whatever the CLI made of the refusals", () => {
    for (const [exhausted, stop] of [["calls", "turns"], ["tokens", "tokens"], ["timeMs", "agent_time"]] as const) {
      expect(verdict(generic, 1, NONE, totals({ exhausted }))).toBe(stop);
      expect(verdict(generic, 0, NONE, totals({ exhausted }))).toBe(stop);
    }
  });

  it("is the CLI's own failure when it never got as far as an answer", () => {
    expect(verdict(generic, 1, output("", "Cannot find module\n"), totals({ complete: 0 }))).toBe("environment");
    expect(() => endOfCli(generic, exit(1), output("", "Cannot find module\n"), totals({ complete: 0 }))).toThrow(/Cannot find module/);
    expect(verdict(generic, 1, NONE, totals({ complete: 0, failed: 3, lastFailure: FAILURE }))).toBe("upstream_failed");
    expect(verdict(generic, 1, NONE, totals())).toBe("crashed");
    expect(verdict(generic, 0, NONE, totals({ complete: 0 }))).toBe("finished");
    // Its own words say that the conversation was the matter.
    expect(verdict(descriptorOf("continue"), 1, output("", '{"status":"error","message":"Context length exceeded: 400"}'), totals({ complete: 0, failed: 1 }))).toBe("context_overflow");
    // It says 0 whatever happened.
    expect(verdict(descriptorOf("pi"), 0, output('{"type":"agent_end","messages":[{"stopReason":"error","errorMessage":"400 no"}]}'), totals({ complete: 0, failed: 1 }))).toBe("environment");
  });

  it("is not decided by texts of a CLI that says that all is well", () => {
    expect(verdict(descriptorOf("claude-code"), 0, output('"terminal_reason":"api_error"'))).toBe("finished");
  });

  it("blames the model server only when the gateway saw it fail", () => {
    const said = output('{"type":"turn.failed","error":{"message":"unexpected status 500"}}');
    expect(verdict(descriptorOf("codex"), 1, said, null)).toBe("upstream_failed");
    expect(verdict(descriptorOf("codex"), 1, said, totals({ lastFailure: FAILURE }))).toBe("upstream_failed");
    expect(verdict(descriptorOf("codex"), 1, said, totals())).toBe("crashed");
    // It counts as seen until a call is answered, with or without words that a rule knows.
    expect(verdict(generic, 1, NONE, totals({ lastFailure: FAILURE }))).toBe("upstream_failed");
    expect(verdict(generic, 0, NONE, totals({ lastFailure: FAILURE }))).toBe("finished");
  });

  it("takes no exit code or text of a CLI for its own failure once the model has answered: the agent can make it say that", () => {
    expect(verdict(descriptorOf("gemini-cli"), 41, NONE, totals({ complete: 0 }))).toBe("environment");
    expect(verdict(descriptorOf("gemini-cli"), 41, output("", "Invalid auth method selected."), totals())).toBe("crashed");
    for (const descriptor of CLI_DESCRIPTORS) {
      for (const rule of descriptor.endings) {
        // Whatever the pattern, a text without escapes is as good a try as any.
        for (const code of rule.codes ?? [1]) expect(() => verdict(descriptor, code, output(rule.text ?? ""), totals())).not.toThrow();
      }
    }
  });

  // Texts as these versions wrote them when their requests were answered so.
  it.each<[string, number, string, string, string]>([
    ["claude-code", 1, '{"is_error":true,"terminal_reason":"api_error","result":"Prompt is too long","type":"result"}\n', "", "context_overflow"],
    ["claude-code", 1, '{"is_error":true,"terminal_reason":"prompt_too_long","result":"Prompt is too long · the request is ~2000 tokens"}\n', "", "context_overflow"],
    ["claude-code", 1, '{"terminal_reason":"api_error","result":"API Error: 500"}\n', "", "upstream_failed"],
    ["claude-code", 1, '{"message":{"content":[{"type":"text","text":"{\\"terminal_reason\\":\\"api_error\\"}"}]}}\n', "", "crashed"],
    ["codex", 1, '{"type":"turn.failed","error":{"message":"Codex ran out of room in the model\'s context window. Start a new thread"}}\n', "", "context_overflow"],
    ["codex", 1, '{"type":"turn.failed","error":{"message":"Incomplete response returned, reason: max_output_tokens"}}\n', "", "tokens"],
    ["codex", 1, '{"type":"turn.failed","error":{"message":"unexpected status 401 Unauthorized: bad key"}}\n', "", "upstream_failed"],
    ["gemini-cli", 144, '{"type":"result","status":"error","error":{"type":"unknown","message":"[API Error: {\\"message\\":\\"The input token count (2000) exceeds the maximum number of tokens allowed (1000).\\"}]"}}\n', "noise", "context_overflow"],
    ["gemini-cli", 145, '{"type":"result","status":"error","error":{"type":"unknown","message":"[API Error: bad key]"}}\n', "", "upstream_failed"],
    ["gemini-cli", 41, "", "Invalid auth method selected.", "environment"],
    ["gemini-cli", 53, "", "", "turns"],
    ["qwen-code", 1, '{"type":"result","is_error":true,"error":{"message":"[API Error: 400 This model\'s maximum context length is 1000 tokens.]"}}', "", "context_overflow"],
    ["qwen-code", 1, '{"type":"result","is_error":true,"error":{"message":"[API Error: 401 bad key]"}}', "", "upstream_failed"],
    ["qwen-code", 53, "", "", "turns"],
    ["opencode", 1, '{"type":"error","error":{"name":"ContextOverflowError","data":{}}}\n', "", "context_overflow"],
    ["opencode", 1, '{"type":"error","error":{"name":"ContextOverflowError"}}\n{"type":"step_finish","part":{"reason":"stop"}}\n', "", "finished"],
    ["opencode", 1, '{"type":"step_finish","part":{"reason":"stop"}}\n{"type":"error","error":{"name":"APIError","data":{"message":"bad key"}}}\n', "", "upstream_failed"],
    ["pi", 0, '{"type":"agent_end","messages":[{"role":"assistant","stopReason":"error","errorMessage":"400 x"}]}\n{"type":"compaction_start","reason":"overflow"}\n', "", "context_overflow"],
    ["pi", 0, '{"type":"agent_end","messages":[{"role":"assistant","stopReason":"error","timestamp":1,"errorMessage":"401 bad key"}]}\n', "", "upstream_failed"],
    ["pi", 0, '{"type":"auto_retry_end","success":false,"attempt":3,"finalError":"500 boom"}\n', "", "upstream_failed"],
    ["pi", 0, '{"type":"agent_end","messages":[{"role":"assistant","content":[{"type":"text","text":"\\"stopReason\\":\\"error\\",\\"errorMessage\\":\\"x\\"}]}"}],"stopReason":"stop"}]}\n', "", "finished"],
    ["continue", 1, "", '{"status":"error","message":"Context length exceeded: Error: 400"}', "context_overflow"],
    ["continue", 1, "", '{"status":"error","message":"401 bad key"}', "upstream_failed"],
    ["mini-swe-agent", 1, "", "│ 514 │\nContextWindowExceededError: litellm.ContextWindowExceededError: \nlitellm.BadRequestError", "context_overflow"],
    ["mini-swe-agent", 1, "", "AuthenticationError: litellm.AuthenticationError: AuthenticationError", "upstream_failed"],
    ["mini-swe-agent", 1, "", "KeyError: 'x'", "crashed"],
  ])("of %s with code %i is read off its last words (%#)", (name, code, stdout, stderr, expected) => {
    expect(verdict(descriptorOf(name), code, output(stdout, stderr))).toBe(expected);
  });
});
