/** The capability sets of `capabilities.json` as a bit mask for the spawner. */
import { readFileSync } from "node:fs";
import { z } from "zod";

const Entry = z.strictObject({ names: z.array(z.string()).min(1), reason: z.string().min(10) });
const Sets = z.strictObject({ keep: z.array(Entry), drop: z.array(Entry), bits: z.array(z.string()) });
export type CapabilitySets = z.infer<typeof Sets>;

export function loadCapabilitySets(): CapabilitySets {
  return Sets.parse(JSON.parse(readFileSync(new URL("./capabilities.json", import.meta.url), "utf8")));
}

/** Bit n is set when the capability with number n stays in the machine's bounding set. Every known capability must be judged exactly once. */
export function capabilityMask(sets: CapabilitySets): bigint {
  const kept = sets.keep.flatMap((entry) => entry.names);
  const judged = [...kept, ...sets.drop.flatMap((entry) => entry.names)];
  if (judged.length !== sets.bits.length || new Set(judged).size !== judged.length) throw new Error("Every capability has to be either kept or dropped, once.");
  let mask = 0n;
  for (const name of kept) {
    const bit = sets.bits.indexOf(name);
    if (bit < 0) throw new Error(`The capability sets name ${name}, which has no number.`);
    mask |= 1n << BigInt(bit);
  }
  return mask;
}
