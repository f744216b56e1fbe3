/** Text found in what the agents of a run said, saw and did. */
import { z } from "zod";
import { count } from "./common.ts";

export const searchHitSchema = z.object({ rollout: z.string(), task: z.string(), attempt: count, where: z.enum(["conversation", "command", "output", "verifier", "instruction"]), ref: count.nullable(), before: z.string(), match: z.string(), after: z.string() });
export type SearchHit = z.infer<typeof searchHitSchema>;

/** Lines of the search's stream: hits as they are found, how far it is, and its end. */
export const searchLineSchema = z.discriminatedUnion("type", [
  z.object({ type: z.literal("hit"), hit: searchHitSchema }),
  z.object({ type: z.literal("progress"), rollouts: count, of: count, hits: count }),
  z.object({ type: z.literal("end"), rollouts: count, of: count, hits: count, stopped: z.enum(["complete", "hits", "bytes"]) }),
]);
export type SearchLine = z.infer<typeof searchLineSchema>;
