/**
 * One rollout's access to the model. Every call takes the same way: a retry is answered from its earlier call; a new one passes the budget, gets the session's model and
 * sampling, is generated, and is in the log before anybody hears of its end.
 *
 * A harness that hangs up in the middle of an answer may be about to try again: the generation goes on for a moment in which a retry can join, then it is aborted.
 */
import { setMaxListeners } from "node:events";
import { MwError } from "../../core/errors.ts";
import { newId, type SessionId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { CallBoard } from "../call-board.ts";
import type { Call, CallStatus } from "../call.ts";
import type { Delta, Sampling, TurnRequest } from "../conversation.ts";
import { GatewayFailure, internalFailure, messageForRecord } from "../failure.ts";
import type { GatewaySession, SessionOptions, SessionTotals } from "../session.ts";
import { conversationFacts } from "../trace/message-key.ts";
import type { Generation, UpstreamFacts } from "../upstreams/upstream.ts";
import { emptyRecord, type Asked, type AskedBody } from "./asked.ts";
import { AnswerSoFar } from "./answer-so-far.ts";
import { Budget } from "./budget.ts";
import { Exchange, type DeltaListener, type ExchangeFacts } from "./exchange.ts";
import { Replays } from "./replays.ts";
import { SentHistory } from "./sent-history.ts";

export interface Hearing {
  readonly exchange: Exchange;
  /** Says whether the whole answer has arrived. */
  readonly leave: (delivered: boolean) => void;
}

export interface SessionSurroundings {
  readonly runtime: Runtime;
  readonly facts: UpstreamFacts;
  /** Shows its calls; absent where nobody can look. */
  readonly board: CallBoard | undefined;
  /** Told once, when nothing more is accepted. */
  readonly onClosing: () => void;
}

export class Session implements GatewaySession {
  readonly id: SessionId;
  readonly token: string;
  readonly path: string;
  readonly options: SessionOptions;
  readonly #around: SessionSurroundings;
  readonly #budget: Budget;
  readonly #replays: Replays;
  readonly #history = new SentHistory();
  readonly #running = new Set<Exchange>();
  /** Nothing of their answers has come yet. */
  readonly #thinking = new Set<Exchange>();
  readonly #listeners = new Set<(thinking: number) => void>();
  readonly #closing = new AbortController();
  #closed: Promise<SessionTotals> | null = null;
  #numbers: number;
  #refusals = 0;
  #counting = 0;

  constructor(id: SessionId, token: string, options: SessionOptions, around: SessionSurroundings) {
    // As many calls may listen to it as are in flight.
    setMaxListeners(0, this.#closing.signal);
    this.id = id;
    this.token = token;
    this.path = `/s/${id}`;
    this.#numbers = options.callsBefore ?? 0;
    this.options = options;
    this.#around = around;
    this.#budget = new Budget(options.budgets, around.runtime);
    this.#replays = new Replays(around.runtime);
    const { earlier = [] } = options;
    if (options.token === undefined) for (const call of earlier) this.#budget.carry(call);
    else {
      this.#budget.goOn(earlier);
      this.#replays.goOn(earlier);
    }
    for (const call of earlier) {
      if (call.tokens !== null && call.answer !== null) this.#history.add(call.number, call.conversation, call.answer, call.tokens);
    }
  }

  get inFlight(): number {
    return this.#running.size;
  }

  get facts(): UpstreamFacts {
    return this.#around.facts;
  }

  totals(): SessionTotals {
    return this.#budget.totals();
  }

  onThinking(listener: (thinking: number) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The call that answers a request, running or ended, with one more who hears of it. Rejects `GatewayFailure` for what never reaches the engine. */
  async ask(asked: Asked, listen: (facts: ExchangeFacts) => DeltaListener, signal: AbortSignal): Promise<Hearing> {
    this.#refuseWhenClosed();
    const earlier = asked.digest === null ? null : await this.#replays.find(asked.digest, asked.saysRetry, signal);
    this.#refuseWhenClosed();
    if (earlier !== null) {
      const leave = earlier.join(listen);
      await this.#again(earlier);
      return { exchange: earlier, leave };
    }
    this.#begin();
    const { runtime } = this.#around;
    const exchange = new Exchange({ id: newId("call", runtime), number: ++this.#numbers, createdAt: runtime.now(), digest: asked.digest }, (alone) => this.#alone(alone));
    const leave = exchange.join(listen);
    if (asked.digest !== null) this.#replays.add(exchange);
    this.#running.add(exchange);
    this.#thinking.add(exchange);
    this.#tellThinking();
    this.#run(exchange, asked).catch((error: unknown) => {
      // A bug of ours, or of a listener: nobody may wait for ever.
      if (exchange.state !== "running") return;
      const failure = internalFailure(error);
      this.#budget.end({ status: "failed", failure, promptTokens: 0, cachedTokens: 0, completionTokens: 0, policyVersions: [] });
      this.#running.delete(exchange);
      this.#thinking.delete(exchange);
      exchange.settle({ kind: "failure", failure });
    });
    return { exchange, leave };
  }

  async complete(request: TurnRequest, options: { readonly onDelta?: (delta: Delta) => void | Promise<void>; readonly signal: AbortSignal }): Promise<Call> {
    const { signal, onDelta = (): undefined => undefined } = options;
    signal.throwIfAborted();
    let record: (call: Call) => void = () => undefined;
    const recorded = new Promise<Call>((resolve) => (record = resolve));
    const { exchange, leave } = await this.ask({ dialect: "turn", route: { model: null, stream: null }, body: request, request, digest: null, saysRetry: false, onRecord: record }, () => onDelta, signal);
    const onAbort = (): void => exchange.abort.abort(new GatewayFailure("cancelled", "The call was cancelled.", { cause: signal.reason }));
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
    try {
      const outcome = await exchange.outcome;
      signal.throwIfAborted();
      if (outcome.kind === "failure") throw outcome.failure;
      return await recorded;
    } finally {
      signal.removeEventListener("abort", onAbort);
      leave(true);
    }
  }

  /** Tokens of a conversation, or null where they cannot be counted. Throws `rate_limited` when too many are being counted. */
  async countTokens(request: TurnRequest, signal: AbortSignal): Promise<number | null> {
    if (this.#counting >= LIMITS.countsInFlightPerSession) throw new GatewayFailure("rate_limited", `The tokens of ${LIMITS.countsInFlightPerSession} conversations are being counted.`, { retryAfterMs: 1000 });
    this.#counting++;
    try {
      return await this.options.upstream.countTokens({ ...request, model: this.options.model }, AbortSignal.any([signal, this.#closing.signal]));
    } catch (error) {
      this.#refuseWhenClosed();
      throw error;
    } finally {
      this.#counting--;
    }
  }

  /** Throws once so many requests were refused that another is not worth reading. */
  refuseFlood(): void {
    this.#refuseWhenClosed();
    if (this.#refusals >= LIMITS.refusalsRead) throw new GatewayFailure("budget", `More than ${LIMITS.refusalsRead} requests of this session were refused.`);
  }

  /** Records a request that was refused before it reached the engine, for people who wonder; only the first few. */
  async refused(asked: AskedBody, failure: GatewayFailure): Promise<void> {
    this.#refusals++;
    if (this.#closed !== null || this.#refusals > LIMITS.refusalsRecorded) return;
    const { runtime } = this.#around;
    const facts = { id: newId("call", runtime), number: ++this.#numbers, createdAt: runtime.now() };
    await this.#append({ ...this.#record(facts, asked), failure: { kind: failure.kind, message: failure.message } }).catch(() => undefined);
  }

  close(drainMs: number = LIMITS.sessionDrainMs): Promise<SessionTotals> {
    this.#closed ??= this.#close(drainMs);
    return this.#closed;
  }

  async #close(drainMs: number): Promise<SessionTotals> {
    this.#around.onClosing();
    this.#closing.abort("closing");
    const over = new GatewayFailure("closed", "The session is closed.");
    // A retry is refused from now on, so nobody can come for these.
    for (const exchange of this.#running) if (exchange.abandoned) exchange.abort.abort(over);
    const idle = new AbortController();
    const drained = this.#whenIdle().then(() => idle.abort("idle"));
    await this.#around.runtime.sleep(drainMs, idle.signal).catch(() => undefined);
    for (const exchange of this.#running) exchange.abort.abort(over);
    await drained;
    this.#replays.clear();
    return this.totals();
  }

  async #whenIdle(): Promise<void> {
    while (this.#running.size > 0) await Promise.all([...this.#running].map((exchange) => exchange.outcome));
  }

  #refuseWhenClosed(): void {
    if (this.#closed !== null) throw new GatewayFailure("closed", "The session is closed.");
  }

  /** Throws when the budget, or the room in the log, is used up. */
  #begin(): void {
    try {
      if (this.options.log.full === true) throw new GatewayFailure("budget", "This session's log of calls is full.");
      this.#budget.begin();
    } catch (error) {
      this.#refusals++;
      throw error;
    }
  }

  async #again(exchange: Exchange): Promise<void> {
    exchange.replays++;
    // Before its end it is part of the call's own record.
    if (exchange.state === "complete") await this.options.log.replayed(exchange.facts.number).catch(() => undefined);
  }

  /** The last client of a call has gone. */
  #alone(exchange: Exchange): void {
    this.#replays.changed();
    if (exchange.state !== "running") return;
    const hungUp = new GatewayFailure("cancelled", "The harness hung up in the middle of the answer.");
    const waiting = this.#around.runtime.sleep(exchange.facts.digest === null ? 0 : LIMITS.retryJoinMs, this.#closing.signal);
    void waiting
      .catch(() => undefined)
      .then(() => {
        if (exchange.state === "running" && exchange.abandoned) exchange.abort.abort(hungUp);
      });
  }

  async #run(exchange: Exchange, asked: Asked): Promise<void> {
    const { runtime, board } = this.#around;
    const { facts } = exchange;
    const { stream } = asked.request;
    const { label } = this.options;
    const shown = stream ? exchange.soFar : new AnswerSoFar();
    const takeOff = board?.add(label, { number: facts.number, createdAt: facts.createdAt, answer: shown });
    void exchange.outcome.then(takeOff);
    const startedAt = runtime.monotonic();
    const sampling = this.#sampling(asked.request.sampling);
    let firstDeltaMs: number | null = null;
    const onDelta = (delta: Delta): void | Promise<void> => {
      firstDeltaMs ??= runtime.monotonic() - startedAt;
      this.#speaks(exchange);
      return exchange.push(delta);
    };
    const deadline = this.#startDeadline(exchange);
    let generation: Generation | null = null;
    let failure: GatewayFailure | null = null;
    try {
      const request = { ...asked.request, model: this.options.model, sampling };
      generation = await this.options.upstream.generate({
        request,
        requestId: facts.id,
        session: this.id,
        // Over HTTP a client is better told to come back while its answer has no status yet.
        patient: asked.dialect === "turn",
        onDelta: stream ? onDelta : null,
        ...(stream || board?.isWatched(label) !== true ? {} : { progress: shown }),
        history: this.#history,
        signal: exchange.abort.signal,
      });
    } catch (error) {
      failure = this.#failureOf(exchange, error);
    } finally {
      deadline.abort("over");
    }
    const answer = generation?.answer ?? this.#partial(exchange);
    let status: CallStatus = generation !== null ? "complete" : answer === null ? "failed" : "incomplete";
    const call: Call = {
      ...this.#record(facts, asked),
      conversation: conversationFacts(asked.request),
      sampling,
      durationMs: rounded(runtime.monotonic() - startedAt),
      firstDeltaMs: firstDeltaMs === null ? null : rounded(firstDeltaMs),
      status,
      failure: failure === null ? null : { kind: failure.kind, message: messageForRecord(failure) },
      notes: [...asked.request.dropped.map((field) => `without effect: ${field}`), ...(generation?.notes ?? [])],
      answer,
      tokens: generation?.tokens ?? null,
      replays: exchange.replays,
    };
    try {
      await this.#append(call);
    } catch (error) {
      failure ??= new GatewayFailure("internal", "The gateway could not record the call.", { cause: error });
      status = "failed";
    }
    // Those who joined while it was being written.
    if (failure === null) for (let seen = call.replays; seen < exchange.replays; seen++) void this.options.log.replayed(call.number).catch(() => undefined);
    this.#budget.end({
      status,
      failure,
      promptTokens: answer?.usage?.promptTokens ?? call.tokens?.promptIds.length ?? 0,
      cachedTokens: answer?.usage?.cachedTokens ?? 0,
      completionTokens: answer?.usage?.completionTokens ?? call.tokens?.completionIds.length ?? exchange.soFar.pieces,
      policyVersions: call.tokens?.versions.map(([version]) => version) ?? [],
    });
    this.#running.delete(exchange);
    asked.onRecord?.(call);
    exchange.settle(failure === null && answer !== null ? { kind: "answer", answer } : { kind: "failure", failure: failure ?? new GatewayFailure("internal", "The call ended without an answer.") });
    this.#speaks(exchange);
    this.#replays.changed();
  }

  /** Aborts the call when its time, or the session's, is over. Returns what stops the clock. */
  #startDeadline(exchange: Exchange): AbortController {
    const over = new AbortController();
    const left = this.#budget.timeLeftMs;
    const budget = left !== null && left < LIMITS.modelCallMs;
    this.#around.runtime.sleep(Math.min(left ?? Infinity, LIMITS.modelCallMs), over.signal).then(
      () => exchange.abort.abort(budget ? new GatewayFailure("budget", "This session's time is used up.") : new GatewayFailure("timeout", `The model did not finish its answer within ${LIMITS.modelCallMs / 1000} s.`)),
      () => undefined,
    );
    return over;
  }

  /** What a harness is told, and the log: never the words of a bug. */
  #failureOf(exchange: Exchange, error: unknown): GatewayFailure {
    const { signal } = exchange.abort;
    if (signal.aborted && signal.reason instanceof GatewayFailure) return signal.reason;
    if (error instanceof GatewayFailure) return error;
    return error instanceof MwError && error.code === "upstream_failed" ? new GatewayFailure("upstream", "The model server failed.", { cause: error }) : internalFailure(error);
  }

  #partial({ soFar }: Exchange): Call["answer"] {
    return soFar.blocks.length === 0 ? null : { blocks: soFar.blocks, finish: "length", stopSequence: null, usage: null, logprobs: null };
  }

  /** The session's own settings win; of two token limits the smaller holds. */
  #sampling(asked: Sampling): Sampling {
    const merged: Sampling = { ...asked, ...this.options.sampling };
    const limits = [asked.maxTokens, this.options.sampling.maxTokens ?? null, this.#budget.tokensLeft].filter((limit) => limit !== null);
    return { ...merged, maxTokens: limits.length === 0 ? null : Math.min(...limits) };
  }

  #record(facts: Parameters<typeof emptyRecord>[0], asked: AskedBody): Call {
    return emptyRecord(facts, asked, { model: this.options.model, capture: this.#around.facts.capture });
  }

  async #append(call: Call): Promise<void> {
    const { number, conversation, answer, tokens } = call;
    await this.options.log.append(call, tokens === null || answer === null ? null : this.#history.add(number, conversation, answer, tokens));
  }

  #speaks(exchange: Exchange): void {
    if (this.#thinking.delete(exchange)) this.#tellThinking();
  }

  #tellThinking(): void {
    for (const listener of this.#listeners) listener(this.#thinking.size);
  }
}

function rounded(ms: number): number {
  return Math.round(ms * 1000) / 1000;
}
