/** A run of delivery in virtual time, in a directory that can be opened again after any death. */
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runRequestSchema, type RunRequest } from "../../../src/delivery/contract.ts";
import { KeptBudget } from "../../../src/delivery/kept-members.ts";
import { DeliveryService, type DeliveryOptions } from "../../../src/delivery/service.ts";
import type { MixPart } from "../../../src/delivery/mix.ts";
import type { MemberJob, RolloutWorker } from "../../../src/delivery/worker.ts";
import { SimulatedWorker, type Draw } from "./simulated-worker.ts";
import { settle, VirtualRuntime } from "./virtual-runtime.ts";

export interface SimulatedRunOptions {
  readonly request?: Partial<Record<keyof RunRequest, unknown>>;
  readonly draw: (job: MemberJob, random: () => number) => Draw;
  readonly mix?: readonly MixPart[];
  readonly keptBytes?: number;
  /** The file primitives of the log. */
  readonly openFile?: DeliveryOptions["openFile"];
  /** Another worker than the simulated one. */
  readonly worker?: (runtime: VirtualRuntime) => RolloutWorker;
}

export class SimulatedRun {
  readonly runtime = new VirtualRuntime();
  readonly #options: SimulatedRunOptions;
  directory = mkdtempSync(join(tmpdir(), "mw-delivery-sim-"));
  readonly #old: string[] = [];
  worker: SimulatedWorker;
  service: DeliveryService;

  static async open(options: SimulatedRunOptions): Promise<SimulatedRun> {
    const run = new SimulatedRun(options);
    await run.#open();
    return run;
  }

  private constructor(options: SimulatedRunOptions) {
    this.#options = options;
    // Set before anybody sees the run.
    this.worker = null as unknown as SimulatedWorker;
    this.service = null as unknown as DeliveryService;
  }

  async #open(): Promise<void> {
    const { request = {}, draw, mix, keptBytes = 1 << 20, worker } = this.#options;
    this.worker = new SimulatedWorker(this.runtime, draw);
    this.service = await DeliveryService.open({
      directory: this.directory,
      name: "r",
      run: "run1",
      epoch: 1,
      createdAt: this.runtime.now(),
      request: runRequestSchema.parse(request),
      mix: mix ?? null,
      runtime: this.runtime,
      durability: "process",
      kept: new KeptBudget(keptBytes),
      ...(this.#options.openFile === undefined ? {} : { openFile: this.#options.openFile }),
      openWorker: () => Promise.resolve(worker?.(this.runtime) ?? this.worker),
    });
  }

  /** Everything that happens in the next `ms`. */
  async advance(ms: number): Promise<void> {
    const until = this.runtime.now() + ms;
    await settle(() => this.service.idle);
    while (this.runtime.step(until)) await settle(() => this.service.idle);
    await settle(() => this.service.idle);
  }

  /** The process dies now: what its files hold at this moment is what the next one finds. */
  async kill(): Promise<void> {
    const next = mkdtempSync(join(tmpdir(), "mw-delivery-sim-"));
    // In the order in which the dying process may still have written them.
    cpSync(join(this.directory, "events.jsonl"), join(next, "events.jsonl"));
    cpSync(this.directory, next, { recursive: true, filter: (source) => !source.endsWith("events.jsonl") });
    const old = this.service;
    this.#old.push(this.directory);
    this.directory = next;
    await old.close();
    await this.#open();
  }

  /** The process ends in order, and another begins. */
  async reopen(): Promise<void> {
    await this.service.close();
    await this.#open();
  }

  async close(): Promise<void> {
    await this.service.close();
    for (const directory of [...this.#old, this.directory]) rmSync(directory, { recursive: true, force: true });
  }
}
