/**
 * The rollouts of one run, each from its admission to its record: admitted while there is room, tried again by rule, recorded once. Which there are, and when, is up to who has them.
 *
 * Invariants: an event is in the log before anything that follows from it happens; a rollout has one terminal record; what `stop` ended is not recorded, so that a later
 * controller tries it again, and what its own signal ended is recorded as `cancelled`.
 */
import { setMaxListeners } from "node:events";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { firstOf } from "../core/deadline.ts";
import { MwError, toMwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import { Semaphore } from "../core/semaphore.ts";
import { HandoverLost } from "../harness/handover.ts";
import type { Harness } from "../harness/harness.ts";
import type { EventLog } from "../store/event-log.ts";
import { writeDurably } from "../store/durable.ts";
import { handoverDirectory, rolloutDirectory } from "../store/run-directory.ts";
import type { Task } from "../task/task.ts";
import { askedIn, untold } from "./asked.ts";
import { attribute } from "./attribution.ts";
import { branchTurn, canBegin, setupSeed, sourceOf } from "./checkpoint/branch.ts";
import { releaseCheckpoints } from "./checkpoint/sweep.ts";
import type { Restored } from "./checkpoint/restore.ts";
import { toFailure, toLogEvent, type Failure, type RunEvent } from "./events.ts";
import { hostRoom, shortage, type HostRoom } from "./host.ts";
import { RolloutRecorder } from "./recorder.ts";
import { rolloutDocument } from "./report.ts";
import type { RolloutState } from "./rollout-state.ts";
import type { RunConfig } from "./run-config.ts";
import type { RunState } from "./run-state.ts";
import { forgetAgent } from "./take-over/agent-record.ts";
import { keptResult } from "./take-over/kept-verdict.ts";
import { Survivors, type Survivor } from "./take-over/survivors.ts";
import type { LivingTry, TryResult, TryServices } from "./try/request.ts";
import { failedTry, runTry } from "./try/try.ts";

export interface RunObserver {
  /** After each event, when it is durable. */
  changed(state: RunState, event: RunEvent): void;
  /** Something that people should know while it happens. */
  note(text: string): void;
  /** What is under way and soon over, such as a step of a build; it may be dropped. */
  activity?(text: string): void;
}

export interface RolloutsOptions {
  readonly home: string;
  readonly config: Pick<RunConfig, "concurrency" | "durability" | "rules">;
  readonly runtime: Runtime;
  readonly log: EventLog;
  /** Folded from the log, and moved along with it. */
  readonly state: RunState;
  /** Throws for a name that is none, or that lacks an option. */
  readonly harness: (name: string) => Harness;
  /** Everything that a try needs; `signal` ends pulls and builds. */
  readonly services: (signal: AbortSignal) => TryServices;
  readonly observer: RunObserver;
  /** Of the controller before; absent: none. */
  readonly survivors?: Survivors;
  readonly hostRoom?: (directory: string) => Promise<HostRoom>;
  /** A host that stays short of something with nothing running fails the run after this; null: it is waited for. */
  readonly hostShortMs: number | null;
}

const NEVER = new AbortController().signal;

export class Rollouts {
  readonly #options: RolloutsOptions;
  readonly #services: TryServices;
  readonly #slots: Semaphore;
  readonly #survivors: Survivors;
  readonly #admission = new AbortController();
  readonly #stopping = new AbortController();
  /** Aborted at the end: a timer that still waits must not keep the process alive. */
  readonly #over = new AbortController();
  readonly #active = new Set<Promise<void>>();
  /** Told after each event, and when nothing more is admitted. */
  readonly #waiting = new Set<() => void>();
  #fatal: MwError | null = null;

  constructor(options: RolloutsOptions) {
    // As many rollouts may listen to them as are planned.
    setMaxListeners(0, this.#admission.signal, this.#stopping.signal);
    this.#options = options;
    this.#admission.signal.addEventListener("abort", () => this.#tellWaiting());
    this.#services = options.services(this.#stopping.signal);
    this.#survivors = options.survivors ?? Survivors.none;
    this.#slots = new Semaphore(options.config.concurrency);
  }

  /** Number of rollouts under way. */
  get active(): number {
    return this.#active.size;
  }

  /** Aborted once nothing more is admitted, with the reason. */
  get admission(): AbortSignal {
    return this.#admission.signal;
  }

  /** Why nothing can go on. */
  get fatal(): MwError | null {
    return this.#fatal;
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

  fail(error: MwError): void {
    this.#fatal ??= error;
    this.stop(error.message);
  }

  /** Resolves when no try is under way. */
  async settled(): Promise<void> {
    while (this.#active.size > 0) await Promise.allSettled(this.#active);
    this.#over.abort("over");
  }

  /** Its machine outlived the controller before, and it goes on in there when it begins. */
  survives(rollout: RolloutState): boolean {
    return this.#survivors.has(rollout) && rollout.vainTries < LIMITS.controllerLosses;
  }

  /** Ends the try that a dead controller left in flight, unless its machine survives. False when that was the last one it gets, or it was verified. */
  async recover(rollout: RolloutState): Promise<boolean> {
    if (rollout.phase === "planned" || this.survives(rollout)) return true;
    const { home, state } = this.#options;
    const kept = state.run === null ? null : await keptResult(rolloutDirectory(home, state.run, rollout.rollout), rollout);
    if (kept !== null) return await this.record(rollout, kept).then(() => false);
    const whyNot = this.#survivors.whyNot(rollout);
    const asked = await this.#askedByDead(rollout);
    const error: Failure = { code: "sandbox_failed", message: `the controller died while the rollout was ${rollout.phase}${whyNot === null ? "" : `, and it cannot be taken over: ${whyNot}`}`, fix: null };
    if (rollout.vainTries >= LIMITS.controllerLosses) {
      await this.record(rollout, { outcome: "sandbox_error", reward: null, rewards: {}, stopReason: null, error: new MwError("sandbox_failed", error.message), ...asked });
      return false;
    }
    await this.emit({ type: "rollout_try_failed", rollout: rollout.rollout, try: rollout.try, outcome: "sandbox_error", error, cause: "controller_lost", ...untold(rollout, asked) });
    return true;
  }

  /** Its calls are in its directory, where that can be read. */
  async #askedByDead({ rollout, phase }: RolloutState): Promise<Pick<TryResult, "asked">> {
    const { home, state } = this.#options;
    if (phase !== "running" || state.run === null) return {};
    return await askedIn(rolloutDirectory(home, state.run, rollout)).then((asked) => ({ asked }), () => ({}));
  }

  /**
   * Waits for room, then begins the rollout and resolves; `ended` settles when it is recorded, or was left for a later controller. Rejects when it cannot begin, with the reason of
   * the signal that ended the waiting.
   */
  async begin(rollout: RolloutState, task: Task, cancel: AbortSignal = NEVER): Promise<{ readonly ended: Promise<void> }> {
    const waiting = firstOf(this.#admission.signal, cancel);
    try {
      const release = await this.#slots.acquire(waiting.signal);
      try {
        if (!this.survives(rollout)) await this.#waitForRoom(waiting.signal);
        waiting.signal.throwIfAborted();
      } catch (error) {
        release();
        throw error;
      }
      const running = this.#run(rollout, task, cancel)
        .catch((error: unknown) => this.fail(toMwError(error)))
        .finally(() => {
          release();
          this.#active.delete(running);
        });
      this.#active.add(running);
      return { ended: running };
    } finally {
      waiting.release();
    }
  }

  async #run(rollout: RolloutState, task: Task, cancel: AbortSignal): Promise<void> {
    for (;;) {
      const survivor = this.#survivors.take(rollout);
      const number = survivor === null ? rollout.try + 1 : rollout.try;
      const base = { rollout: rollout.rollout, try: number } as const;
      if (survivor === null) await this.emit({ type: "rollout_admitted", ...base });
      const result = await this.#try(rollout, task, number, survivor, cancel);
      // Where the try did not come so far that it ended it.
      void survivor?.sandbox.kill().catch(() => undefined);
      if (this.#stopping.signal.aborted && result.outcome !== "scored") {
        await this.emit({ type: "rollout_try_failed", ...base, outcome: "cancelled", error: toFailure(this.#stopping.signal.reason), cause: "interrupted", ...untold(rollout, result) });
        return;
      }
      if (cancel.aborted && result.outcome !== "scored") {
        await this.record(rollout, cancelled(cancel, result));
        return;
      }
      if (result.lost !== undefined) {
        const error = toFailure(result.error);
        await this.emit({ type: "rollout_try_failed", ...base, outcome: result.outcome, error, cause: result.lost, ...untold(rollout, result) });
        this.#options.observer.note(`${rollout.rollout} begins ${rollout.checkpoint === null ? "anew" : "again"}: ${error.message}`);
        if (this.#admission.signal.aborted) return;
        continue;
      }
      const rule = this.#options.config.rules[result.outcome];
      if (number - rollout.lostTries > rule.retries) {
        await this.record(rollout, result);
        return;
      }
      await this.emit({ type: "rollout_try_failed", ...base, outcome: result.outcome, error: toFailure(result.error), cause: "failure", ...untold(rollout, result) });
      await this.#breathe(number, cancel);
      // What is not begun again is a later controller's.
      if (this.#admission.signal.aborted) return;
      if (cancel.aborted) {
        await this.record(rollout, cancelled(cancel, null));
        return;
      }
    }
  }

  /** Between two tries, longer each time: what failed may need a moment to come back. */
  async #breathe(number: number, cancel: AbortSignal): Promise<void> {
    const waiting = firstOf(this.#admission.signal, cancel);
    try {
      await this.#options.runtime.sleep(500 * 2 ** Math.min(number - 1, 6), waiting.signal);
      await this.#waitForRoom(waiting.signal);
    } catch (error) {
      if (!waiting.signal.aborted) throw error;
    } finally {
      waiting.release();
    }
  }

  async #try(rollout: RolloutState, task: Task, number: number, survivor: Survivor | null, cancel: AbortSignal): Promise<TryResult> {
    const { home, config, state } = this.#options;
    // The log's first event names the run.
    const run = state.run;
    if (run === null) throw new MwError("internal", "a run without an id");
    let harness: Harness;
    try {
      harness = this.#options.harness(rollout.harness);
      // Making them may take minutes, once.
      await this.#services.layers(harness);
    } catch (error) {
      return { outcome: attribute("agent", error), reward: null, rewards: {}, stopReason: null, error: toMwError(error) };
    }
    const group = this.#options.state.groupOf(rollout);
    const source = sourceOf(home, run, group, rollout);
    const directory = rolloutDirectory(home, run, rollout.rollout);
    let recorder: RolloutRecorder;
    let restored: Restored | null = null;
    let living: LivingTry | null = null;
    try {
      if (survivor !== null) {
        const { recorder: taken, ...rest } = await takeUp(directory, config.durability, survivor.phase === "running");
        recorder = taken;
        living = { ...survivor, ...rest, checkpoint: rollout.checkpoint };
      } else if (source === null) recorder = await RolloutRecorder.open(directory, config.durability);
      else ({ recorder, restored } = await RolloutRecorder.goOn(directory, config.durability, source));
    } catch (error) {
      return failedTry("lease", error);
    }
    const ending = firstOf(this.#stopping.signal, cancel);
    try {
      const result = await runTry(this.#services, {
        run,
        rollout: rollout.rollout,
        try: number,
        task,
        harness,
        seed: rollout.seed,
        setupSeed: setupSeed(group, rollout),
        branchTurn: branchTurn(group, rollout),
        restored,
        survivor: living,
        handoverDirectory: handoverDirectory(home, run, rollout.rollout),
        sampling: rollout.sampling,
        deadlineMs: rollout.deadlineMs,
        recorder,
        emit: (event) => this.emit(event),
        signal: ending.signal,
      });
      return { ...result, asked: recorder.asked };
    } finally {
      ending.release();
      await recorder.close();
    }
  }

  /** Terminal. */
  async record(rollout: RolloutState, result: TryResult): Promise<void> {
    const event = {
      type: "rollout_recorded",
      rollout: rollout.rollout,
      try: rollout.try,
      outcome: result.outcome,
      reward: result.reward,
      rewards: result.rewards,
      stopReason: result.stopReason,
      error: result.error === null ? null : toFailure(result.error),
      ...untold(rollout, result),
    } as const;
    await this.emit(event);
    // Of a rollout that ends before it goes on in its machine, such as one whose task has changed.
    await this.#survivors.take(rollout)?.sandbox.kill();
    if (this.#services.takeOverSeconds !== null && this.#options.state.run !== null) await forgetAgent(handoverDirectory(this.#options.home, this.#options.state.run, rollout.rollout));
    await this.#writeResult(rollout);
    await this.#releaseCheckpoints(rollout);
  }

  /** What stays for want of room or luck is swept by the next controller. */
  async #releaseCheckpoints(rollout: RolloutState): Promise<void> {
    const { state, observer } = this.#options;
    if (state.run === null) return;
    await releaseCheckpoints(state.run, state.groupOf(rollout), this.#services.backend.snapshots).catch((error: unknown) => observer.note(`cannot remove a checkpoint of ${rollout.rollout}: ${toMwError(error).message}`));
  }

  /** Resolves when it can begin: at once, or as a branch when its parent has come so far. Rejects with the reason when nothing more is admitted. */
  async whenReady(rollout: RolloutState): Promise<void> {
    const group = this.#options.state.groupOf(rollout);
    while (!canBegin(group, rollout)) {
      this.#admission.signal.throwIfAborted();
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    }
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

  /** Waits while the host is short; with nothing running and no end in sight that may end the run. */
  async #waitForRoom(signal: AbortSignal): Promise<void> {
    const { home, runtime, observer, hostShortMs } = this.#options;
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
      if (hostShortMs !== null && this.#active.size <= 1 && runtime.monotonic() - since > hostShortMs) {
        throw new MwError("host_exhausted", `the host stays short of ${short}`, { fix: "make room, then resume the run" });
      }
      await runtime.sleep(500, signal);
    }
  }

  /** Writes an event, and moves the state along. */
  async emit(event: RunEvent): Promise<void> {
    const { log, state, runtime, observer } = this.#options;
    state.check(event);
    const at = runtime.now();
    await log.append([toLogEvent(event)], { at });
    // With the time that is in the log: whoever folds it later gets the same state.
    state.apply(event, at);
    this.#tellWaiting();
    observer.changed(state, event);
  }

  #tellWaiting(): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const resolve of waiting) resolve();
  }
}

async function takeUp(...of: Parameters<typeof RolloutRecorder.takeUp>): ReturnType<typeof RolloutRecorder.takeUp> {
  try {
    return await RolloutRecorder.takeUp(...of);
  } catch (error) {
    throw toMwError(error).code === "host_exhausted" ? error : new HandoverLost(`its records cannot be read: ${toMwError(error).message}`, error);
  }
}

export function cancelled(signal: AbortSignal, result: TryResult | null): TryResult {
  return { outcome: "cancelled", reward: null, rewards: {}, stopReason: result?.stopReason ?? null, error: signal.reason instanceof MwError ? signal.reason : new MwError("cancelled", "cancelled on request"), ...(result?.asked === undefined ? {} : { asked: result.asked }) };
}
