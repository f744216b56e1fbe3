/** What a rollout has asked its model for by itself, in the try whose calls are in its directory and in those that this one goes on with. */
import { join } from "node:path";
import { NO_TOKENS, plusTokens, tokensOf, type Call, type Tokens } from "../gateway/call.ts";
import { readCalls } from "../gateway/log/read-calls.ts";
import { readParent } from "./checkpoint/parent.ts";
import type { Untold } from "./events.ts";
import type { RolloutState } from "./rollout-state.ts";

/** `calls`: all of its log, of which those of a rollout that it branched from are paid for there. */
export async function askedIn(directory: string, calls: Iterable<Call> | AsyncIterable<Call> = readCalls(join(directory, "calls.jsonl"))): Promise<Tokens> {
  const before = (await readParent(directory))?.calls ?? 0;
  let tokens = NO_TOKENS;
  for await (const call of calls) if (call.number > before) tokens = plusTokens(tokens, tokensOf(call));
  return tokens;
}

/** Of a rollout whose try ends now: what no `rollout_ended` tells, which tells of each step whose agent has come to an end. */
export function untold({ phase, ...told }: RolloutState, { asked }: { readonly asked?: Tokens }): Untold {
  if (phase !== "running" || asked === undefined) return {};
  const rest = (name: keyof Tokens): number => Math.max(0, asked[name] - told[name]);
  return { promptTokens: rest("promptTokens"), cachedTokens: rest("cachedTokens"), completionTokens: rest("completionTokens") };
}
