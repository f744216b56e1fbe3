/**
 * Drives a run: admits rollouts while there is room, tries again what failed through no act of the policy, and stops in order.
 *
 * Invariants: an event is in the log before anything that follows from it happens; a rollout has one terminal record; when `run` settles, no try is under way.
 *
 * Stopping: `drain` admits nothing more and lets what runs finish within a grace period; `stop` ends it now. What was ended is not recorded: a later controller
 * tries it again. A log that takes no more events stops the run the same way, with its error.
 */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { MwError, toMwError } from "../core/errors.ts";
import { newId } from "../core/ids.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import { Semaphore } from "../core/semaphore.ts";
import type { Harness } from "../harness/harness.ts";
import type { EventLog } from "../store/event-log.ts";
import { writeDurably } from "../store/durable.ts";
import { rolloutDirectory } from "../store/run-directory.ts";
import type { Task } from "../task/task.ts";
import { toFailure, toLogEvent, type Failure, type RunEvent } from "./events.ts";
import { hostRoom, shortage, type HostRoom } from "./host.ts";
import { checkItem, referenceOf, type PlanItem } from "./plan.ts";
import { RolloutRecorder } from "./recorder.ts";
import { rolloutDocument } from "./report.ts";
import type { RolloutState } from "./rollout-state.ts";
import type { RunConfig } from "./run-config.ts";
import type { RunState } from "./run-state.ts";
import { runTry, type TryResult, type TryServices } from "./try.ts";

export interface RunObserver {
  /** After each event, when it is durable. */
  changed(state: RunState, event: RunEvent): void;
  /** Something that people should know while it happens. */
  note(text: string): void;
  /** What is under way and soon over, such as a step of a build; it may be dropped. */
  activity?(text: string): void;
}

export interface ControllerOptions {
  readonly home: string;
  readonly config: RunConfig;
  readonly runtime: Runtime;
  readonly log: EventLog;
  /** Folded from the log, and moved along with it. */
  readonly state: RunState;
  /** What is still to be planned. */
  readonly plan: AsyncIterator<PlanItem>;
  /** Reads a task that an earlier controller has planned. */
  readonly loadTask: (directory: string) => Promise<Task>;
  /** Throws what makes a task impossible here. */
  readonly preflight: (task: Task) => void;
  readonly harness: (name: string) => Harness;
  /** Everything that a try needs; `signal` ends pulls and builds. */
  readonly services: (signal: AbortSignal) => TryServices;
  readonly observer: RunObserver;
  readonly hostRoom?: (directory: string) => Promise<HostRoom>;
}

interface Work {
  readonly rollout: RolloutState;
  /** The task, or why there is none. */
  readonly task: Task | MwError;
}

export class RunController {
  readonly #options: ControllerOptions;
  readonly #services: TryServices;
  readonly #slots: Semaphore;
  readonly #admission = new AbortController();
  readonly #stopping = new AbortController();
  /** Aborted at the end: a timer that still waits must not keep the process alive. */
  readonly #over = new AbortController();
  readonly #active = new Set<Promise<void>>();
  #fatal: MwError | null = null;

  constructor(options: ControllerOptions) {
    this.#options = options;
    this.#services = options.services(this.#stopping.signal);
    this.#slots = new Semaphore(options.config.concurrency);
  }

