/**
 * Commands of one sandbox, by their process ids: each is read once, and what it says goes to whoever listens, or nowhere. A listener that is slow slows the command. How it ended
 * is kept for those who come later, for the last of them.
 */
import { LIMITS } from "../../../core/limits.ts";
import type { Exec, ExecExit, ExecOptions, Sandbox } from "../../../sandbox/sandbox.ts";

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

export class ProcessHub {
  readonly #sandbox: Sandbox;
  readonly #processes = new Map<number, Process>();
  #unknownPids = 0;

  constructor(sandbox: Sandbox) {
    this.#sandbox = sandbox;
  }

  async start(options: ExecOptions, about: { readonly tag: string | null; readonly config: CommandConfig }, listener: Listener | null): Promise<Process> {
    const exec = await this.#sandbox.exec({ ...options, maxOutputBytes: Number.MAX_SAFE_INTEGER });
    const listeners = new Set<Listener>(listener === null ? [] : [listener]);
    // One that could not be executed has no process; it still needs a number of its own.
    const pid = exec.pid !== null && exec.pid > 0 && this.#processes.get(exec.pid)?.ended !== false ? exec.pid : (1 << 30) + this.#unknownPids++;
    const started: Process = { pid, ...about, pty: options.pty !== undefined, exec, listeners, ended: false, done: this.#follow(exec, listeners, () => (started.ended = true)) };
    started.done.catch(() => undefined);
    this.#processes.delete(pid);
    this.#processes.set(pid, started);
    this.#forgetOldest();
    return started;
  }

  /** Ended ones too, as long as they are kept. */
  find(selector: { readonly pid?: number | undefined; readonly tag?: string | undefined }): Process | null {
    if (selector.pid !== undefined) return this.#processes.get(selector.pid) ?? null;
    const tagged = [...this.#processes.values()].filter((process) => process.tag !== null && process.tag === selector.tag);
    return tagged.find((process) => !process.ended) ?? tagged.at(-1) ?? null;
  }

  running(): readonly Process[] {
    return [...this.#processes.values()].filter((process) => !process.ended);
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
