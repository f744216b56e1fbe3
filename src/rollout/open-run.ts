/**
 * A run whose rollouts are asked for while it goes on: groups come as their first member does, members are added, replaced and cancelled one by one.
 *
 * Asking is idempotent by group, position and replacement, over the life of the run: what is recorded is answered from the record, what an earlier process left in flight is tried
 * again by rule, what is under way is joined.
 */
import { MwError, toMwError } from "../core/errors.ts";
import { newId, type RunId } from "../core/ids.ts";
import { seededRandom } from "../core/runtime.ts";
import { Semaphore } from "../core/semaphore.ts";
import type { Task } from "../task/task.ts";
import { fromFailure, toFailure } from "./events.ts";
import { referenceOf } from "./plan.ts";
import { reloadTask } from "./reload-task.ts";
import { cancelled, Rollouts, type RolloutsOptions } from "./rollouts.ts";
import type { RolloutState } from "./rollout-state.ts";
import type { GroupState } from "./run-state.ts";

export interface MemberRequest {
  /** As the trainer calls it. */
  readonly group: string;
  /** Absolute directory. */
  readonly task: string;
  readonly dataset: string | null;
  /** Position in the group, from 0, and how many were begun there before. */
  readonly member: number;
  readonly replacement: number;
  readonly seed: string;
  /** The seed draws one. */
  readonly harnesses: readonly string[];
  /** By their wire names. */
  readonly sampling: Readonly<Record<string, number>>;
  readonly deadlineMs: number | null;
}

export interface MemberRecord {
  readonly group: GroupState;
  /** Recorded. */
  readonly rollout: RolloutState;
}

export interface OpenRunOptions extends Omit<RolloutsOptions, "hostShortMs"> {
  readonly loadTask: (directory: string) => Promise<Task>;
  /** Throws what makes a task impossible for a harness. */
  readonly check: (task: Task, harness: string) => void;
  /** Closes what the run alone uses, when nothing of it is under way. */
  readonly release: () => Promise<void>;
}

interface OpenGroup {
  readonly group: GroupState;
  readonly task: Task | MwError;
}

export class OpenRun {
  readonly #options: OpenRunOptions;
  readonly #rollouts: Rollouts;
  /** Groups are numbered in the order in which they are planned. */
  readonly #planning = new Semaphore(1);
  /** Groups that somebody asks members of now. */
  readonly #groups = new Map<string, { readonly opened: Promise<OpenGroup>; users: number }>();
  readonly #members = new Map<string, Promise<MemberRecord>>();
  /** Groups that nobody will ask members of again, while those that were asked for are still under way. */
  readonly #over = new Set<string>();
  #closed: Promise<void> | null = null;

  constructor(options: OpenRunOptions) {
    this.#options = options;
    this.#rollouts = new Rollouts({ ...options, hostShortMs: null });
  }

  /** Before anything is asked for. Ends what an earlier process left in flight: its tries are lost, its rollouts wait to be asked for again. */
  async start(run: RunId, version: string): Promise<void> {
    if (this.#options.state.run === null) await this.#rollouts.emit({ type: "run_created", run });
    await this.#rollouts.emit({ type: "controller_started", pid: process.pid, version });
    for (const rollout of this.#options.state.rollouts.values()) if (rollout.phase !== "planned" && rollout.phase !== "recorded") await this.#rollouts.recover(rollout);
  }

  /**
   * Resolves when the rollout is recorded, however it ended; aborting `signal` has it recorded as `cancelled` soon. Rejects `cancelled` when the run was closed before that: then a
   * later process goes on with it. Rejects with what the log fails of.
   */
  member(request: MemberRequest, signal: AbortSignal): Promise<MemberRecord> {
    const key = `${request.group}\0${request.member}\0${request.replacement}`;
    const known = this.#members.get(key);
    if (known !== undefined) return known;
    const running = this.#member(request, signal).finally(() => this.#members.delete(key));
    this.#members.set(key, running);
    return running;
  }

  /** No member of this group is asked for again: what is recorded of it leaves memory. The log keeps it. */
  over(group: string): void {
    if (this.#groups.has(group)) this.#over.add(group);
    else this.#options.state.forget(group);
  }

  /** Ends what runs. `finished`: for good, and what was never recorded is `cancelled`; else it is left for a later process. Idempotent. */
  close(finished = false): Promise<void> {
    return (this.#closed ??= this.#close(finished));
  }

  async #member(request: MemberRequest, signal: AbortSignal): Promise<MemberRecord> {
    this.#throwIfClosed();
    const { group, task } = await this.#open(request);
    try {
      const rollout = this.#find(group, request) ?? (await this.#plan(group, request));
      if (rollout.phase !== "recorded") await this.#drive(rollout, task, signal);
      if (rollout.phase !== "recorded") throw this.#rollouts.fatal ?? new MwError("cancelled", "the run was closed before the rollout ended");
      return { group, rollout };
    } finally {
      this.#leave(request.group);
    }
  }

  async #drive(rollout: RolloutState, task: Task | MwError, signal: AbortSignal): Promise<void> {
    const impossible = task instanceof MwError ? task : this.#checked(task, rollout.harness);
    if (impossible !== null) {
      await this.#rollouts.record(rollout, { outcome: "task_error", reward: null, rewards: {}, stopReason: null, error: impossible });
      return;
    }
    let begun;
    try {
      // It is no error here.
      begun = await this.#rollouts.begin(rollout, task as Task, signal);
    } catch (error) {
      if (this.#rollouts.admission.aborted) return;
      if (!signal.aborted) throw error;
      await this.#rollouts.record(rollout, cancelled(signal, null));
      return;
    }
    await begun.ended;
  }

  #checked(task: Task, harness: string): MwError | null {
    try {
      this.#options.check(task, harness);
      return null;
    } catch (error) {
      return toMwError(error);
    }
  }

  /** The group with its task, planned by its first member; kept while members of it are asked for. */
  async #open(request: MemberRequest): Promise<OpenGroup> {
    const known = this.#groups.get(request.group);
    if (known !== undefined) {
      known.users++;
      return await this.#orForget(request.group, known.opened);
    }
    const opened = this.#openGroup(request);
    this.#groups.set(request.group, { opened, users: 1 });
    return await this.#orForget(request.group, opened);
  }

  async #orForget(name: string, opened: Promise<OpenGroup>): Promise<OpenGroup> {
    try {
      return await opened;
    } catch (error) {
      this.#leave(name);
      throw error;
    }
  }

