/** A whole run as a fold over its log. */
import { MwError } from "../core/errors.ts";
import type { GroupId, RolloutId, RunId } from "../core/ids.ts";
import type { Outcome } from "../core/outcome.ts";
import { eventsFile } from "../store/run-directory.ts";
import { readLog, startOfLog } from "../store/log-reader.ts";
import { fromLogEvent, type Failure, type PlannedRollout, type RunEvent, type TaskReference } from "./events.ts";
import { applyRolloutEvent, checkRolloutEvent, newRollout, type RolloutState } from "./rollout-state.ts";

export interface GroupState {
  readonly group: GroupId;
  /** Place in the order in which groups were planned, from 0. */
  readonly index: number;
  /** As the input named it. */
  readonly source: string;
  readonly task: TaskReference;
  /** Why the task cannot run, when it cannot. */
  readonly error: Failure | null;
  readonly rollouts: readonly RolloutState[];
  /** As the trainer calls it that asked for it; null for the groups of a plan. */
  readonly name: string | null;
  readonly dataset: string | null;
}

export class RunState {
  run: RunId | null = null;
  /** `interrupted` is what the last controller said; one that was killed said nothing. */
  status: "running" | "interrupted" | "finished" = "running";
  interruption: string | null = null;
  planCompleted = false;
  /** How many inputs the plan has in all; null while that is not known. */
  inputs: number | null = null;
  createdAt = 0;
  lastAt = 0;
  recorded = 0;
  /** Pid of the last controller. */
  controllerPid: number | null = null;
  /** Groups that were ever planned, also those that were let go. */
  planned = 0;
  readonly groups: GroupState[] = [];
  readonly #members = new Map<GroupId, { readonly task: TaskReference; readonly rollouts: RolloutState[] }>();
  readonly #named = new Map<string, GroupState>();
  readonly rollouts = new Map<RolloutId, RolloutState>();
  readonly refused: { readonly source: string; readonly error: Failure }[] = [];
  /** What was planned or refused, as the inputs named it, in order. */
  readonly sources: string[] = [];
  readonly outcomes = new Map<Outcome, number>();

  /** With groups and rollouts as a fold left them; rollouts in the order of the plan. */
  static of(groups: readonly (GroupState & { readonly rollouts: RolloutState[] })[], rollouts: readonly RolloutState[]): RunState {
    const state = new RunState();
    for (const group of groups) {
      state.groups.push(group);
      state.#members.set(group.group, group);
      if (group.name !== null) state.#named.set(group.name, group);
    }
    for (const rollout of rollouts) state.rollouts.set(rollout.rollout, rollout);
    return state;
  }

