/**
 * A model call of a harness in this process, with retries that end.
 *
 * What may pass is tried again, with seeded jitter and the server's own waiting time: too many requests, overload, failures of the server, answers that broke off. A
 * conversation that no longer fits and a budget that is used up are stops. Every other failure is `upstream_failed`, or what kept the call from being recorded.
 */
import { MwError } from "../core/errors.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Call } from "../gateway/call.ts";
import type { Answer, TurnRequest } from "../gateway/conversation.ts";
import { GatewayFailure, type FailureKind } from "../gateway/failure.ts";
import type { GatewaySession } from "../gateway/session.ts";
import type { Stop } from "./stop.ts";

export interface ModelCall {
  readonly session: GatewaySession;
  readonly request: TurnRequest;
  /** Tries after the first. */
  readonly retries: number;
  /** Uniform in [0, 1), for jitter. */
  readonly random: () => number;
  readonly runtime: Runtime;
  readonly signal: AbortSignal;
  /** Told of each failed try. */
  readonly note: (text: string) => Promise<void>;
}

export type ModelCallResult = { readonly kind: "answer"; readonly call: Call; readonly answer: Answer } | { readonly kind: "stop"; readonly stop: Stop };

const PASSING: ReadonlySet<FailureKind> = new Set(["rate_limited", "overloaded", "timeout", "upstream", "truncated"]);
const BACKOFF_BASE_MS = 500;
const BACKOFF_CAP_MS = 30_000;
const RETRY_AFTER_CAP_MS = 120_000;

export async function callModel(job: ModelCall): Promise<ModelCallResult> {
  const { session, request, retries, runtime, signal, note } = job;
  for (let failures = 0; ; failures++) {
    const result = await attempt(session, request, signal);
    if (!(result instanceof GatewayFailure)) return result;
    if (!PASSING.has(result.kind) || failures === retries) throw upstreamFailed(result, failures + 1);
    const waitMs = backoff(failures, result.details.retryAfterMs ?? null, job.random);
    await note(`A model call failed (${result.message}); trying again in ${Math.round(waitMs)} ms.`);
    await runtime.sleep(waitMs, signal);
  }
}

async function attempt(session: GatewaySession, request: TurnRequest, signal: AbortSignal): Promise<ModelCallResult | GatewayFailure> {
  try {
    const call = await session.complete(request, { signal });
    if (call.answer === null) throw new MwError("internal", "a complete call without an answer");
    return { kind: "answer", call, answer: call.answer };
  } catch (error) {
    signal.throwIfAborted();
    if (!(error instanceof GatewayFailure)) throw error;
    // A log that takes no more is the host's failure.
    if (error.details.cause instanceof MwError && error.kind === "internal") throw error.details.cause;
    if (error.kind === "context_overflow") return { kind: "stop", stop: { stopReason: "context_overflow", detail: `The conversation no longer fits the model: ${error.message}` } };
    const { exhausted } = session.totals();
    return error.kind === "budget" && exhausted !== null ? { kind: "stop", stop: BUDGET_STOPS[exhausted] } : error;
  }
}

const BUDGET_STOPS = {
  calls: { stopReason: "turns", detail: "The budget of model calls was used up." },
  tokens: { stopReason: "tokens", detail: "The token budget was used up." },
  timeMs: { stopReason: "agent_time", detail: "The agent's time was used up." },
} as const satisfies Readonly<Record<string, Stop>>;

function upstreamFailed(failure: GatewayFailure, times: number): MwError {
  return new MwError("upstream_failed", `The model did not answer: ${failure.message}${times > 1 ? ` (${times} times in a row)` : ""}`, { fix: fixOf(failure), cause: failure });
}

function fixOf({ kind, message, details }: GatewayFailure): string {
  if (/tool.choice|tool-call-parser/i.test(message)) return "The server does not offer tool calls: start vLLM with --enable-auto-tool-choice --tool-call-parser NAME, SGLang with --tool-call-parser NAME.";
  if (details.upstreamStatus === 401 || details.upstreamStatus === 403) return "Set MW_API_KEY to a key that the server accepts, or name a file that holds it.";
  if (kind === "not_found") return "Check --upstream (its base URL up to and including /v1) and --model.";
  if (PASSING.has(kind)) return "Check that the model server is up and not overloaded, then run the task again.";
  return "Check --model and the sampling parameters against what the server accepts.";
}

/** Exponential with full jitter over the upper half, or what the server asks for; both capped. */
function backoff(failures: number, askedMs: number | null, random: () => number): number {
  const steps = Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** failures);
  const jittered = steps / 2 + (steps / 2) * random();
  return askedMs === null ? jittered : Math.min(RETRY_AFTER_CAP_MS, askedMs + jittered / 4);
}
