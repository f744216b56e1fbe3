/** Answers of model calls under way, put together from what the stream of their rollout tells. */
import type { CallsUpdate } from "../../../src/server/runs/contract/updates.ts";

type Piece = CallsUpdate["calls"][number]["pieces"][number];

export interface LiveCall {
  readonly call: number;
  /** Milliseconds since 1970. */
  readonly at: number;
  /** It stands until its record is shown in its place. */
  readonly ended: boolean;
  readonly blocks: readonly Piece[];
}

/** In the order in which they began. */
export function takeCalls(before: readonly LiveCall[], { ended, calls }: CallsUpdate): readonly LiveCall[] {
  // What had ended before is recorded, and shown, by now.
  const kept = new Map(before.filter((call) => !call.ended).map((call) => [call.call, ended.includes(call.call) ? { ...call, ended: true } : call]));
  for (const { call, at, fresh, pieces } of calls) {
    const blocks = fresh ? [] : [...(kept.get(call)?.blocks ?? [])];
    for (const piece of pieces) {
      const old = blocks[piece.block];
      blocks[piece.block] = old === undefined ? piece : { ...old, text: old.text + piece.text };
    }
    kept.set(call, { call, at, ended: false, blocks });
  }
  return [...kept.values()];
}
