/** What a session may still use, and what it has used. */
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import { GatewayFailure, messageForRecord, type FailureKind } from "../failure.ts";
import { tokensOf, type Call, type CallStatus } from "../call.ts";
import type { SessionBudgets, SessionTotals } from "../session.ts";

/** Not the harness's doing: they cost it nothing of its budget of calls, and say why it failed. */
const NOT_ITS_DOING: ReadonlySet<FailureKind> = new Set(["rate_limited", "overloaded", "timeout", "upstream", "truncated", "internal"]);

export interface CallEnd {
  readonly status: CallStatus;
  readonly failure: GatewayFailure | null;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
  readonly policyVersions: readonly string[];
}

export class Budget {
  readonly #limits: SessionBudgets;
  readonly #runtime: Runtime;
  readonly #openedAt: number;
  #counts: Record<CallStatus, number> = { complete: 0, incomplete: 0, failed: 0 };
  #promptTokens = 0;
  #cachedTokens = 0;
  #completionTokens = 0;
  readonly #policyVersions = new Set<string>();
  #inFlight = 0;
  #spared = 0;
  #troubles = 0;
  #lastFailure: SessionTotals["lastFailure"] = null;
  /** What a call was refused for. */
  #refused: keyof SessionBudgets | null = null;
  #modelMs = 0;
  #busySince = 0;

  constructor(limits: SessionBudgets, runtime: Runtime) {
    this.#limits = limits;
    this.#runtime = runtime;
    this.#openedAt = runtime.monotonic();
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /** Throws `budget` when nothing is left, `rate_limited` when too much is under way. */
  begin(): void {
    const exhausted = this.#exhausted();
    if (exhausted !== null) {
      this.#refused ??= exhausted;
      throw new GatewayFailure("budget", `This session's budget of ${BUDGET_WORDS[exhausted]} is used up (${this.#limits[exhausted]}).`);
    }
    if (this.#troubles >= LIMITS.upstreamFailuresInARow) throw new GatewayFailure("budget", `The model server failed ${this.#troubles} times in a row: ${this.#lastFailure?.message ?? "unknown"}`);
    if (this.#inFlight >= LIMITS.callsInFlightPerSession) {
      throw new GatewayFailure("rate_limited", `More than ${LIMITS.callsInFlightPerSession} calls of this session are in flight.`, { retryAfterMs: 1000 });
    }
    if (this.#inFlight++ === 0) this.#busySince = this.#runtime.monotonic();
  }

  end({ status, failure, promptTokens, cachedTokens, completionTokens, policyVersions }: CallEnd): void {
    this.#counts[status]++;
    this.#promptTokens += promptTokens;
    this.#cachedTokens += cachedTokens;
    this.#completionTokens += completionTokens;
    this.#know(policyVersions);
    if (failure !== null && NOT_ITS_DOING.has(failure.kind)) this.#spared++;
    this.#learn(status, failure === null ? null : { kind: failure.kind, message: messageForRecord(failure) });
    if (--this.#inFlight === 0) this.#modelMs += this.#runtime.monotonic() - this.#busySince;
  }

  /** A call of an earlier session counts as if it had been one of this. */
  carry(call: Call): void {
    const { status, failure } = call;
    this.#counts[status]++;
    if (failure !== null && NOT_ITS_DOING.has(failure.kind)) this.#spared++;
    const { promptTokens, cachedTokens, completionTokens } = tokensOf(call);
    this.#promptTokens += promptTokens;
    this.#cachedTokens += cachedTokens;
    this.#completionTokens += completionTokens;
  }

  /** The calls of a session that this one goes on with without its harness knowing. */
  goOn(calls: readonly Call[]): void {
    // What was refused before it reached the engine counted nowhere.
    const asked = calls.filter(({ conversation }) => conversation.roles !== "");
    for (const call of asked) {
      this.carry(call);
      this.#know(call.tokens?.versions.map(([version]) => version) ?? []);
      this.#learn(call.status, call.failure);
    }
    this.#modelMs = busyMs(asked);
  }

  #know(versions: readonly string[]): void {
    for (const version of versions) if (this.#policyVersions.size < LIMITS.policyVersionsOfRollout) this.#policyVersions.add(version);
  }

  #learn(status: CallStatus, failure: Call["failure"]): void {
    if (failure !== null && NOT_ITS_DOING.has(failure.kind)) {
      this.#lastFailure = failure;
      this.#troubles++;
    } else if (status === "complete") {
      this.#troubles = 0;
      this.#lastFailure = null;
    }
  }

  /** Tokens that one more answer may have; null: no limit. */
  get tokensLeft(): number | null {
    return this.#limits.tokens === null ? null : Math.max(0, this.#limits.tokens - this.#completionTokens);
  }

  /** Milliseconds; null: no limit. */
  get timeLeftMs(): number | null {
    return this.#limits.timeMs === null ? null : Math.max(0, this.#limits.timeMs - (this.#runtime.monotonic() - this.#openedAt));
  }

  #exhausted(): keyof SessionBudgets | null {
    const used = this.#counts.complete + this.#counts.incomplete + this.#counts.failed + this.#inFlight - this.#spared;
    if (this.#limits.calls !== null && used >= this.#limits.calls) return "calls";
    if (this.tokensLeft === 0) return "tokens";
    return this.timeLeftMs === 0 ? "timeMs" : null;
  }

  totals(): SessionTotals {
    return {
      ...this.#counts,
      promptTokens: this.#promptTokens,
      cachedTokens: this.#cachedTokens,
      completionTokens: this.#completionTokens,
      policyVersions: [...this.#policyVersions],
      modelMs: this.#modelMs + (this.#inFlight > 0 ? this.#runtime.monotonic() - this.#busySince : 0),
      // An agent that ends with its last call has not missed another.
      exhausted: this.#refused ?? (this.#exhausted() === "calls" ? null : this.#exhausted()),
      lastFailure: this.#lastFailure,
    };
  }
}

/** Wall time during which at least one of the calls was under way, milliseconds. */
function busyMs(calls: readonly Call[]): number {
  let busy = 0;
  let until = 0;
  for (const [from, to] of calls.map(({ at, durationMs }) => [Date.parse(at), Date.parse(at) + durationMs] as const).sort(([a], [b]) => a - b)) {
    busy += Math.max(0, to - Math.max(from, until));
    until = Math.max(until, to);
  }
  return busy;
}

const BUDGET_WORDS = { calls: "calls", tokens: "tokens", timeMs: "milliseconds" } as const;
