/**
 * The runs of delivery of one owner, by name, each in a directory `run-NAME`. What runs when the process dies runs on when the next one opens the directory.
 *
 * For one process at a time: two processes at once would write to the same logs.
 */
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { messageOf, MwError, toMwError } from "../core/errors.ts";
import { newId, type RunId } from "../core/ids.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import { readInputs } from "../rollout/inputs.ts";
import { writeDurably, type Durability } from "../store/durable.ts";
import { runRequestSchema, type RunRequest } from "./contract.ts";
import { KeptBudget } from "./kept-members.ts";
import { runOfLease } from "./lease-id.ts";
import type { MixPart } from "./mix.ts";
import { DeliveryService } from "./service.ts";
import { submissionHash } from "./submission-hash.ts";
import type { WorkerFactory } from "./worker.ts";

export interface RegistryOptions {
  /** Holds a directory for each run. */
  readonly directory: string;
  readonly runtime: Runtime;
  readonly durability: Durability;
  readonly openWorker: WorkerFactory;
  /** One line for whoever watches. */
  readonly note: (line: string) => void;
}

interface RunDocument {
  readonly format: 1;
  readonly name: string;
  readonly run: RunId;
  readonly epoch: number;
  readonly createdAt: number;
  readonly request: RunRequest;
}

export class DeliveryRegistry {
  readonly #options: RegistryOptions;
  readonly #directory: string;
  readonly #kept = new KeptBudget(LIMITS.deliveryKeptBytes);
  /** Runs that are open, are being opened, or could not be. */
  readonly #runs = new Map<string, Promise<DeliveryService>>();
  /** Runs that broke, while they close: nobody opens them meanwhile. */
  readonly #closings = new Map<string, Promise<void>>();
  #turn: Promise<unknown> = Promise.resolve();

