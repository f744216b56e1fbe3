/** The sampling seed of one rollout: equal for equal runs, different for each attempt, which would otherwise all be given the same answers. */
import { createHash } from "node:crypto";
import type { Upstream } from "../harness/harness.ts";

/** `seed` is the rollout's own, drawn from the run's. Without a sampling seed the server draws as it likes. */
export function withOwnSeed(upstream: Upstream, seed: string): Upstream {
  const given = upstream.sampling["seed"];
  if (given === undefined) return upstream;
  // Servers take a signed number of 32 bits at the least.
  const own = createHash("sha256").update(`${given}\0${seed}`).digest().readUInt32BE(0) >>> 1;
  return { ...upstream, sampling: { ...upstream.sampling, seed: own } };
}
