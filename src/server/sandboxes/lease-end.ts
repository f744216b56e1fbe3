/**
 * What becomes of a sandbox when its lease ends: it is killed, or paused where that was asked for.
 *
 * A pause may fail, mostly because the disk is full. What was written is worth more to its owner than its place to others, and a disk has room again when somebody looks after it: so the
 * sandbox runs on and the pause is tried again, for a bounded while, then it is killed all the same. Processes that can never be kept do not cost the files: those are kept alone.
 */
import { MwError, messageOf, toMwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { SandboxEntry } from "./sandbox-entry.ts";

export interface LeaseEnd {
  readonly runtime: Pick<Runtime, "now">;
  readonly log: (line: string) => void;
  pause(entry: SandboxEntry, memory: boolean): Promise<void>;
  kill(entry: SandboxEntry): Promise<void>;
  /** Has `endLease` called again at the entry's new end. */
  watch(entry: SandboxEntry): void;
}

/** Rejects with what keeps it from being killed. */
export async function endLease(entry: SandboxEntry, end: LeaseEnd): Promise<void> {
  if (isOver(entry)) return;
  if (entry.facts.request.onTimeout === "kill") {
    await end.kill(entry);
    return;
  }
  const { runtime, log } = end;
  try {
    await pause(entry, end);
    if (entry.lateSince !== null) log(`${entry.id} is paused, ${seconds(runtime.now() - entry.lateSince)} s after the end of its lease`);
  } catch (error) {
    const now = runtime.now();
    // Somebody else ended it, or made its lease longer.
    if (isOver(entry) || now < entry.endAt) return;
    const first = entry.lateSince === null;
    entry.lateSince ??= now;
    const leftMs = entry.lateSince + LIMITS.latePauseMs - now;
    if (leftMs <= 0 || toMwError(error).code === "unsupported") {
      log(`${entry.id} could not be paused at the end of its lease${first ? "" : `, for ${seconds(now - entry.lateSince)} s`}, and is killed: ${messageOf(error)}`);
      await end.kill(entry);
      return;
    }
    if (first) log(`${entry.id} could not be paused at the end of its lease, and runs on for at most ${seconds(leftMs)} s until it can: ${messageOf(error)}`);
    entry.endAt = now + Math.min(leftMs, LIMITS.latePauseTryMs);
    end.watch(entry);
  }
}

async function pause(entry: SandboxEntry, end: LeaseEnd): Promise<void> {
  const { pauseMemory } = entry.facts.request;
  try {
    await end.pause(entry, pauseMemory);
  } catch (error) {
    if (!pauseMemory || !(error instanceof MwError) || error.code !== "unsupported") throw error;
    end.log(`the files of ${entry.id} alone are kept at the end of its lease: ${messageOf(error)}`);
    await end.pause(entry, false);
  }
}

function isOver({ gone, state }: SandboxEntry): boolean {
  return gone || state === "paused";
}

function seconds(ms: number): number {
  return Math.round(ms / 1000);
}
