/** What one reader is told of the answers of calls under way, look by look: what is new of each. */
import type { CallInFlight, CallWatch } from "../../gateway/call-board.ts";
import type { CallsUpdate } from "./contract/updates.ts";

/** Of one call in one look, characters. What came faster is told in the next ones. */
const CHARACTERS = 32 * 1024;

interface Told {
  readonly restarts: number;
  /** Characters of each block. */
  readonly lengths: number[];
}

type CallNews = CallsUpdate["calls"][number];

export class LiveCalls {
  readonly #watch: CallWatch;
  readonly #told = new Map<CallInFlight, Told>();

  constructor(watch: CallWatch) {
    this.#watch = watch;
  }

  /** Since the last look; null when there is nothing. */
  news(): CallsUpdate | null {
    const now = new Set(this.#watch.calls());
    const ended: number[] = [];
    for (const call of this.#told.keys()) {
      if (now.has(call)) continue;
      this.#told.delete(call);
      ended.push(call.number);
    }
    const calls = [...now].flatMap((call) => this.#of(call) ?? []);
    return ended.length === 0 && calls.length === 0 ? null : { ended, calls };
  }

  #of(call: CallInFlight): CallNews | null {
    const { blocks, restarts } = call.answer;
    const before = this.#told.get(call);
    const fresh = before?.restarts !== restarts;
    const told = fresh ? { restarts, lengths: [] } : before;
    this.#told.set(call, told);
    const pieces: CallNews["pieces"] = [];
    let room = CHARACTERS;
    for (const [index, block] of blocks.entries()) {
      const [text, name] = block.type === "tool_call" ? [block.arguments, block.name] : [block.text, null];
      const from = told.lengths[index];
      if (from === text.length || room === 0) continue;
      const piece = text.slice(from ?? 0, (from ?? 0) + room);
      room -= piece.length;
      told.lengths[index] = (from ?? 0) + piece.length;
      pieces.push({ block: index, type: block.type, name, text: piece });
    }
    return fresh || pieces.length > 0 ? { call: call.number, at: call.createdAt, fresh, pieces } : null;
  }
}
