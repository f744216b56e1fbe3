/**
 * Drives a run from its plan: recovers what an earlier controller left, then begins what is planned while there is room, and stops in order.
 *
 * Stopping: `drain` admits nothing more and lets what runs finish within a grace period; `stop` ends it now. What was ended is not recorded: a later controller
 * tries it again. A log that takes no more events stops the run the same way, with its error. When `run` settles, no try is under way.
 */
import { MwError, toMwError } from "../core/errors.ts";
import { newId } from "../core/ids.ts";
import type { Outcome } from "../core/outcome.ts";
import { LIMITS } from "../core/limits.ts";
import type { Task } from "../task/task.ts";
import { fromFailure, toFailure, type PlannedRollout } from "./events.ts";
import { checkItem, referenceOf, type PlanItem } from "./plan.ts";
import { reloadTask } from "./reload-task.ts";
import { Rollouts, type RolloutsOptions, type RunObserver } from "./rollouts.ts";
import type { RunConfig } from "./run-config.ts";
import type { RolloutState } from "./rollout-state.ts";

export type { RunObserver };

export interface ControllerOptions extends Omit<RolloutsOptions, "hostShortMs" | "config"> {
  readonly config: RolloutsOptions["config"] & Pick<RunConfig, "branch">;
  /** What is still to be planned. */
  readonly plan: AsyncIterator<PlanItem>;
  /** Reads a task that an earlier controller has planned. */
  readonly loadTask: (directory: string) => Promise<Task>;
  /** Throws what makes a task impossible here. */
  readonly preflight: (task: Task) => void;
  /** Rollouts that ended through no act of the policy are planned again, in the place of the old ones, whose records stand. */
  readonly errorsAgain?: boolean;
}

interface Work {
  readonly rollout: RolloutState;
  /** The task, or why there is none. */
  readonly task: Task | MwError;
}

export class RunController {
  readonly #options: ControllerOptions;
  readonly #rollouts: Rollouts;
  /** Branches that have not begun yet. */
  readonly #later = new Set<Promise<void>>();

  constructor(options: ControllerOptions) {
    this.#options = options;
    this.#rollouts = new Rollouts({ ...options, hostShortMs: LIMITS.hostShortMs });
  }

