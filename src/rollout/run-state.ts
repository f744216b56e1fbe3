/** A whole run as a fold over its log. */
import { MwError } from "../core/errors.ts";
import type { GroupId, RolloutId, RunId } from "../core/ids.ts";
import type { Outcome } from "../core/outcome.ts";
import { eventsFile } from "../store/run-directory.ts";
import { readLog, startOfLog } from "../store/log-reader.ts";
import { fromLogEvent, type Failure, type RunEvent, type TaskReference } from "./events.ts";
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
}

export class RunState {
  run: RunId | null = null;
  /** `interrupted` is what the last controller said; one that was killed said nothing. */
  status: "running" | "interrupted" | "finished" = "running";
  interruption: string | null = null;
  planCompleted = false;
  createdAt = 0;
  lastAt = 0;
  recorded = 0;
  /** Pid of the last controller. */
  controllerPid: number | null = null;
  readonly groups: GroupState[] = [];
  readonly rollouts = new Map<RolloutId, RolloutState>();
  readonly refused: { readonly source: string; readonly error: Failure }[] = [];
  /** What was planned or refused, as the inputs named it, in order. */
  readonly sources: string[] = [];
  readonly outcomes = new Map<Outcome, number>();

  /** Throws `corrupt` for an event that may not happen now. */
  check(event: RunEvent): void {
    if ((event.type === "run_created") !== (this.run === null)) throw new MwError("corrupt", `the run's log begins with ${event.type}, or is created twice`);
    if (event.type === "group_planned") {
      if (event.index !== this.groups.length) throw new MwError("corrupt", `group ${event.index} is planned where group ${this.groups.length} was expected`);
      for (const { rollout } of event.rollouts) if (this.rollouts.has(rollout)) throw new MwError("corrupt", `rollout ${rollout} is planned twice`);
    }
    if ("rollout" in event) checkRolloutEvent(this.rollout(event.rollout), event);
  }

  rollout(id: RolloutId): RolloutState {
    const rollout = this.rollouts.get(id);
    if (rollout === undefined) throw new MwError("corrupt", `the run's log speaks of rollout ${id}, which was never planned`);
    return rollout;
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

  #plan(event: Extract<RunEvent, { type: "group_planned" }>, at: number): void {
    const rollouts = event.rollouts.map(({ rollout, attempt, seed, harness }) => newRollout({ rollout, group: event.group, task: event.task, attempt, seed, harness, at }));
    for (const rollout of rollouts) this.rollouts.set(rollout.rollout, rollout);
    this.sources.push(event.source);
    this.groups.push({ group: event.group, index: event.index, source: event.source, task: event.task, error: event.error, rollouts });
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
