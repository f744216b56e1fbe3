/**
 * The closed loop: groups are drawn and submitted, run in machines, leased, trained on, and the new weights sample what comes next. Rollouts go on while a step is computed.
 *
 * Order of a step: train, write the checkpoint, acknowledge, publish the weights. Whatever dies in between, a group's rewards move the weights once: what was trained and not
 * acknowledged is delivered again, and known by the checkpoint.
 */
import { MwError } from "../core/errors.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Delivery, DeliveredGroup, Lease } from "../delivery/delivery.ts";
import type { Checkpoint, Checkpoints, StepRecord, TrainState } from "./checkpoint.ts";
import type { TaskDraw } from "./draw.ts";
import { batchOf } from "./learn/batch.ts";
import type { LearnerState } from "./learn/learner.ts";
import type { LearnerAsk, LearnerResult } from "./learner-thread.ts";
import type { ModelShape } from "./model/shape.ts";

export interface LoopRules {
  readonly batchGroups: number;
  readonly maxStaleness: number;
  /** Ends when so many steps are made, */
  readonly steps: number;
  /** or when the mean reward of the last `UNTIL_STEPS` steps is this; null: never. */
  readonly until: number | null;
}

export interface LoopParts {
  readonly delivery: Delivery;
  readonly draw: TaskDraw;
  readonly shape: ModelShape;
  readonly checkpoints: Checkpoints;
  readonly learner: { ask(ask: LearnerAsk): Promise<LearnerResult> };
  readonly policy: { readonly url: string; update(directory: string, version: string): Promise<void> };
  readonly model: string;
  readonly runtime: Runtime;
  /** Told of every step, once it is on the disk. */
  readonly stepped: (record: StepRecord) => void;
}

/** Steps over which a mean is taken: single ones are noisy. */
export const UNTIL_STEPS = 4;
const LEASE_WAIT_MS = 5_000;

export class TrainingLoop {
  readonly #parts: LoopParts;
  readonly #rules: LoopRules;
  #state: TrainState;
  #learner: LearnerState;
  #directory: string;
  #begunAt: number;

  constructor(parts: LoopParts, rules: LoopRules, from: Checkpoint) {
    this.#parts = parts;
    this.#rules = rules;
    this.#state = from.state;
    this.#learner = from.learner;
    this.#directory = from.directory;
    this.#begunAt = parts.runtime.monotonic() - (from.state.history.at(-1)?.seconds ?? 0) * 1000;
  }

  get history(): readonly StepRecord[] {
    return this.#state.history;
  }

  /** Where the newest weights are. */
  get directory(): string {
    return this.#directory;
  }

