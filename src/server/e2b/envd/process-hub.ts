/**
 * Commands of one sandbox, by their process ids: each is read once, and what it says goes to whoever listens, or nowhere. A listener that is slow slows the command. How it ended
 * is kept for those who come later, for the last of them. Those that ran before the machine was here are known again: of a server that died, a pause, a snapshot, a parent.
 */
import { LIMITS } from "../../../core/limits.ts";
import { Semaphore } from "../../../core/semaphore.ts";
import type { Exec, ExecExit, ExecOptions, Sandbox } from "../../../sandbox/sandbox.ts";
import type { ProcessRecord, ProcessRecords } from "./process-records.ts";

export interface CommandConfig {
  readonly cmd: string;
  readonly args: readonly string[];
  readonly envs: Readonly<Record<string, string>>;
  readonly cwd?: string | undefined;
}

/** False: it has gone. */
export type Listener = (stream: "stdout" | "stderr", data: Uint8Array) => Promise<boolean>;

export interface Process {
  readonly pid: number;
  readonly tag: string | null;
  readonly config: CommandConfig;
  readonly pty: boolean;
  readonly exec: Exec;
  readonly listeners: Set<Listener>;
  /** Resolves when it has ended and all that it said has been told. */
  readonly done: Promise<ExecExit>;
  ended: boolean;
}

export interface HubOptions {
  readonly records: ProcessRecords;
  /** Machines outlive this process: what the next one is to know is written down before anybody is told of a new command. */
  readonly outlived: boolean;
  /** What ran in the snapshot or the parent that the machine comes from. Absent: what was written down of it. */
  readonly inherited?: readonly ProcessRecord[] | undefined;
}

export class ProcessHub {
  readonly #sandbox: Sandbox;
  readonly #processes = new Map<number, Process>();
  readonly #options: HubOptions;
  readonly #writing = new Semaphore(1);
  readonly #recalled: Promise<void>;
  #unknownPids = 0;

  constructor(sandbox: Sandbox, options: HubOptions) {
    this.#sandbox = sandbox;
    this.#options = options;
    this.#recalled = this.#recall();
  }

  async start(options: ExecOptions, about: { readonly tag: string | null; readonly config: CommandConfig }, listener: Listener | null): Promise<Process> {
    await this.#recalled;
    const exec = await this.#sandbox.exec({ ...options, maxOutputBytes: Number.MAX_SAFE_INTEGER });
    // One that could not be executed has no process; it still needs a number of its own.
    const pid = exec.pid !== null && exec.pid > 0 && this.#processes.get(exec.pid)?.ended !== false ? exec.pid : (1 << 30) + this.#unknownPids++;
    const started = this.#know({ pid, ...about, pty: options.pty !== undefined, exec }, listener);
    if (this.#options.outlived) await this.writeDown();
    return started;
  }

  /** Ended ones too, as long as they are kept. */
  async find(selector: { readonly pid?: number | undefined; readonly tag?: string | undefined }): Promise<Process | null> {
    await this.#recalled;
    if (selector.pid !== undefined) return this.#processes.get(selector.pid) ?? null;
    const tagged = [...this.#processes.values()].filter((process) => process.tag !== null && process.tag === selector.tag);
    return tagged.find((process) => !process.ended) ?? tagged.at(-1) ?? null;
  }

  async running(): Promise<readonly Process[]> {
    await this.#recalled;
    return this.#alive();
  }

  /** What whoever goes on with these processes is to know of them. */
  async notes(): Promise<readonly ProcessRecord[]> {
    await this.#recalled;
    return this.#alive().map(({ exec, pid, tag, pty, config: { cmd, args, envs, cwd } }) => ({ exec: exec.id, pid, tag, pty, config: { cmd, args: [...args], envs: { ...envs }, ...(cwd === undefined ? {} : { cwd }) } }));
  }

  /** Writes that down, for the next hub of this sandbox. */
  async writeDown(): Promise<void> {
    await this.#writing.use(async () => this.#options.records.write(this.#sandbox.id, await this.notes()));
  }

  /** Its sandbox is no more. */
  async forget(): Promise<void> {
    await this.#writing.use(() => this.#options.records.delete(this.#sandbox.id));
  }

  #alive(): readonly Process[] {
    return [...this.#processes.values()].filter((process) => !process.ended);
  }

  #know(about: Pick<Process, "pid" | "tag" | "config" | "pty" | "exec">, listener: Listener | null): Process {
    const listeners = new Set<Listener>(listener === null ? [] : [listener]);
    const known: Process = { ...about, listeners, ended: false, done: this.#follow(about.exec, listeners, () => (known.ended = true)) };
    known.done.catch(() => undefined);
    this.#processes.delete(known.pid);
    this.#processes.set(known.pid, known);
    this.#forgetOldest();
    return known;
  }

  async #recall(): Promise<void> {
    const { records, inherited, outlived } = this.#options;
    for (const { exec, ...about } of inherited ?? (await records.read(this.#sandbox.id))) {
      // One that has ended and was acknowledged is not there any more.
      const attached = await this.#sandbox.attach(exec).catch(() => null);
      if (attached !== null) this.#know({ ...about, exec: attached }, null);
    }
    if (inherited !== undefined && inherited.length > 0 && outlived) void this.writeDown().catch(() => undefined);
  }

  async #follow(exec: Exec, listeners: Set<Listener>, ended: () => void): Promise<ExecExit> {
    try {
      for await (const { stream, data } of exec.output) {
        // oxlint-disable-next-line no-await-in-loop -- what comes next waits for whoever is slowest
        await Promise.all([...listeners].map(async (listener) => (await listener(stream, data)) || listeners.delete(listener)));
      }
      return await exec.exit;
    } finally {
      ended();
      void exec.acknowledge().catch(() => undefined);
    }
  }

  #forgetOldest(): void {
    let excess = this.#processes.size - LIMITS.execsRetained - LIMITS.execsPerSandbox;
    for (const [pid, { ended }] of this.#processes) {
      if (excess <= 0) return;
      if (!ended) continue;
      this.#processes.delete(pid);
      excess--;
    }
  }
}
