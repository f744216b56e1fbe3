/** A worker without machines: rollouts are draws of a seed, and take time only on the given clock. The same job comes to the same end, as a worker that records does. */
import type { Runtime } from "../../../src/core/runtime.ts";
import { seededRandom } from "../../../src/core/runtime.ts";
import { MwError } from "../../../src/core/errors.ts";
import type { MemberEnd, MemberJob, PolicyState, RolloutWorker, TaskFacts } from "../../../src/delivery/worker.ts";
import type { SampleRow } from "../../../src/rollout/samples/sample-row.ts";

export interface Draw {
  readonly durationMs: number;
  readonly end: (at: { readonly startedAt: number; readonly endedAt: number; readonly version: number }) => MemberEnd;
}

export class SimulatedWorker implements RolloutWorker {
  readonly #runtime: Runtime;
  readonly #closing = new AbortController();
  readonly #draw: (job: MemberJob, random: () => number) => Draw;
  policy: PolicyState | null = null;
  readonly started: MemberJob[] = [];
  /** Groups of which nobody asks for members again. */
  readonly forgotten: string[] = [];
  running = 0;
  /** Tasks that are refused. */
  readonly broken = new Set<string>();
  /** Whether `started` is kept. */
  keepJobs = true;

  constructor(runtime: Runtime, draw: (job: MemberJob, random: () => number) => Draw) {
    this.#runtime = runtime;
    this.#draw = draw;
  }

  check(task: string): Promise<TaskFacts> {
    if (this.broken.has(task)) return Promise.reject(new MwError("invalid_task", `${task} is no task`));
    return Promise.resolve({ name: task.slice(task.lastIndexOf("/") + 1), family: "sim", digest: null });
  }

  setPolicy(policy: PolicyState): Promise<void> {
    this.policy = policy;
    return Promise.resolve();
  }

  async run(job: MemberJob, signal: AbortSignal): Promise<MemberEnd> {
    if (this.keepJobs) this.started.push(job);
    const draw = this.#draw(job, seededRandom(job.seed));
    const startedAt = this.#runtime.now();
    const version = this.policy?.version ?? 0;
    this.running++;
    try {
      await this.#runtime.sleep(draw.durationMs, AbortSignal.any([signal, this.#closing.signal]));
    } catch {
      if (this.#closing.signal.aborted) throw new MwError("cancelled", "the worker was closed");
      return failedEnd(job, "cancelled", "cancelled", startedAt, this.#runtime.now());
    } finally {
      this.running--;
    }
    return draw.end({ startedAt, endedAt: this.#runtime.now(), version });
  }

  over(groupId: string): void {
    if (this.keepJobs) this.forgotten.push(groupId);
  }

  close(): Promise<void> {
    this.#closing.abort("closed");
    return Promise.resolve();
  }
}

const TIMINGS = { queueMs: 1, bootMs: 2, generateMs: 3, toolMs: 4, rewardMs: 5 };

export function failedEnd(job: MemberJob, outcome: Exclude<MemberEnd["outcome"], "scored">, code: string, startedAt: number, endedAt: number, permanent = false): MemberEnd {
  return {
    rollout: `ro-${job.groupId}-${job.member}-${job.attempt}`,
    group: `grp-${job.groupId}`,
    task: { name: job.task, family: "sim", digest: null },
    outcome,
    reward: null,
    rewards: {},
    stopReason: null,
    error: { code, message: `${code} of the simulation`, permanent },
    startedAt,
    endedAt,
    timings: TIMINGS,
    turns: 0,
    toolErrors: null,
    model: "sim",
    tokenizer: null,
    image: null,
    verifier: null,
    samples: [],
  };
}

/** A scored end with one sample: `prompt` tokens of context, then sampled ones, of which the first half has `versionMin` and the rest `versionMax`. */
export function scoredEnd(job: MemberJob, about: { readonly startedAt: number; readonly endedAt: number; readonly reward: number; readonly prompt: number; readonly sampled: number; readonly versionMin: number; readonly versionMax: number; readonly segments?: number }): MemberEnd {
  const segments = about.segments ?? 1;
  const rows = Array.from({ length: segments }, (_, segment) => sampleRow(job, about, segment, segments));
  return { ...failedEnd(job, "cancelled", "none", about.startedAt, about.endedAt), outcome: "scored", reward: about.reward, rewards: { reward: about.reward }, stopReason: "finished", error: null, turns: 3, toolErrors: 0, samples: rows };
}

function sampleRow(job: MemberJob, about: Parameters<typeof scoredEnd>[1], segment: number, segments: number): SampleRow {
  const length = about.prompt + about.sampled;
  const rollout = `ro-${job.groupId}-${job.member}-${job.attempt}`;
  const random = seededRandom(`${job.seed}/${segment}`);
  const tokenIds = Int32Array.from({ length }, () => Math.floor(random() * 30_000));
  const lossMask = new Uint8Array(length).fill(1, about.prompt);
  const logprobs = new Float32Array(length).fill(-0.5, about.prompt);
  const versions = new Int32Array(length).fill(-1);
  const names = about.versionMin === about.versionMax ? [String(about.versionMin)] : [String(about.versionMin), String(about.versionMax)];
  versions.fill(0, about.prompt);
  if (names.length > 1) versions.fill(1, about.prompt + Math.ceil(about.sampled / 2));
  return {
    facts: {
      sample: `${rollout}/${segment}`,
      run: "run",
      group: `grp-${job.groupId}`,
      rollout,
      task: job.task,
      family: "sim",
      task_digest: null,
      attempt: job.attempt,
      harness: job.harness[0] ?? "",
      seed: job.seed,
      segment,
      segments,
      builder: "prefix-merge",
      kind: "main",
      calls: [0],
      outcome: "scored",
      stop_reason: "finished",
      reward: about.reward,
      rewards: { reward: about.reward },
      weight: 1 / segments,
      prompt_length: about.prompt,
      shared_length: 0,
      version_names: names,
    },
    arrays: { tokenIds, lossMask, logprobs, versions },
  };
}
