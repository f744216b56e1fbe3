/**
 * The published shape of agentic rollouts: a median of 17 minutes and a 99th percentile beyond 3 hours, 98 % of it waiting for the model, three sandboxes for each image, 16 % lost to
 * infrastructure. Durations are log-normal with those two percentiles, and end at the time that tasks allow.
 */
import type { Runtime } from "../../src/core/runtime.ts";
import { seededRandom } from "../../src/core/runtime.ts";
import type { MemberEnd, MemberJob, PolicyState, RolloutWorker, TaskFacts } from "../../src/delivery/worker.ts";
import { failedEnd, scoredEnd } from "../../test/support/delivery/simulated-worker.ts";
import type { VirtualRuntime } from "../../test/support/delivery/virtual-runtime.ts";

const MINUTE = 60_000;
export const SHAPE = { medianMs: 17 * MINUTE, sigma: 1.015, limitMs: 360 * MINUTE, faults: 0.16, sandboxesPerImage: 3, imageMs: 30_000, modelShare: 0.98 } as const;

export interface PlannedRollout {
  readonly job: MemberJob;
  /** What it takes when nothing stops it. */
  readonly durationMs: number;
  readonly faulty: boolean;
  fate: "running" | "scored" | "faulty" | "cut";
}

/** Rollouts that take their time on a virtual clock, and nothing else. Everything about them follows from their seed. */
export class ShapedWorker implements RolloutWorker {
  readonly #runtime: Runtime & Pick<VirtualRuntime, "at">;
  readonly planned: PlannedRollout[] = [];
  readonly #keep: boolean;
  readonly #tokens: { readonly prompt: number; readonly sampled: number };
  #version = 0;
  #sandboxes = 0;
  running = 0;

  constructor(runtime: VirtualRuntime, { keep, prompt = 8, sampled = 8 }: { readonly keep: boolean; readonly prompt?: number; readonly sampled?: number }) {
    this.#runtime = runtime;
    this.#keep = keep;
    this.#tokens = { prompt, sampled };
  }

  check(task: string): Promise<TaskFacts> {
    return Promise.resolve({ name: task, family: "load", digest: null });
  }

  setPolicy({ version }: PolicyState): Promise<void> {
    this.#version = version;
    return Promise.resolve();
  }

  run(job: MemberJob, signal: AbortSignal): Promise<MemberEnd> {
    const random = seededRandom(job.seed);
    const pull = this.#sandboxes++ % SHAPE.sandboxesPerImage === 0 ? SHAPE.imageMs : 0;
    const durationMs = pull + drawDuration(random);
    const faulty = random() < SHAPE.faults;
    const takesMs = faulty ? durationMs * random() : durationMs;
    const plan: PlannedRollout = { job, durationMs, faulty, fate: "running" };
    if (this.#keep) this.planned.push(plan);
    const startedAt = this.#runtime.now();
    const versionMin = this.#version;
    this.running++;
    return new Promise((resolve) => {
      const timer = this.#runtime.at(startedAt + takesMs, () => {
        signal.removeEventListener("abort", onAbort);
        this.running--;
        const endedAt = this.#runtime.now();
        plan.fate = faulty ? "faulty" : "scored";
        if (faulty) resolve(failedEnd(job, "sandbox_error", "sandbox_gone", startedAt, endedAt));
        else resolve(scoredEnd(job, { startedAt, endedAt, reward: random(), ...this.#tokens, versionMin, versionMax: this.#version }));
      });
      const onAbort = (): void => {
        timer.done = true;
        this.running--;
        if (!faulty) plan.fate = "cut";
        resolve(failedEnd(job, "cancelled", "cancelled", startedAt, this.#runtime.now()));
      };
      signal.addEventListener("abort", onAbort, { once: true });
    });
  }

  over(): void {
    // Nothing is kept.
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

export function drawDuration(random: () => number): number {
  // Box and Muller: https://doi.org/10.1214/aoms/1177706645
  const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return Math.min(SHAPE.limitMs, SHAPE.medianMs * Math.exp(SHAPE.sigma * normal));
}

/** Mean time in a place among the running that one usable member takes, replacement of what infrastructure loses included. */
export function workOfMemberMs(): number {
  const random = seededRandom("work");
  const draws = 200_000;
  let sum = 0;
  for (let at = 0; at < draws; at++) {
    for (let attempt = 0; attempt < 2; attempt++) {
      const durationMs = drawDuration(random) + SHAPE.imageMs / SHAPE.sandboxesPerImage;
      const faulty = random() < SHAPE.faults;
      sum += faulty ? durationMs * random() : durationMs;
      if (!faulty) break;
    }
  }
  return sum / draws;
}
