/** What a run of an environment comes to, as verifiers v1 has it (`verifiers/v1/episode.py`): a head, and one trace. A rollout that failed is an episode like any other, with its error in it. */
import type { Outcome } from "../../core/outcome.ts";
import type { MemberEnd } from "../../delivery/index.ts";
import type { SingleEnd } from "../single/single-rollouts.ts";
import { traceOf, type WireNode } from "./trace.ts";

export interface EpisodeFacts {
  /** Unique. */
  readonly id: string;
  readonly trace: string;
  readonly version: string;
  readonly taskData: Readonly<Record<string, unknown>>;
  readonly model: string;
  readonly sampling: unknown;
}

export interface WireEpisode {
  readonly head: Readonly<Record<string, unknown>>;
  readonly trace: Readonly<Record<string, unknown>> & { readonly id: string; readonly nodes: readonly WireNode[]; readonly calls: readonly unknown[] };
}

export function episodeOf({ end, tokens }: SingleEnd, facts: EpisodeFacts): WireEpisode {
  const ok = end.outcome === "scored" && end.reward !== null && end.error === null;
  const errors = ok ? [] : [errorOf(end)];
  const task = { type: "ManyworldsTask", data: facts.taskData, key: end.task.digest, hash: null };
  const trace = {
    version: 1,
    id: facts.trace,
    verifiers: { version: `manyworlds-${facts.version}`, commit: null },
    task,
    agent: { config: { model: facts.model, sampling: facts.sampling }, runtime: null, name: "agent", trainable: true },
    ...traceOf(tokens),
    mm_token_type_id_map: {},
    request_rewrites: [],
    response_rewrites: [],
    rewards: end.reward === null ? {} : { reward: { score: end.reward, weight: 1 } },
    metrics: Object.fromEntries(Object.entries(end.rewards).filter(([name]) => name !== "reward")),
    info: { rollout: end.rollout, outcome: end.outcome, stop_reason: end.stopReason, task_digest: end.task.digest, verifier: end.verifier, image: end.image },
    root_reply: null,
    extra_usage: [],
    is_completed: true,
    ok,
    stop_condition: ok ? stopCondition(end) : null,
    is_timeout: end.stopReason === "agent_time",
    errors,
    timing: timingOf(end),
  };
  const head = { id: facts.id, env: { id: "manyworlds", name: null }, task, group: null, run: null, ok, is_timeout: false, errors };
  return { head, trace };
}

/** Their names of the boundary that a failure crossed. */
const ERROR_TYPES: Readonly<Record<Outcome, string>> = {
  scored: "TaskError",
  harness_error: "HarnessError",
  model_error: "ProviderError",
  verifier_error: "TaskError",
  task_error: "TaskError",
  sandbox_error: "SandboxError",
  cancelled: "RolloutError",
  stale: "RolloutError",
};

function errorOf({ outcome, error }: MemberEnd): unknown {
  return { type: ERROR_TYPES[outcome], message: error === null ? `the rollout ended as ${outcome}` : `${error.code}: ${error.message}`, status_code: null, traceback: null };
}

function stopCondition({ stopReason }: MemberEnd): string | null {
  switch (stopReason) {
    case "finished":
      return "agent_completed";
    case "turns":
      return "max_turns";
    case "tokens":
    case "context_overflow":
      return "max_total_tokens";
    case "agent_time":
      return null;
    default:
      return stopReason;
  }
}

function timingOf({ startedAt, endedAt, timings }: MemberEnd): unknown {
  const begin = (startedAt ?? endedAt) / 1000;
  const agent = begin + timings.bootMs / 1000;
  const end = endedAt / 1000;
  const scoring = Math.max(agent, end - timings.rewardMs / 1000);
  return {
    start: begin,
    boot: { start: begin, end: agent },
    setup: { start: agent, end: agent },
    agent: { start: agent, end: scoring, model: { duration: timings.generateMs / 1000 }, harness: { duration: timings.toolMs / 1000 } },
    finalize: { start: scoring, end: scoring },
    scoring: { start: scoring, end },
  };
}
