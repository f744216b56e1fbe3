/**
 * One rollout whose agent is outside: its driver has commands run in the machine over HTTP, and says when it is done. To the rest of the product it is a rollout like any other, with a
 * harness that waits: commands are recorded, the work is verified in a fresh machine, the end is durable before the driver is told.
 *
 * The driver has the machine once. When the machine is lost, what the driver knows of it is worth nothing: further tries fail at once and the loss stands as the end.
 */
import { orAbort } from "../../core/deadline.ts";
import { MwError } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import { runCommand } from "../../harness/command.ts";
import type { HarnessContext, HarnessEnd } from "../../harness/harness.ts";
import { refuseLost, stopOfSignal } from "../../harness/stop.ts";
import type { MemberRecord } from "../../rollout/open-run.ts";
import type { Ended, EndRequest, ExecRequest } from "./wire.ts";

interface Machine {
  readonly context: HarnessContext;
  /** Ends the harness. */
  readonly end: (request: EndRequest) => void;
  turns: number;
  toolMs: number;
}

export class DrivenRollout {
  readonly owner: string;
  readonly #runtime: Runtime;
  readonly #cancelling = new AbortController();
  readonly #record: Promise<MemberRecord>;
  /** Resolves with the machine; rejects when there will be none. */
  readonly ready: Promise<HarnessContext>;
  #resolveReady: (context: HarnessContext) => void = () => undefined;
  #machine: Machine | null = null;
  #handedOut = false;
  #ttlMs: number;
  #expiresAt: number;
  #watch = new AbortController();

  /** `start` begins it; its machine comes through `drive`. */
  constructor(owner: string, ttlMs: number, runtime: Runtime, start: (signal: AbortSignal) => Promise<MemberRecord>) {
    this.owner = owner;
    this.#runtime = runtime;
    this.#ttlMs = ttlMs;
    this.#expiresAt = runtime.now() + ttlMs;
    this.#record = start(this.#cancelling.signal);
    this.ready = new Promise((resolve, reject) => {
      this.#resolveReady = resolve;
      this.#record.then(({ rollout }) => reject(endedBefore(rollout.error)), reject);
    });
    // Whoever asks is told; nobody may.
    this.ready.catch(() => undefined);
    this.#record.then(() => this.#watch.abort("over"), () => this.#watch.abort("over"));
  }

  /** Milliseconds since the epoch. */
  get expiresAt(): number {
    return this.#expiresAt;
  }

  /** The harness's part. */
  async drive(context: HarnessContext): Promise<HarnessEnd> {
    if (this.#handedOut) throw new MwError("sandbox_failed", LOST);
    this.#handedOut = true;
    let end: (request: EndRequest) => void = () => undefined;
    const done = new Promise<EndRequest>((resolve) => (end = resolve));
    const machine: Machine = { context, end, turns: 0, toolMs: 0 };
    this.#machine = machine;
    this.extend();
    this.#expire();
    this.#resolveReady(context);
    const workOf = (request: EndRequest | null): Omit<HarnessEnd, "stopReason" | "detail"> => ({
      turns: machine.turns,
      promptTokens: request?.prompt_tokens ?? 0,
      completionTokens: request?.completion_tokens ?? 0,
      modelMs: 0,
      toolMs: machine.toolMs,
    });
    try {
      const request = await orAbort(Promise.race([done, context.sandbox.ended]), context.signal);
      if ("stop_reason" in request) return { stopReason: request.stop_reason, detail: request.detail, ...workOf(request) };
      if (!request.kept) throw new MwError("sandbox_failed", LOST);
      // Of its own memory it is the driver's doing, and graded.
      return { stopReason: "oom_killed", detail: "The machine's memory was used up.", ...workOf(null) };
    } catch (error) {
      if (!context.signal.aborted) throw error;
      return { ...stopOfSignal(context.signal), ...workOf(null) };
    } finally {
      this.#machine = null;
    }
  }

  /** Rejects `conflict` when the driver no longer has the machine. */
  async exec({ command, stdin, timeout_s: timeoutS }: ExecRequest): Promise<Awaited<ReturnType<typeof runCommand>>> {
    const machine = this.#working();
    const { context } = machine;
    this.extend();
    const result = await runCommand(context, {
      command: typeof command === "string" ? ["/bin/sh", "-c", "--", command] : command,
      shown: command,
      agentWasHere: machine.turns > 0,
      timeoutMs: timeoutS === undefined ? context.budgets.commandMs : Math.ceil(timeoutS * 1000),
      ...(stdin === undefined ? {} : { stdin }),
    });
    machine.turns++;
    machine.toolMs += result.exit.durationMs;
    refuseLost(result.exit, "the command");
    this.extend();
    return result;
  }

  /** A sign of the driver. */
  extend(ttlMs?: number): number {
    if (ttlMs !== undefined) this.#ttlMs = ttlMs;
    this.#expiresAt = this.#runtime.now() + this.#ttlMs;
    return this.#expiresAt;
  }

  /** Has it verified; the same answer again for who asks again. */
  async end(request: EndRequest): Promise<Ended> {
    this.#machine?.end(request);
    return endedOf(await this.#record);
  }

  async cancel(reason: string): Promise<Ended> {
    this.#cancelling.abort(new MwError("cancelled", reason));
    return endedOf(await this.#record);
  }

  #working(): Machine {
    if (this.#machine === null) throw new MwError("conflict", this.#handedOut ? "the rollout has ended" : "the rollout has no machine yet", { fix: "begin another one" });
    return this.#machine;
  }

  /** Looks again whenever the time that it waited for was extended meanwhile. */
  #expire(): void {
    this.#runtime.sleep(Math.max(1, this.#expiresAt - this.#runtime.now()), this.#watch.signal).then(
      () => {
        if (this.#runtime.now() < this.#expiresAt) this.#expire();
        else this.#cancelling.abort(new MwError("cancelled", `its driver gave no sign for ${this.#ttlMs / 1000} s`));
      },
      () => undefined,
    );
  }
}

const LOST = "the machine was lost while its driver worked in it";

function endedBefore(failure: { readonly message: string } | null): MwError {
  return new MwError("conflict", `the rollout ended before its driver had a machine${failure === null ? "" : `: ${failure.message}`}`, { fix: "mw show RUN says how; mw task check DIR looks at the task closely" });
}

function endedOf({ rollout }: MemberRecord): Ended {
  const { rollout: id, outcome, reward, rewards, stopReason, error } = rollout;
  return {
    rollout_id: id,
    // Recorded rollouts have one.
    outcome: outcome ?? "sandbox_error",
    reward,
    reward_components: rewards,
    stop_reason: stopReason,
    error: error === null ? null : { code: error.code, message: error.message },
  };
}
