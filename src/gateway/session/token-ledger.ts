/**
 * The token ids of a session's calls, each distinct stretch once: a call is what it kept of an earlier one, and its own ids after that, in one growing array.
 *
 * What a call shares with an earlier one is found by comparing ids with the calls that were extended or made last; that is where histories continue.
 */
import type { PromptReference } from "../call.ts";
import type { CallTokens } from "../upstreams/upstream.ts";

/** Calls whose ids a new prompt is compared with. */
const TIPS = 8;

interface Link {
  readonly base: number | null;
  readonly kept: number;
  /** Of its own ids, in the array. */
  readonly start: number;
  readonly length: number;
}

export class TokenLedger {
  readonly #links = new Map<number, Link>();
  /** Most recent last. */
  #tips: number[] = [];
  #ids = new Uint32Array(256);
  #used = 0;

  /** What the call's prompt shares with an earlier call's prompt and completion; null when that is nothing. */
  add(call: number, { promptIds, completionIds }: CallTokens): PromptReference | null {
    let base: number | null = null;
    let kept = 0;
    for (const tip of this.#tips) {
      const shared = this.#shared(tip, promptIds);
      // Of equals the latest.
      if (shared > 0 && shared >= kept) [base, kept] = [tip, shared];
    }
    const length = promptIds.length - kept + completionIds.length;
    this.#reserve(length);
    const start = this.#used;
    for (let at = kept; at < promptIds.length; at++) this.#ids[this.#used++] = promptIds[at] ?? 0;
    for (const id of completionIds) this.#ids[this.#used++] = id;
    this.#links.set(call, { base, kept, start, length });
    this.#tips = [...this.#tips.filter((tip) => tip !== base), call].slice(-TIPS);
    return base === null ? null : { call: base, kept };
  }

  /** Prompt and completion of an added call. */
  ids(call: number): readonly number[] {
    const ids = new Uint32Array(this.#total(call));
    for (const { from, ids: own } of this.#stretches(call)) ids.set(own, from);
    return Array.from(ids);
  }

  /** Length of the common beginning of a call's ids and a prompt. */
  #shared(call: number, prompt: readonly number[]): number {
    let shared = prompt.length;
    for (const { from, ids } of this.#stretches(call)) {
      if (from >= shared) continue;
      const end = Math.min(ids.length, shared - from);
      let at = 0;
      while (at < end && ids[at] === prompt[from + at]) at++;
      // Later stretches count only when this one agrees to its end.
      if (at < ids.length) shared = Math.min(shared, from + at);
    }
    return Math.min(shared, this.#total(call));
  }

  #total(call: number): number {
    const link = this.#links.get(call);
    return link === undefined ? 0 : link.kept + link.length;
  }

  /** The pieces of a call's ids, last first. */
  *#stretches(call: number): Generator<{ readonly from: number; readonly ids: Uint32Array }> {
    let end = Infinity;
    for (let at: number | null = call; at !== null; ) {
      const link = this.#links.get(at);
      if (link === undefined) return;
      if (end > link.kept) yield { from: link.kept, ids: this.#ids.subarray(link.start, link.start + Math.min(link.length, end - link.kept)) };
      end = Math.min(end, link.kept);
      at = end === 0 ? null : link.base;
    }
  }

  #reserve(count: number): void {
    if (this.#used + count <= this.#ids.length) return;
    const larger = new Uint32Array(Math.ceil((this.#used + count) * 1.5));
    larger.set(this.#ids.subarray(0, this.#used));
    this.#ids = larger;
  }
}
