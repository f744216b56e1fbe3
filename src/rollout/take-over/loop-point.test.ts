import { appendFileSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Call } from "../../gateway/call.ts";
import type { Message } from "../../gateway/conversation.ts";
import { messageKey } from "../../gateway/trace/message-key.ts";
import type { LoopState } from "../../harness/continuity.ts";
import { HandoverLost } from "../../harness/handover.ts";
import { RolloutRecorder } from "../recorder.ts";
import { loopPoint } from "./loop-point.ts";

const said = (role: "user" | "assistant", text: string): Message => ({ role, content: [{ type: "text", text }] }) as Message;
const result = (text: string): Message => ({ role: "tool", callId: text, name: "bash", content: [{ type: "text", text }], isError: false });
const state = (turns: number): LoopState => ({ turns, promptTokens: turns, completionTokens: turns, modelMs: 0, toolMs: 0 });
const [task, first, one, second] = [said("user", "task"), said("assistant", "first"), result("one"), said("assistant", "second")];
const call = (number: number, ...asked: readonly Message[]): Call => ({ number, status: "complete", conversation: { messages: asked.map(messageKey) } }) as unknown as Call;
const calls = [call(1, task), call(2, task, first, one)];

let directory: string;
let recorder: RolloutRecorder;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "mw-loop-"));
  recorder = await RolloutRecorder.open(directory, "process");
  return () => rmSync(directory, { recursive: true, force: true });
});
afterEach(() => recorder.close());

const say = async (...messages: readonly Message[]): Promise<void> => {
  for (const message of messages) {
    await recorder.message({ at: "", role: message.role, content: "" } as Parameters<RolloutRecorder["message"]>[0]);
    await recorder.history({ say: message });
  }
};
const ran = (stdout: string): Promise<void> => recorder.command({ at: "", command: stdout, code: 0, ended: "exited", cause: null, durationMs: 1, stdout: Buffer.from(stdout), stderr: Buffer.from(""), stdoutBytes: stdout.length, stderrBytes: 0 });
const linesOf = (name: string): number => readFileSync(join(directory, name), "utf8").split("\n").length - 1;
const firstTurn = async (): Promise<void> => {
  await say(task);
  await recorder.history({ state: state(0), shell: "/bin/bash", begun: [] });
  await say(first);
  await recorder.history({ act: 0, call: 1 });
  await ran("one");
  await say(one);
};

describe("where a loop goes on", () => {
  it("is behind the last whole turn, with what the next one has said, and without what was recorded of a command whose result was not", async () => {
    await firstTurn();
    await recorder.history({ state: state(1) });
    await say(second);
    await recorder.history({ act: 0, call: 2 });
    await ran("two");
    await recorder.message({ at: "", role: "tool", content: "never in the history" });
    const { turn, recorder: next } = await RolloutRecorder.takeUp(directory, "process", true);
    expect(loopPoint(turn, calls)).toEqual({ state: state(1), messages: [task, first, one], answered: calls[1], begun: new Set(), ahead: [second], shell: "/bin/bash" });
    expect(turn?.acting).toBe(true);
    expect([linesOf("transcript.jsonl"), linesOf("commands.jsonl"), next.commands]).toEqual([4, 1, 1]);
    await next.close();
  });

  it("is within the turn whose end was not written down", async () => {
    await firstTurn();
    const { turn } = await RolloutRecorder.takeUp(directory, "process", true);
    expect(loopPoint(turn, calls.slice(0, 1))).toMatchObject({ state: state(0), messages: [task], answered: calls[0], ahead: [first, one] });
    expect(turn?.acting).toBe(false);
    expect([linesOf("transcript.jsonl"), linesOf("commands.jsonl")]).toEqual([3, 1]);
  });

  it("is behind a history that was made shorter", async () => {
    await firstTurn();
    await recorder.history({ replace: [task, one], state: state(1) });
    const { turn } = await RolloutRecorder.takeUp(directory, "process", true);
    expect(loopPoint(turn, calls)).toMatchObject({ state: state(1), messages: [task, one], answered: null, ahead: [] });
  });

  it("keeps what must not begin again from an earlier machine, for the turn of which it is said", async () => {
    await say(task);
    await recorder.history({ state: state(0), shell: "/bin/bash", begun: [0] });
    await say(first);
    expect(loopPoint((await RolloutRecorder.takeUp(directory, "process", true)).turn, calls).begun).toEqual(new Set([0]));
    await say(one);
    await recorder.history({ state: state(1) });
    expect(loopPoint((await RolloutRecorder.takeUp(directory, "process", true)).turn, calls).begun).toEqual(new Set());
  });

  it("is nowhere where no loop had begun, or the answer that is being carried out is not recorded", async () => {
    await say(task);
    const before = (await RolloutRecorder.takeUp(directory, "process", true)).turn;
    expect(() => loopPoint(before, calls)).toThrow(HandoverLost);
    await recorder.history({ state: state(0), shell: "/bin/sh" });
    await say(first);
    const { turn } = await RolloutRecorder.takeUp(directory, "process", true);
    expect(() => loopPoint(turn, [])).toThrow(HandoverLost);
  });

  it("is nowhere when it has ended: all that is recorded stays, whatever its history is like", async () => {
    await firstTurn();
    await ran("two");
    await recorder.message({ at: "", role: "tool", content: "never in the history" });
    appendFileSync(join(directory, "history.jsonl"), "damaged\n");
    const { turn, recorder: next } = await RolloutRecorder.takeUp(directory, "process", false);
    expect(turn).toBe(null);
    expect([linesOf("transcript.jsonl"), linesOf("commands.jsonl"), next.commands]).toEqual([4, 2, 2]);
    await next.close();
  });
});
