/** From the end of a rollout to what its trainer gets of it: samples, or the class of the failure. A failure is never a reward of 0, and nothing that is not a number leaves. */
import type { Outcome, StopReason } from "../core/outcome.ts";
import type { SampleArrays } from "../rollout/samples/sample-row.ts";
import type { DeliveredSampleFacts, RunRequest } from "./contract.ts";
import type { FailureClass, MemberFailure } from "./events.ts";
import { checkSamples, type Violation } from "./invariants.ts";
import type { MemberEnd, MemberJob } from "./worker.ts";

export interface UsableMember {
  readonly usable: true;
  readonly reward: number;
  readonly samples: readonly { readonly facts: DeliveredSampleFacts; readonly arrays: SampleArrays }[];
  readonly versionMin: number;
  readonly versionMax: number;
}

export interface UnusableMember {
  readonly usable: false;
  readonly failure: MemberFailure;
  readonly message: string;
}

/** Whose doing an outcome without a reward is. */
const CLASS_OF: Readonly<Record<Exclude<Outcome, "scored">, FailureClass>> = {
  harness_error: "harness",
  model_error: "model",
  verifier_error: "env",
  task_error: "env",
  sandbox_error: "infra",
  cancelled: "cancelled",
  stale: "cancelled",
};

/** Ways to stop that cut the policy off in the middle. */
const EXHAUSTED: ReadonlySet<StopReason> = new Set(["turns", "tokens", "agent_time", "context_overflow"]);

const CLASS_OF_VIOLATION: Readonly<Record<Violation["code"], FailureClass>> = { malformed_sample: "infra", overlong: "overlong", no_tokens: "policy", version: "model" };

/** `floor`: oldest version that may have sampled anything of it. */
export function judge(job: MemberJob, end: MemberEnd, request: RunRequest, floor: number): UsableMember | UnusableMember {
  if (end.outcome !== "scored") {
    const { code, message, permanent } = end.error ?? { code: end.outcome, message: `it ended as ${end.outcome}`, permanent: false };
    return unusable({ class: CLASS_OF[end.outcome], code, permanent }, message);
  }
  if (end.reward === null || !Number.isFinite(end.reward)) return unusable({ class: "env", code: "reward_not_finite", permanent: false }, `its reward is ${String(end.reward)}`);
  const strange = Object.entries(end.rewards).find(([, value]) => !Number.isFinite(value));
  if (strange !== undefined) return unusable({ class: "env", code: "reward_not_finite", permanent: false }, `its reward ${strange[0]} is ${String(strange[1])}`);
  if (request.exhausted === "unusable" && end.stopReason !== null && EXHAUSTED.has(end.stopReason)) {
    return unusable({ class: end.stopReason === "agent_time" ? "timeout" : "policy", code: end.stopReason, permanent: false }, `it ran out of ${end.stopReason}`);
  }
  const checked = checkSamples(end.samples, { maxTokens: request.samples.max_tokens, vocabSize: request.samples.vocab_size, versionFloor: floor });
  if ("code" in checked) return unusable({ class: CLASS_OF_VIOLATION[checked.code], code: checked.code, permanent: false }, checked.message);
  let versionMin = Number.POSITIVE_INFINITY;
  let versionMax = -1;
  for (const versions of checked.versions) {
    for (const version of versions) {
      if (version < 0) continue;
      versionMin = Math.min(versionMin, version);
      versionMax = Math.max(versionMax, version);
    }
  }
  const samples = end.samples.map((_, index) => ({ facts: factsOf(job, end, index), arrays: arraysOf(end, index, checked.versions) }));
  return { usable: true, reward: end.reward, samples, versionMin, versionMax };
}

function unusable(failure: MemberFailure, message: string): UnusableMember {
  // Codes are counted by name; a worker's may be anything.
  return { usable: false, failure: { ...failure, code: failure.code.slice(0, 64) }, message: message.slice(0, 2048) };
}

/** Where nothing is trained there is no logprob, whatever stood there: 0 times what is no number is none either. */
function arraysOf(end: MemberEnd, index: number, versions: readonly Int32Array[]): SampleArrays {
  // The indices are those of the samples, which were checked.
  const { arrays } = end.samples[index] as MemberEnd["samples"][number];
  const logprobs = arrays.logprobs.map((value, at) => (arrays.lossMask[at] === 1 ? value : 0));
  return { tokenIds: arrays.tokenIds, lossMask: arrays.lossMask, logprobs, versions: versions[index] as Int32Array };
}

function factsOf(job: MemberJob, end: MemberEnd, index: number): DeliveredSampleFacts {
  const { facts } = end.samples[index] as MemberEnd["samples"][number];
  const { queueMs, bootMs, generateMs, toolMs, rewardMs } = end.timings;
  return {
    sample_id: facts.sample,
    rollout_id: end.rollout ?? facts.rollout,
    group_id: job.groupId,
    member: job.member,
    attempt: job.attempt,
    segment_index: index,
    num_segments: end.samples.length,
    is_last_segment: index === end.samples.length - 1,
    parent_prefix_len: facts.shared_length,
    prompt_len: facts.prompt_length,
    reward: end.reward,
    reward_components: end.rewards,
    weight: 1 / end.samples.length,
    usable: true,
    status: end.stopReason !== null && EXHAUSTED.has(end.stopReason) ? "truncated" : "completed",
    outcome: end.outcome,
    stop_reason: end.stopReason,
    error: null,
    harness: facts.harness,
    seed: facts.seed,
    builder: facts.builder,
    kind: facts.kind,
    temperature: job.sampling["temperature"] ?? null,
    top_p: job.sampling["top_p"] ?? null,
    model: end.model,
    tokenizer: end.tokenizer,
    image: end.image,
    verifier: end.verifier,
    turns: end.turns,
    tool_errors: end.toolErrors,
    timings: { queue_ms: queueMs, boot_ms: bootMs, generate_ms: generateMs, tool_ms: toolMs, reward_ms: rewardMs },
  };
}