  /** Opens every run that is there. One that cannot be opened is noted, and says why when it is asked for. */
  static async open(options: RegistryOptions): Promise<DeliveryRegistry> {
    const registry = new DeliveryRegistry(options);
    await mkdir(registry.#directory, { recursive: true });
    for (const entry of await readdir(registry.#directory)) {
      if (entry.startsWith(".new-")) await rm(join(registry.#directory, entry), { recursive: true, force: true });
      if (!entry.startsWith("run-")) continue;
      const name = entry.slice(4);
      await registry.#open(name).catch((error: unknown) => options.note(`run ${name} cannot be opened: ${messageOf(error)}`));
    }
    return registry;
  }

  private constructor(options: RegistryOptions) {
    this.#options = options;
    this.#directory = options.directory;
  }

  get names(): readonly string[] {
    return [...this.#runs.keys()].sort();
  }

  /** Makes a run, or finds the one that was made of the same request. Rejects `conflict` for another request under its name. */
  put(name: string, request: RunRequest): Promise<DeliveryService> {
    return this.#inTurn(async () => {
      const known = await this.#find(name);
      if (known === null) return this.#create(name, request);
      if (submissionHash(known.request) !== submissionHash(request)) throw new MwError("conflict", `there is a run ${name} with another configuration`, { fix: "give the new run another name, or delete the old one" });
      return known;
    });
  }

  /** Rejects `not_found`, and with what keeps a run from being opened. */
  async get(name: string): Promise<DeliveryService> {
    const run = await this.#find(name);
    if (run === null) throw new MwError("not_found", `there is no run ${name}`, { fix: "PUT /v1/runs/NAME makes one" });
    return run;
  }

  /** Of a lease's name. */
  async ofLease(lease: string): Promise<DeliveryService> {
    const name = runOfLease(lease);
    const run = name === null ? null : await this.#find(name);
    if (run === null) throw new MwError("not_found", `there is no lease ${lease}`, { fix: "lease_id of the answer to POST /v1/runs/NAME/lease" });
    return run;
  }

  /** Ends a run and gives its name free. Its log stays in the data directory. */
  delete(name: string): Promise<void> {
    return this.#inTurn(async () => {
      const run = await this.get(name);
      const { epoch } = await run.end("the run was deleted");
      await run.close();
      this.#runs.delete(name);
      await rm(join(this.#path(name), "groups"), { recursive: true, force: true });
      await rename(this.#path(name), join(this.#directory, `ended-${epoch}-${name}`));
    });
  }

  /** What runs is left for the next process. */
  async close(): Promise<void> {
    await this.#turn.catch(() => undefined);
    await Promise.allSettled([...this.#runs.values()].map(async (run) => (await run).close()));
    this.#runs.clear();
  }

  /** One at a time: names are made and taken away. */
  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.catch(() => undefined).then(work);
    this.#turn = turn;
    return turn;
  }

  async #find(name: string): Promise<DeliveryService | null> {
    await this.#closings.get(name);
    const open = this.#runs.get(name);
    if (open !== undefined) return open;
    if (!(await readdir(this.#directory)).includes(`run-${name}`)) return null;
    return this.#open(name);
  }

  async #create(name: string, request: RunRequest): Promise<DeliveryService> {
    checkRequest(request);
    const { runtime, durability } = this.#options;
    const mix = await readMix(request);
    const document: RunDocument = { format: 1, name, run: newId("run", runtime), epoch: await this.#nextEpoch(name), createdAt: Math.floor(runtime.now()), request };
    const temporary = join(this.#directory, `.new-${document.run}`);
    try {
      await mkdir(temporary);
      if (mix !== null) await writeDurably(join(temporary, "mix.json"), JSON.stringify(mix), durability);
      await writeDurably(join(temporary, "run.json"), `${JSON.stringify(document, null, 2)}\n`, durability);
      await rename(temporary, this.#path(name));
    } catch (error) {
      await rm(temporary, { recursive: true, force: true });
      throw error;
    }
    try {
      return await this.#open(name);
    } catch (error) {
      // It never began.
      this.#runs.delete(name);
      await rm(this.#path(name), { recursive: true, force: true });
      throw error;
    }
  }

  #open(name: string): Promise<DeliveryService> {
    const open = this.#openNow(name);
    this.#runs.set(name, open);
    // Whoever asks next tries again.
    open.catch(() => this.#runs.delete(name));
    return open;
  }

  async #openNow(name: string): Promise<DeliveryService> {
    const { runtime, durability, openWorker, note } = this.#options;
    const directory = this.#path(name);
    const { run, epoch, createdAt, request } = await readDocument(join(directory, "run.json"));
    const mix = request.dataset === null ? null : (JSON.parse(await readFile(join(directory, "mix.json"), "utf8")) as readonly MixPart[]);
    let opened: DeliveryService | null = null;
    const service = await DeliveryService.open({
      directory,
      name,
      run,
      epoch,
      createdAt,
      request,
      mix,
      runtime,
      durability,
      kept: this.#kept,
      openWorker: () => openWorker({ run, name, epoch, request }),
      onBroken: (error) => {
        note(`run ${name} stands still: ${error.message}`);
        this.#runs.delete(name);
        const closed = opened?.close().catch(() => undefined) ?? Promise.resolve();
        this.#closings.set(name, closed.finally(() => this.#closings.delete(name)));
      },
    });
    opened = service;
    return service;
  }

  #path(name: string): string {
    return join(this.#directory, `run-${name}`);
  }

  async #nextEpoch(name: string): Promise<number> {
    const epochs = (await readdir(this.#directory)).flatMap((entry) => {
      const match = /^ended-(\d+)-(.+)$/.exec(entry);
      return match?.[2] === name ? [Number(match[1])] : [];
    });
    return Math.max(0, ...epochs) + 1;
  }
}

function checkRequest({ dataset }: RunRequest): void {
  const names = new Set<string>();
  for (const { name } of dataset ?? []) {
    if (names.has(name)) throw new MwError("usage", `dataset: two parts are called ${name}`, { fix: "give each part a name of its own" });
    names.add(name);
  }
}

/** The tasks of each part as they are now: later changes of directories do not change what is drawn. */
async function readMix(request: RunRequest): Promise<readonly MixPart[] | null> {
  if (request.dataset === null) return null;
  const parts: MixPart[] = [];
  for (const { name, inputs } of request.dataset) {
    const tasks: string[] = [];
    let failure: unknown = null;
    for await (const { directory, error } of readInputs(inputs)) {
      if (directory === null) failure ??= error;
      else tasks.push(directory);
      if (tasks.length > LIMITS.tasksPerRun) throw new MwError("limit_exceeded", `dataset part ${name} has more than ${LIMITS.tasksPerRun} tasks`);
    }
    if (tasks.length === 0) throw failure === null ? new MwError("invalid_input", `dataset part ${name} has no tasks`, { fix: "name task directories, directories of tasks, or dataset files" }) : toMwError(failure);
    parts.push({ name, tasks });
  }
  return parts;
}

async function readDocument(path: string): Promise<RunDocument> {
  try {
    const { request, ...rest } = JSON.parse(await readFile(path, "utf8")) as RunDocument;
    return { ...rest, request: runRequestSchema.parse(request) };
  } catch (error) {
    throw new MwError("corrupt", `${path} is not what was written: ${messageOf(error)}`, { cause: error, fix: "restore it, or delete its directory to give the run up" });
  }
}
