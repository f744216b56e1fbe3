/** The sampling seed of one rollout: equal for equal runs, different for each attempt, which would otherwise all be given the same answers. */
import { createHash } from "node:crypto";

/** `given`: of the run; `seed`: the rollout's own, drawn from the run's. A signed number of 32 bits, which every server takes. */
export function ownSamplingSeed(given: number, seed: string): number {
  return createHash("sha256").update(`${given}\0${seed}`).digest().readUInt32BE(0) >>> 1;
}
