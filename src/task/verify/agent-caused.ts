/**
 * Failures of handling what the agent left, told apart from failures of the machinery: a tree too deep to be listed, a working directory that is a link to itself,
 * a disk so full that nothing can be restored. They are the agent's doing if the verifier works without its work, and must not be a way to a rollout without a score.
 */
import { MwError, type ErrorCode } from "../../core/errors.ts";
import type { ExecExit, Sandbox } from "../../sandbox/sandbox.ts";
import type { TestOutcome } from "./run-tests.ts";

/** What a machine or a workspace answers about files, users and directories in it. */
const ANSWERS: ReadonlySet<ErrorCode> = new Set<ErrorCode>(["invalid_input", "not_found", "conflict", "limit_exceeded"]);
/** The same, where the answer has no code of its own. */
const ERRNOS: ReadonlySet<unknown> = new Set(["ENOSPC", "EDQUOT", "ENAMETOOLONG", "ELOOP", "EMLINK", "EPERM", "EACCES", "EROFS", "ENXIO"]);

export function agentCaused(error: unknown): error is MwError {
  // What the maker of machines refuses was asked by us, whatever the agent left: a workspace whose keeper died is not the agent's doing.
  if (!(error instanceof MwError) || error.facts["native"] !== undefined) return false;
  return ANSWERS.has(error.code) || (error.code === "sandbox_failed" && ERRNOS.has(error.facts["errno"]));
}

/** In the agent's own machine its survivors can end every helper of ours: as long as the machine itself lives, they are the likelier cause. */
export async function agentCausedInPlace(error: unknown, sandbox: Sandbox): Promise<boolean> {
  if (agentCaused(error)) return true;
  if (!(error instanceof MwError) || error.code !== "sandbox_failed") return false;
  return sandbox.metrics().then(
    () => true,
    () => false,
  );
}

/** A verification that could not begin, in the form of one that gave no reward. */
export function brokenOutcome(error: unknown, now: number): TestOutcome {
  const message = error instanceof Error ? error.message : String(error);
  const shown = message.length > 500 ? `${message.slice(0, 300)} ... ${message.slice(-100)}` : message;
  return { reading: { kind: "error", error: { kind: "crashed", message: shown } }, exit: NOT_RUN, output: Buffer.from(`${shown}\n`), writtenAt: new Date(now).toISOString(), notes: [] };
}

const NOT_RUN: ExecExit = { code: 126, signal: null, ended: "killed", cause: null, durationMs: 0, stdoutBytes: 0, stderrBytes: 0, truncated: false };