  /** Resolves when everything has ended, or what could not was left for a later controller. Rejects when the log or the host would not let it go on. */
  async run(): Promise<"finished" | "interrupted"> {
    const rollouts = this.#rollouts;
    try {
      for await (const work of this.#work()) await this.#start(work);
    } catch (error) {
      if (!rollouts.admission.aborted) rollouts.fail(toMwError(error));
    }
    while (this.#later.size > 0) await Promise.all(this.#later);
    await rollouts.settled();
    const { planCompleted, recorded, rollouts: all } = this.#options.state;
    // An interrupt that came when the last rollouts were under way has interrupted nothing.
    const complete = planCompleted && recorded === all.size;
    const interrupted = complete ? null : (rollouts.fatal?.message ?? (rollouts.admission.aborted ? toMwError(rollouts.admission.reason).message : null));
    if (interrupted === null) {
      await rollouts.emit({ type: "run_finished" });
      return "finished";
    }
    // The log may be what failed.
    await rollouts.emit({ type: "run_interrupted", reason: interrupted }).catch(() => undefined);
    if (rollouts.fatal !== null) throw rollouts.fatal;
    return "interrupted";
  }

  /** Admits nothing more; what runs has `graceMs` to finish. */
  drain(reason: string, graceMs: number): void {
    this.#rollouts.drain(reason, graceMs);
  }

  /** Ends what runs, now. */
  stop(reason: string): void {
    this.#rollouts.stop(reason);
  }

  /** Number of rollouts under way. */
  get active(): number {
    return this.#rollouts.active;
  }

  /** First what an earlier controller left, then what is planned anew. */
  async *#work(): AsyncGenerator<Work> {
    if (this.#options.errorsAgain === true) await this.#planErrorsAgain();
    // Groups planned later are appended and come through the plan. Agents that are at work have waited long enough.
    const left = this.#options.state.groups.map((group) => ({ group, open: group.rollouts.filter((rollout) => rollout.phase !== "recorded") }));
    const living = left.map(({ group, open }) => ({ group, open: open.filter((rollout) => this.#rollouts.survives(rollout)) }));
    const others = left.map(({ group, open }, index) => ({ group, open: open.filter((rollout) => living[index]?.open.includes(rollout) !== true) }));
    for (const { group, open } of [...living, ...others]) {
      if (open.length === 0) continue;
      const task = group.error === null ? await reloadTask(group.task, this.#options) : fromFailure(group.error);
      for (const rollout of open) if (await this.#rollouts.recover(rollout)) yield { rollout, task };
    }
    if (this.#options.state.planCompleted) return;
    // One item is read ahead: the next task is there when there is room for it, and whoever watches knows the total as soon as it is known.
    for (let next = await this.#options.plan.next(); next.done !== true; ) {
      const works = await this.#planItem(next.value);
      next = await this.#options.plan.next();
      if (next.done === true) await this.#rollouts.emit({ type: "plan_completed", groups: this.#options.state.planned });
      yield* works;
    }
    if (!this.#options.state.planCompleted) await this.#rollouts.emit({ type: "plan_completed", groups: this.#options.state.planned });
  }

  async #planErrorsAgain(): Promise<void> {
    const { state, runtime } = this.#options;
    for (const { group, rollouts } of state.groups) {
      const again = failedPlaces(rollouts).map(({ attempt, seed, harness, replacement }) => ({ rollout: newId("ro", runtime), attempt, seed, harness, replacement: replacement + 1 }));
      if (again.length > 0) await this.#rollouts.emit({ type: "rollouts_planned", group, rollouts: again });
    }
  }

  async #planItem(item: PlanItem): Promise<readonly Work[]> {
    const { observer, runtime, state, config } = this.#options;
    if (item.kind === "refused") {
      await this.#rollouts.emit({ type: "input_refused", source: item.source, error: item.error });
      observer.note(`${item.source}: ${item.error.message}${item.error.fix === null ? "" : ` (${item.error.fix})`}`);
      return [];
    }
    const checked = checkItem(item, this.#options.preflight);
    const task = checked.kind === "group" ? checked.task : fromFailure(checked.error);
    const reference = checked.kind === "group" ? referenceOf(checked.task) : checked.reference;
    if (task instanceof MwError) observer.note(`${item.source}: ${task.message}${task.fix === undefined ? "" : ` (${task.fix})`}`);
    const group = newId("grp", runtime);
    const rollouts = branched(item.attempts.map((attempt) => ({ rollout: newId("ro", runtime), ...attempt })), config.branch);
    await this.#rollouts.emit({ type: "group_planned", group, index: state.planned, source: item.source, task: reference, error: task instanceof MwError ? toFailure(task) : null, rollouts, ...(item.inputs === undefined || state.inputs !== null ? {} : { inputs: item.inputs }) });
    return rollouts.map(({ rollout }) => ({ rollout: state.rollout(rollout), task }));
  }

  async #start({ rollout, task }: Work): Promise<void> {
    if (task instanceof MwError) await this.#rollouts.record(rollout, { outcome: "task_error", reward: null, rewards: {}, stopReason: null, error: task });
    else if (rollout.branch === null) await this.#rollouts.begin(rollout, task);
    else this.#beginLater(rollout, task);
  }

  /** A branch holds nobody up while it waits for its parent. */
  #beginLater(rollout: RolloutState, task: Task): void {
    const begun = this.#rollouts
      .whenReady(rollout)
      .then(() => this.#rollouts.begin(rollout, task))
      .then(
        () => undefined,
        (error: unknown) => {
          if (!this.#rollouts.admission.aborted) this.#rollouts.fail(toMwError(error));
        },
      )
      .finally(() => this.#later.delete(begun));
    this.#later.add(begun);
  }
}

/** All but the first branch from the first, whose harness they have. */
function branched(rollouts: readonly PlannedRollout[], branch: RunConfig["branch"]): readonly PlannedRollout[] {
  const [first] = rollouts;
  if (branch === null || first === undefined) return rollouts;
  return rollouts.map((rollout, index) => (index === 0 ? rollout : { ...rollout, harness: first.harness, branch: { parent: first.rollout, turn: branch.turn } }));
}

/** What says nothing about the policy or the task, and may pass. */
const PASSING: ReadonlySet<Outcome | null> = new Set<Outcome>(["sandbox_error", "model_error", "harness_error"]);

/** Of a group, the last rollout at each place where that ended so. */
export function failedPlaces(rollouts: readonly RolloutState[]): readonly RolloutState[] {
  const last = new Map<number, RolloutState>();
  for (const rollout of rollouts) if (rollout.replacement >= (last.get(rollout.attempt)?.replacement ?? 0)) last.set(rollout.attempt, rollout);
  return [...last.values()].filter(({ outcome }) => PASSING.has(outcome));
}
