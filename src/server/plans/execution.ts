/** One run by plan that this server has under way: from its request, or from what an earlier controller left, to its end. */
import { existsSync } from "node:fs";
import { MwError, toMwError } from "../../core/errors.ts";
import type { RunId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import type { RunController } from "../../rollout/controller.ts";
import { resumeRun, startRun, type NewRun, type ResumeOptions, type RunEnd } from "../../rollout/run.ts";
import type { RunHost } from "../../rollout/run-host.ts";
import { runDirectory } from "../../store/run-directory.ts";
import type { Mark } from "./marks.ts";
import type { ExecutionView } from "./wire.ts";

export interface ExecutionOptions {
  readonly home: string;
  readonly runs: RunHost;
  readonly run: RunId;
  readonly mark: Mark;
  readonly concurrency?: number | undefined;
  readonly log: (line: string) => void;
  /** Resolves once a later server knows of it: nothing begins before. */
  readonly marked: Promise<void>;
}

/** How the run stands for a server that starts anew: `leave` it be, or `again`. */
export type Afterwards = "leave" | "again";

export class Execution {
  readonly #options: ExecutionOptions;
  readonly #before = new AbortController();
  #controller: RunController | null = null;
  #state: ExecutionView["state"] = "starting";
  #error: MwError | null = null;
  #activity: string | null = null;
  #stopped: "no" | "asked" | "server" = "no";
  /** Once its rollouts begin, or it has ended without. */
  readonly begun: Promise<void>;
  /** Never rejects. */
  readonly ended: Promise<Afterwards>;

  constructor(options: ExecutionOptions) {
    this.#options = options;
    let begin = (): void => undefined;
    this.begun = new Promise((resolve) => (begin = resolve));
    this.ended = this.#run(begin).finally(begin);
  }

  get isUnderWay(): boolean {
    return this.#state === "starting" || this.#state === "running" || this.#state === "stopping";
  }

  get error(): MwError | null {
    return this.#error;
  }

  get view(): ExecutionView {
    const { code, message, fix = null } = this.#error ?? {};
    return { run: this.#options.run, state: this.#state, error: code === undefined || message === undefined ? null : { code, message, fix }, activity: this.#activity };
  }

  /** First lets what runs finish for a while, unless `now`. `by` the server, for a later one to go on with. */
  stop(now: boolean, by: "asked" | "server" = "asked"): void {
    if (!this.isUnderWay) return;
    this.#stopped = by;
    if (this.#state === "running") this.#state = "stopping";
    const reason = by === "asked" ? "stopped on request" : "its server ended";
    this.#before.abort(new MwError("cancelled", reason));
    if (now) this.#controller?.stop(reason);
    else this.#controller?.drain(reason, LIMITS.drainGraceMs);
  }

  async #run(begun: () => void): Promise<Afterwards> {
    const { runs, run, log } = this.#options;
    const dependencies = runs.planned({
      newRun: run,
      signal: this.#before.signal,
      observer: {
        changed: () => (this.#activity = null),
        note: (text) => log(`${run}: ${text}`),
        activity: (text) => (this.#activity = text),
      },
      started: (controller) => {
        this.#controller = controller;
        this.#state = "running";
        // Asked to stop while it was prepared.
        if (this.#stopped !== "no") this.stop(true, this.#stopped);
        begun();
      },
    });
    try {
      await this.#options.marked;
      const { ended } = await this.#begin(dependencies);
      this.#state = ended === "finished" ? "finished" : "stopped";
      return ended === "interrupted" && this.#stopped === "server" ? "again" : "leave";
    } catch (error) {
      this.#error = toMwError(error);
      this.#state = this.#stopped === "no" ? "failed" : "stopped";
      if (this.#stopped === "no") log(`${run}: ${this.#error.message}`);
      // A run that has begun is not given up for what may pass; one that has not is its client's to ask for again.
      return this.#stopped === "server" || (this.#stopped === "no" && existsSync(runDirectory(this.#options.home, run))) ? "again" : "leave";
    } finally {
      this.#controller = null;
      this.#activity = null;
    }
  }

  #begin(dependencies: Parameters<typeof startRun>[0]): Promise<RunEnd> {
    const { home, runs, run, mark, concurrency } = this.#options;
    const resume: ResumeOptions = { errors: mark.errors, ...(concurrency === undefined ? {} : { concurrency }) };
    if (existsSync(runDirectory(home, run))) return resumeRun(dependencies, run, () => runs.apiKey, resume);
    if (mark.request === null) return Promise.reject(new MwError("not_found", `there is no run ${run}`));
    const { run: _, ...request } = mark.request;
    const plan: NewRun = { ...request, apiKeyFile: null, backend: "native", takeOverSeconds: runs.takeOverSeconds };
    return startRun(dependencies, plan, runs.apiKey);
  }
}