  /** Throws `corrupt` for an event that may not happen now. */
  check(event: RunEvent): void {
    if ((event.type === "run_created") !== (this.run === null)) throw new MwError("corrupt", `the run's log begins with ${event.type}, or is created twice`);
    if (event.type === "group_planned") {
      if (event.index !== this.planned) throw new MwError("corrupt", `group ${event.index} is planned where group ${this.planned} was expected`);
      if (event.name !== undefined && this.#named.has(event.name)) throw new MwError("corrupt", `a group ${JSON.stringify(event.name)} is planned twice`);
    }
    if (event.type === "rollouts_planned" && !this.#members.has(event.group)) throw new MwError("corrupt", `rollouts are planned in group ${event.group}, which was never planned`);
    if (event.type === "group_planned" || event.type === "rollouts_planned") {
      for (const { rollout } of event.rollouts) if (this.rollouts.has(rollout)) throw new MwError("corrupt", `rollout ${rollout} is planned twice`);
    }
    if ("rollout" in event) checkRolloutEvent(this.rollout(event.rollout), event);
  }

  rollout(id: RolloutId): RolloutState {
    const rollout = this.rollouts.get(id);
    if (rollout === undefined) throw new MwError("corrupt", `the run's log speaks of rollout ${id}, which was never planned`);
    return rollout;
  }

  /** Rollouts that there will be, as far as that is known; null while it is not. */
  get expected(): number | null {
    if (this.planCompleted) return this.rollouts.size;
    if (this.inputs === null) return null;
    const attempts = this.groups.at(-1)?.rollouts.length ?? 0;
    return this.rollouts.size + Math.max(0, this.inputs - this.sources.length) * attempts;
  }

  groupOf({ group }: RolloutState): readonly RolloutState[] {
    return this.#members.get(group)?.rollouts ?? [];
  }

  /** The group that a trainer calls so; null when it was never planned. */
  groupNamed(name: string): GroupState | null {
    return this.#named.get(name) ?? null;
  }

  /** Lets a trainer's group go with its rollouts, all of which are recorded, for a run that goes on for weeks; the counts and the log keep them. False where it is not over. */
  forget(name: string): boolean {
    const group = this.#named.get(name);
    if (group === undefined || group.rollouts.some(({ phase }) => phase !== "recorded")) return false;
    this.#named.delete(name);
    this.#members.delete(group.group);
    for (const { rollout } of group.rollouts) this.rollouts.delete(rollout);
    this.groups.splice(this.groups.indexOf(group), 1);
    return true;
  }

  /** Throws `corrupt` for an event that may not happen now; then the state is unchanged. */
  apply(event: RunEvent, at: number): void {
    this.check(event);
    this.lastAt = at;
    if ("rollout" in event) {
      applyRolloutEvent(this.rollout(event.rollout), event, at);
      if (event.type === "rollout_recorded") {
        this.recorded++;
        this.outcomes.set(event.outcome, (this.outcomes.get(event.outcome) ?? 0) + 1);
      }
      return;
    }
    switch (event.type) {
      case "run_created":
        this.run = event.run;
        this.createdAt = at;
        break;
      case "controller_started":
        this.status = "running";
        this.interruption = null;
        this.controllerPid = event.pid;
        break;
      case "input_refused":
        this.sources.push(event.source);
        this.refused.push({ source: event.source, error: event.error });
        break;
      case "group_planned":
        this.#plan(event, at);
        break;
      case "rollouts_planned":
        this.#add(event.group, event.rollouts, at);
        break;
      case "plan_completed":
        this.planCompleted = true;
        break;
      case "run_interrupted":
        this.status = "interrupted";
        this.interruption = event.reason;
        break;
      case "run_finished":
        this.status = "finished";
        break;
    }
  }

  #plan({ group, index, source, task, error, ...event }: Extract<RunEvent, { type: "group_planned" }>, at: number): void {
    const rollouts: RolloutState[] = [];
    const planned: GroupState = { group, index, source, task, error, rollouts, name: event.name ?? null, dataset: event.dataset ?? null };
    // What a trainer asks for is no input of a plan.
    this.inputs ??= event.inputs ?? null;
    if (planned.name === null) this.sources.push(source);
    this.groups.push(planned);
    this.planned++;
    this.#members.set(group, { task, rollouts });
    if (planned.name !== null) this.#named.set(planned.name, planned);
    this.#add(group, event.rollouts, at);
  }

  #add(group: GroupId, planned: readonly PlannedRollout[], at: number): void {
    const members = this.#members.get(group);
    if (members === undefined) return;
    for (const one of planned) {
      const rollout = newRollout({ ...one, group, task: members.task, at });
      members.rollouts.push(rollout);
      this.rollouts.set(rollout.rollout, rollout);
    }
  }
}

/** Folds the log of a run as it is now, without touching it; also while a controller writes to it. */
export async function loadRunState(home: string, run: RunId): Promise<RunState> {
  const state = new RunState();
  const path = eventsFile(home, run);
  try {
    for await (const { event, at } of readLog(path, startOfLog())) state.apply(fromLogEvent(event), Date.parse(at));
  } catch (error) {
    // A run that was killed before its first event has a directory and nothing else.
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  return state;
}
