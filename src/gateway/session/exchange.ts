/**
 * One model call between the engine and whoever waits for its answer: as a rule one response of the gateway, none after a harness has hung up, several when a retry joins.
 *
 * It is `running` until the engine has ended and the call is in the log, then `complete` (its answer can be given out again) or `over`.
 */
import type { CallId } from "../../core/ids.ts";
import type { Answer, Delta } from "../conversation.ts";
import type { GatewayFailure } from "../failure.ts";
import { AnswerSoFar, deltasOf } from "./answer-so-far.ts";
import type { RequestDigest } from "./request-digest.ts";

export type Outcome = { readonly kind: "answer"; readonly answer: Answer } | { readonly kind: "failure"; readonly failure: GatewayFailure };

/** Takes a piece of the answer; a promise holds the engine up until it resolves. */
export type DeltaListener = (delta: Delta) => void | Promise<void>;

export interface ExchangeFacts {
  readonly id: CallId;
  readonly number: number;
  /** Milliseconds since 1970. */
  readonly createdAt: number;
  /** Null for calls that nothing can retry. */
  readonly digest: RequestDigest | null;
}

export class Exchange {
  readonly facts: ExchangeFacts;
  /** Of a running one. */
  soFar = new AnswerSoFar();
  readonly outcome: Promise<Outcome>;
  /** Ends the generation. */
  readonly abort = new AbortController();
  state: "running" | "complete" | "over" = "running";
  /** Somebody has all of the answer, as far as can be known. */
  delivered = false;
  replays = 0;
  /** Of the answer. */
  chars = 0;
  readonly #listeners = new Set<DeltaListener>();
  readonly #onAlone: (exchange: Exchange) => void;
  #settle: (outcome: Outcome) => void = () => undefined;

  /** `onAlone`: the last who waited has left. */
  constructor(facts: ExchangeFacts, onAlone: (exchange: Exchange) => void) {
    this.facts = facts;
    this.#onAlone = onAlone;
    this.outcome = new Promise((resolve) => (this.#settle = resolve));
  }

  /** Nobody waits for it, and nobody has it all. */
  get abandoned(): boolean {
    return this.#listeners.size === 0 && !this.delivered && this.state !== "over";
  }

  /** Whether pieces go anywhere now. */
  get heard(): boolean {
    return this.#listeners.size > 0;
  }

  /** From now on the listener gets every piece, first those that came before. The returned function ends that; it is told whether the whole answer has arrived. */
  join(listen: (facts: ExchangeFacts) => DeltaListener): (delivered: boolean) => void {
    const listener = listen(this.facts);
    if (this.state === "running") for (const delta of deltasOf(this.soFar.blocks)) void listener(delta);
    this.#listeners.add(listener);
    return (delivered) => {
      if (!this.#listeners.delete(listener)) return;
      if (delivered) this.delivered = true;
      if (this.#listeners.size === 0) this.#onAlone(this);
    };
  }

  push(delta: Delta): void | Promise<void> {
    this.soFar.add(delta);
    let waits: Promise<unknown> | undefined;
    for (const listener of this.#listeners) {
      const wait = listener(delta);
      if (wait !== undefined) waits = waits === undefined ? wait : Promise.all([waits, wait]);
    }
    return waits?.then(() => undefined);
  }

  settle(outcome: Outcome): void {
    this.state = outcome.kind === "answer" ? "complete" : "over";
    this.soFar = new AnswerSoFar();
    this.chars = outcome.kind === "answer" ? sizeOf(outcome.answer) : 0;
    this.#settle(outcome);
  }
}

function sizeOf(answer: Answer): number {
  const blocks = answer.blocks.reduce((sum, block) => sum + (block.type === "tool_call" ? block.arguments.length : block.text.length), 0);
  // A token's alternatives, roughly.
  return blocks + (answer.logprobs?.length ?? 0) * 200;
}