  #leave(name: string): void {
    const entry = this.#groups.get(name);
    if (entry === undefined || --entry.users > 0) return;
    this.#groups.delete(name);
    if (this.#over.delete(name)) this.#options.state.forget(name);
  }

  async #openGroup({ group: name, task: directory, dataset }: MemberRequest): Promise<OpenGroup> {
    const { state, runtime, loadTask } = this.#options;
    const known = state.groupNamed(name);
    if (known !== null) {
      const task = known.error === null ? await reloadTask(known.task, { loadTask, preflight: () => undefined }) : fromFailure(known.error);
      return { group: known, task };
    }
    const task = await loadTask(directory).catch(toMwError);
    const [family = "", ownName = directory] = directory.split("/").slice(-2);
    const reference = task instanceof MwError ? { name: ownName, family, digest: null, directory } : referenceOf(task);
    await this.#planning.use(() =>
      this.#rollouts.emit({
        type: "group_planned",
        group: newId("grp", runtime),
        index: state.planned,
        source: directory,
        task: reference,
        error: task instanceof MwError ? toFailure(task) : null,
        rollouts: [],
        name,
        ...(dataset === null ? {} : { dataset }),
      }),
    );
    const group = state.groupNamed(name);
    if (group === null) throw new MwError("internal", "a group that was planned is not there");
    return { group, task };
  }

  #find(group: GroupState, { member, replacement }: MemberRequest): RolloutState | null {
    return group.rollouts.find((rollout) => rollout.attempt === member + 1 && rollout.replacement === replacement) ?? null;
  }

  async #plan(group: GroupState, { member, replacement, seed, harnesses, sampling, deadlineMs }: MemberRequest): Promise<RolloutState> {
    const { state, runtime } = this.#options;
    const rollout = newId("ro", runtime);
    await this.#rollouts.emit({
      type: "rollouts_planned",
      group: group.group,
      rollouts: [
        {
          rollout,
          attempt: member + 1,
          seed,
          harness: drawn(seed, harnesses),
          ...(replacement === 0 ? {} : { replacement }),
          ...(Object.keys(sampling).length === 0 ? {} : { sampling }),
          ...(deadlineMs === null ? {} : { deadlineMs }),
        },
      ],
    });
    return state.rollout(rollout);
  }

  #throwIfClosed(): void {
    if (this.#rollouts.fatal !== null) throw this.#rollouts.fatal;
    if (this.#closed !== null) throw new MwError("cancelled", "the run is closed");
  }

  async #close(finished: boolean): Promise<void> {
    const { state, log, release } = this.#options;
    try {
      this.#rollouts.stop("the run is closed");
      await this.#rollouts.settled();
      await Promise.allSettled(this.#members.values());
      if (finished && this.#rollouts.fatal === null) {
        const error = new MwError("cancelled", "the run was finished before anybody asked for it again");
        for (const rollout of state.rollouts.values()) if (rollout.phase !== "recorded") await this.#rollouts.record(rollout, { outcome: "cancelled", reward: null, rewards: {}, stopReason: null, error });
        if (!state.planCompleted) await this.#rollouts.emit({ type: "plan_completed", groups: state.planned });
        await this.#rollouts.emit({ type: "run_finished" });
      } else {
        // The log may be what failed.
        await this.#rollouts.emit({ type: "run_interrupted", reason: this.#rollouts.fatal?.message ?? "closed" }).catch(() => undefined);
      }
    } finally {
      await log.close();
      await release();
    }
  }
}

/** As for the rollouts of a plan. */
function drawn(seed: string, harnesses: readonly string[]): string {
  const pick = Math.floor(seededRandom(`${seed}/harness`)() * harnesses.length);
  return harnesses[pick] ?? harnesses[0] ?? "";
}