  /** Resolves when everything has ended, or what could not was left for a later controller. Rejects when the log or the host would not let it go on. */
  async run(): Promise<"finished" | "interrupted"> {
    try {
      for await (const work of this.#work()) await this.#start(work);
    } catch (error) {
      if (!this.#admission.signal.aborted) this.#fail(toMwError(error));
    }
    while (this.#active.size > 0) await Promise.allSettled(this.#active);
    this.#over.abort("over");
    const { planCompleted, recorded, rollouts } = this.#options.state;
    // An interrupt that came when the last rollouts were under way has interrupted nothing.
    const complete = planCompleted && recorded === rollouts.size;
    const interrupted = complete ? null : (this.#fatal?.message ?? (this.#admission.signal.aborted ? toMwError(this.#admission.signal.reason).message : null));
    if (interrupted === null) {
      await this.#emit({ type: "run_finished" });
      return "finished";
    }
    // The log may be what failed.
    await this.#emit({ type: "run_interrupted", reason: interrupted }).catch(() => undefined);
    if (this.#fatal !== null) throw this.#fatal;
    return "interrupted";
  }

  /** Admits nothing more; what runs has `graceMs` to finish. */
  drain(reason: string, graceMs: number): void {
    if (this.#admission.signal.aborted) return;
    this.#admission.abort(new MwError("cancelled", reason));
    this.#options.runtime.sleep(graceMs, this.#over.signal).then(
      () => this.stop(reason),
      () => undefined,
    );
  }

  /** Ends what runs, now. */
  stop(reason: string): void {
    const error = new MwError("cancelled", reason);
    if (!this.#admission.signal.aborted) this.#admission.abort(error);
    if (!this.#stopping.signal.aborted) this.#stopping.abort(error);
  }

  /** Number of rollouts under way. */
  get active(): number {
    return this.#active.size;
  }

  #fail(error: MwError): void {
    this.#fatal ??= error;
    this.stop(error.message);
  }

  /** First what an earlier controller left, then what is planned anew. */
  async *#work(): AsyncGenerator<Work> {
    // Groups planned later are appended and come through the plan.
    const groups = this.#options.state.groups.slice();
    for (const group of groups) {
      const open = group.rollouts.filter((rollout) => rollout.phase !== "recorded");
      if (open.length === 0) continue;
      const task = group.error === null ? await this.#reload(group.task.directory, group.task.digest) : fromFailure(group.error);
      for (const rollout of open) if (await this.#recover(rollout)) yield { rollout, task };
    }
    if (this.#options.state.planCompleted) return;
    // One item is read ahead: the next task is there when there is room for it, and whoever watches knows the total as soon as it is known.
    for (let next = await this.#options.plan.next(); next.done !== true; ) {
      const works = await this.#planItem(next.value);
      next = await this.#options.plan.next();
      if (next.done === true) await this.#emit({ type: "plan_completed", groups: this.#options.state.groups.length });
      yield* works;
    }
    if (!this.#options.state.planCompleted) await this.#emit({ type: "plan_completed", groups: this.#options.state.groups.length });
  }

  async #planItem(item: PlanItem): Promise<readonly Work[]> {
    const { observer, runtime, state } = this.#options;
    if (item.kind === "refused") {
      await this.#emit({ type: "input_refused", source: item.source, error: item.error });
      observer.note(`${item.source}: ${item.error.message}${item.error.fix === null ? "" : ` (${item.error.fix})`}`);
      return [];
    }
    const checked = checkItem(item, this.#options.preflight);
    const task = checked.kind === "group" ? checked.task : fromFailure(checked.error);
    const reference = checked.kind === "group" ? referenceOf(checked.task) : checked.reference;
    if (task instanceof MwError) observer.note(`${item.source}: ${task.message}${task.fix === undefined ? "" : ` (${task.fix})`}`);
    const group = newId("grp", runtime);
    const rollouts = item.attempts.map((attempt) => ({ rollout: newId("ro", runtime), ...attempt }));
    await this.#emit({ type: "group_planned", group, index: state.groups.length, source: item.source, task: reference, error: task instanceof MwError ? toFailure(task) : null, rollouts });
    return rollouts.map(({ rollout }) => ({ rollout: state.rollout(rollout), task }));
  }

  #checked(task: Task): Task | MwError {
    try {
      this.#options.preflight(task);
      return task;
    } catch (error) {
      return toMwError(error);
    }
  }

  async #reload(directory: string, digest: string | null): Promise<Task | MwError> {
    try {
      const task = await this.#options.loadTask(directory);
      if (task.digest !== digest) {
        return new MwError("invalid_task", `the task in ${directory} has changed since the run began (${task.digest}, planned was ${digest})`, { fix: "put it back as it was, or start a new run" });
      }
      return this.#checked(task);
    } catch (error) {
      return toMwError(error);
    }
  }

  /** Ends the try that a dead controller left in flight. False when that was the last one it gets. */
  async #recover(rollout: RolloutState): Promise<boolean> {
    if (rollout.phase === "planned") return true;
    const error: Failure = { code: "sandbox_failed", message: `the controller died while the rollout was ${rollout.phase}`, fix: null };
    const base = { rollout: rollout.rollout, try: rollout.try } as const;
    if (rollout.lostTries >= LIMITS.controllerLosses) {
      await this.#record(rollout, { outcome: "sandbox_error", reward: null, rewards: {}, stopReason: null, error: new MwError("sandbox_failed", error.message) });
      return false;
    }
    await this.#emit({ type: "rollout_try_failed", ...base, outcome: "sandbox_error", error, cause: "controller_lost" });
    return true;
  }

  async #start({ rollout, task }: Work): Promise<void> {
    if (task instanceof MwError) {
      await this.#record(rollout, { outcome: "task_error", reward: null, rewards: {}, stopReason: null, error: task });
      return;
    }
    const release = await this.#slots.acquire(this.#admission.signal);
    try {
      await this.#waitForRoom();
      this.#admission.signal.throwIfAborted();
    } catch (error) {
      release();
      throw error;
    }
    const running = this.#rollout(rollout, task)
      .catch((error: unknown) => this.#fail(toMwError(error)))
      .finally(() => {
        release();
        this.#active.delete(running);
      });
    this.#active.add(running);
  }

  async #rollout(rollout: RolloutState, task: Task): Promise<void> {
    for (;;) {
      const number = rollout.try + 1;
      const base = { rollout: rollout.rollout, try: number } as const;
      await this.#emit({ type: "rollout_admitted", ...base });
      const result = await this.#try(rollout, task, number);
      if (this.#stopping.signal.aborted && result.outcome !== "scored") {
        await this.#emit({ type: "rollout_try_failed", ...base, outcome: "cancelled", error: toFailure(this.#stopping.signal.reason), cause: "interrupted" });
        return;
      }
      const rule = this.#options.config.rules[result.outcome];
      if (number - rollout.lostTries > rule.retries) {
        await this.#record(rollout, result);
        return;
      }
      await this.#emit({ type: "rollout_try_failed", ...base, outcome: result.outcome, error: toFailure(result.error), cause: "failure" });
      // Longer each time: what failed may need a moment to come back.
      await this.#options.runtime.sleep(500 * 2 ** Math.min(number - 1, 6), this.#admission.signal).catch(() => undefined);
      try {
        await this.#waitForRoom();
      } catch (error) {
        if (!this.#admission.signal.aborted) throw error;
      }
      // What is not begun again is a later controller's.
      if (this.#admission.signal.aborted) return;
    }
  }

  async #try(rollout: RolloutState, task: Task, number: number): Promise<TryResult> {
    const { home, config, state } = this.#options;
    // The log's first event names the run.
    const run = state.run;
    if (run === null) throw new MwError("internal", "a run without an id");
    let recorder: RolloutRecorder;
    try {
      recorder = await RolloutRecorder.open(rolloutDirectory(home, run, rollout.rollout), config.durability);
    } catch (error) {
      return { outcome: "sandbox_error", reward: null, rewards: {}, stopReason: null, error: toMwError(error) };
    }
    try {
      return await runTry(this.#services, {
        run,
        rollout: rollout.rollout,
        try: number,
        task,
        harness: this.#options.harness(rollout.harness),
        seed: rollout.seed,
        recorder,
        emit: (event) => this.#emit(event),
        signal: this.#stopping.signal,
      });
    } finally {
      await recorder.close();
    }
  }

  async #record(rollout: RolloutState, result: TryResult): Promise<void> {
    const event = {
      type: "rollout_recorded",
      rollout: rollout.rollout,
      try: rollout.try,
      outcome: result.outcome,
      reward: result.reward,
      rewards: result.rewards,
      stopReason: result.stopReason,
      error: result.error === null ? null : toFailure(result.error),
    } as const;
    await this.#emit(event);
    await this.#writeResult(rollout);
  }

  /** A copy of what the log says, for people and tools that look into the directory alone. */
  async #writeResult(rollout: RolloutState): Promise<void> {
    const { home, config, state, observer } = this.#options;
    if (state.run === null) return;
    try {
      const directory = rolloutDirectory(home, state.run, rollout.rollout);
      await mkdir(directory, { recursive: true });
      await writeDurably(join(directory, "result.json"), `${JSON.stringify(rolloutDocument(rollout), null, 2)}\n`, config.durability);
    } catch (error) {
      observer.note(`cannot write the result of ${rollout.rollout} into its directory: ${toMwError(error).message} (the log has it)`);
    }
  }

  /** Waits while the host is short; with nothing running and no end in sight that ends the run. */
  async #waitForRoom(): Promise<void> {
    const { home, runtime, observer } = this.#options;
    const room = this.#options.hostRoom ?? hostRoom;
    const since = runtime.monotonic();
    for (let told = false; ; ) {
      const short = shortage(await room(home));
      if (short === null) {
        if (told) observer.note("the host has room again");
        return;
      }
      if (!told) observer.note(`waiting: the host is short of ${short}`);
      told = true;
      if (this.#active.size <= 1 && runtime.monotonic() - since > LIMITS.hostShortMs) {
        throw new MwError("host_exhausted", `the host stays short of ${short}`, { fix: "make room, then resume the run" });
      }
      await runtime.sleep(500, this.#admission.signal);
    }
  }

  async #emit(event: RunEvent): Promise<void> {
    const { log, state, runtime, observer } = this.#options;
    state.check(event);
    const at = runtime.now();
    await log.append([toLogEvent(event)], { at });
    // With the time that is in the log: whoever folds it later gets the same state.
    state.apply(event, at);
    observer.changed(state, event);
  }
}

function fromFailure({ code, message, fix }: Failure): MwError {
  return new MwError(code, message, fix === null ? {} : { fix });
}
