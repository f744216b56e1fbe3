/** A rollout that was verified, and whose controller died before it was recorded, is as good as recorded. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import type { RolloutState } from "../rollout-state.ts";
import type { TryResult } from "../try/request.ts";

const schema = z.looseObject({ status: z.literal("scored"), reward: z.number(), rewards: z.record(z.string(), z.number()) });

/** Null where it was not, where the verdict says nothing of the agent, and of a task of several steps, after one of which another may follow. */
export async function keptResult(directory: string, { phase, stopReason }: RolloutState): Promise<TryResult | null> {
  if (phase !== "verified") return null;
  try {
    const { reward, rewards } = schema.parse(JSON.parse(await readFile(join(directory, "verdict.json"), "utf8")));
    return { outcome: "scored", reward, rewards, stopReason, error: null };
  } catch {
    return null;
  }
}