  /** Resolves when it is done, or when the signal fires: between two steps, with everything on the disk. Rejects when the run has failed. */
  async run(signal: AbortSignal): Promise<"done" | "stopped"> {
    const { delivery, policy, model, runtime } = this.#parts;
    // A run that was gone through is closed, and takes no policy any more.
    if (this.#isDone()) return "done";
    this.#begunAt = runtime.monotonic() - (this.#state.history.at(-1)?.seconds ?? 0) * 1000;
    await delivery.setPolicy({ version: this.#state.step, state: "live", model, endpoints: [{ url: policy.url, kind: "sglang" }] });
    await this.#acknowledge();
    const inHand: Lease[] = [];
    while (!this.#isDone()) {
      if (signal.aborted) return "stopped";
      await this.#submit();
      const missing = this.#rules.batchGroups - inHand.reduce((sum, { groups }) => sum + groups.length, 0);
      const lease = await delivery.lease({ consumer: "embedded trainer", max_groups: missing, min_groups: missing, wait_ms: LEASE_WAIT_MS, current_version: this.#state.step }, signal).catch((error: unknown) => {
        if (!signal.aborted) throw error;
        return null;
      });
      if (lease === null) return "stopped";
      if (lease.head.run_state === "failed" || lease.head.run_state === "closed") throw new MwError("internal", `the run ${delivery.name} ended while it was trained on: ${lease.head.reason ?? lease.head.run_state}`, { fix: `mw show ${delivery.run} says how its rollouts ended` });
      const fresh = await this.#withoutTrained(lease);
      if (fresh !== null) inHand.push(fresh);
      const groups = inHand.flatMap((held) => held.groups);
      if (groups.length >= this.#rules.batchGroups) await this.#step(groups, inHand.splice(0));
      else for (const held of inHand) if (held.head.lease_id !== null) await delivery.extend(held.head.lease_id);
    }
    return "done";
  }

  #isDone(): boolean {
    const { step, history } = this.#state;
    if (step >= this.#rules.steps) return true;
    const last = history.slice(-UNTIL_STEPS);
    return this.#rules.until !== null && last.length === UNTIL_STEPS && meanReward(last) >= this.#rules.until;
  }

  /** As many groups as may be begun before they become too stale; the names are counted, so that nothing is submitted twice. */
  async #submit(): Promise<void> {
    const { delivery, draw } = this.#parts;
    const { waiting, running, ready, leased } = delivery.status().groups;
    const room = (this.#rules.maxStaleness + 1) * this.#rules.batchGroups - waiting - running - ready - leased;
    if (room <= 0) return;
    const { nextGroup } = this.#state;
    await delivery.submit(Array.from({ length: room }, (_, index) => ({ group_id: `g${nextGroup + index}`, task: draw.task(nextGroup + index) })));
    this.#state = { ...this.#state, nextGroup: nextGroup + room };
  }

  /** Groups that the newest checkpoint has been trained on already are acknowledged again. */
  async #withoutTrained(lease: Lease): Promise<Lease | null> {
    const { lease_id: id } = lease.head;
    if (id === null) return null;
    const again = lease.groups.filter(({ facts }) => this.#state.trained.some((held) => held.groups.includes(facts.group_id)));
    if (again.length > 0) await this.#parts.delivery.ack(id, { consumed: again.map(({ facts }) => facts.group_id), rejected: [], trained_version: this.#state.step, step: this.#state.step, checkpoint: this.#directory });
    const groups = lease.groups.filter((group) => !again.includes(group));
    return groups.length === 0 ? null : { ...lease, groups };
  }

  /** What the newest checkpoint was trained on. A lease that is over has gone back: its groups come again, and are known. */
  async #acknowledge(): Promise<void> {
    const { step, trained } = this.#state;
    for (const { lease, groups } of trained) {
      await this.#parts.delivery.ack(lease, { consumed: groups, rejected: [], trained_version: step, step, checkpoint: this.#directory }).catch((error: unknown) => {
        if (!(error instanceof MwError) || error.code !== "not_found") throw error;
      });
    }
  }

  async #step(groups: readonly DeliveredGroup[], leases: readonly Lease[]): Promise<void> {
    const { delivery, shape, learner, checkpoints, policy, runtime, stepped } = this.#parts;
    // While it is computed, rollouts of further groups run.
    await this.#submit();
    const begunAt = runtime.monotonic();
    const batch = batchOf(shape, groups);
    const idle = { loss: 0, gradientNorm: 0, meanLogprob: 0, drift: 0, truncated: 0, clipped: 0 };
    const { facts, state } = batch === null ? { facts: idle, state: this.#learner } : await learner.ask({ batch, step: this.#state.step });
    this.#learner = state;
    const step = this.#state.step + 1;
    const endedAt = runtime.monotonic();
    const record: StepRecord = { step, seconds: (endedAt - this.#begunAt) / 1000, ...figuresOf(groups, this.#state.step), ...facts, learnMs: endedAt - begunAt };
    this.#state = { ...this.#state, step, trained: leases.flatMap(({ head, groups: held }) => (head.lease_id === null ? [] : [{ lease: head.lease_id, groups: held.map(({ facts: of }) => of.group_id) }])), history: [...this.#state.history, record] };
    this.#directory = await checkpoints.write(this.#state, this.#learner);
    await this.#acknowledge();
    await delivery.setPolicy({ version: step, state: "updating" });
    await policy.update(this.#directory, String(step));
    await delivery.setPolicy({ version: step, state: "live" });
    stepped(record);
  }
}

/** By rollout, not by step: steps may have different numbers. */
export function meanReward(records: readonly StepRecord[]): number {
  const rollouts = records.reduce((sum, record) => sum + record.rollouts, 0);
  return rollouts === 0 ? 0 : records.reduce((sum, record) => sum + record.rewardSum, 0) / rollouts;
}

function figuresOf(groups: readonly DeliveredGroup[], version: number): Pick<StepRecord, "rollouts" | "meanReward" | "rewardSum" | "staleness" | "failedMembers"> {
  const rewards = new Map(groups.flatMap(({ samples }) => samples.flatMap(({ facts }) => (facts.reward === null ? [] : [[facts.rollout_id, facts.reward] as const]))));
  const rewardSum = [...rewards.values()].reduce((sum, reward) => sum + reward, 0);
  return {
    rollouts: rewards.size,
    rewardSum,
    meanReward: rewards.size === 0 ? 0 : rewardSum / rewards.size,
    staleness: Math.max(0, ...groups.map(({ facts }) => version - (facts.version_min ?? version))),
    failedMembers: groups.reduce((sum, { facts }) => sum + facts.failures.reduce((of, failure) => of + failure.count, 0), 0),
  };
}
