/** Where a spawner comes from: a child of this process, or one that an earlier controller started and that outlived it. */
import { type ChildProcess, spawn } from "node:child_process";
import { createConnection } from "node:net";
import type { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import type { SpawnerOptions } from "./spawner.ts";
import { SpawnerChannel } from "./spawner-channel.ts";

/** How long the last words of a spawner that has ended are waited for. */
const LAST_WORDS_MS = 500;

/** The process at the other end of the channel, or what stands for it. */
export interface Keeper {
  /** Resolves when it is gone, or does not speak to this process any more. */
  readonly exited: Promise<void>;
  /** It has said hello. */
  greeted(): void;
}

/** A spawner that is a child of this process. */
export function startProcess(options: SpawnerOptions): { readonly channel: SpawnerChannel; readonly keeper: Keeper } {
  // In a session of its own: an interrupt typed at the terminal is the controller's to act on, and must not end the machines by itself.
  const child = spawn(options.program, flags(options), { stdio: ["ignore", "ignore", "pipe", "pipe"], env: environment(), detached: true });
  // Node's type does not know that a pipe beyond the standard three is a two-way socket.
  const socket = child.stdio[3] as Duplex;
  const channel = new SpawnerChannel(socket);
  const lines = new SpawnerLines(child, options.log ?? ((line) => process.stderr.write(`${line}\n`)));
  const exited = new Promise<void>((resolve) => {
    child.on("error", (error) => {
      channel.fail(new MwError("environment", `Starting ${options.program} failed: ${error.message}`, { cause: error, fix: "Build it: node scripts/build.mjs" }));
      resolve();
    });
    child.on("exit", (code, signal) => {
      const over = (): void => {
        clearTimeout(timer);
        channel.fail(lines.exitError(code, signal));
        resolve();
      };
      // By its close what it said last is in; but a helper that outlives a killed spawner may hold its stderr open.
      const timer = setTimeout(over, LAST_WORDS_MS);
      child.once("close", over);
    });
    if ((options.graceMs ?? 0) === 0) return;
    // It lives on, but not with us.
    socket.on("close", () => {
      setTimeout(() => {
        channel.fail(gaveUp());
        resolve();
      }, 4 * LAST_WORDS_MS).unref();
    });
  });
  return { channel, keeper: { exited, greeted: () => lines.greeted() } };
}

/** A spawner that an earlier controller started, and that waits for one; null when none listens there. */
export async function connectProcess(path: string): Promise<{ readonly channel: SpawnerChannel; readonly keeper: Keeper } | null> {
  const socket = createConnection(path);
  const connected = await new Promise<boolean>((resolve) => {
    socket.once("connect", () => resolve(true));
    socket.once("error", () => resolve(false));
  });
  if (!connected) return null;
  const channel = new SpawnerChannel(socket);
  const exited = new Promise<void>((resolve) => {
    socket.on("close", () => {
      channel.fail(gaveUp());
      resolve();
    });
  });
  return { channel, keeper: { exited, greeted: () => undefined } };
}

function gaveUp(): MwError {
  return new MwError("sandbox_failed", "The process that makes machines has ended, or another controller has taken its machines over");
}

/** What a spawner writes to its stderr. */
class SpawnerLines {
  #lastLines: readonly string[] = [];
  /** Lines written before it said hello: part of the error where it never does. Null from then on. */
  #early: string[] | null = [];
  readonly #log: (line: string) => void;

  constructor(child: ChildProcess, log: (line: string) => void) {
    this.#log = log;
    let rest = "";
    child.stderr?.setEncoding("utf8").on("data", (text: string) => {
      const lines = `${rest}${text}`.split("\n");
      rest = (lines.pop() ?? "").slice(-4096);
      this.#lastLines = [...this.#lastLines, ...lines].slice(-5);
      if (this.#early === null) for (const line of lines) this.#log(line);
      else this.#early = [...this.#early, ...lines].slice(-100);
    });
  }

  greeted(): void {
    for (const line of this.#early ?? []) this.#log(line);
    this.#early = null;
  }

  exitError(code: number | null, signal: string | null): MwError {
    const said = this.#lastLines.map((line) => line.replace(/^spawn: /, "")).join("; ");
    if (/No space left on device|Disk quota exceeded/.test(said)) {
      return new MwError("host_exhausted", `Machines cannot be made while the disk of the data directory is full: ${said}`, { fix: "free some space (mw image gc), or name a data directory on a larger file system in MW_HOME" });
    }
    if (code === 3 || code === 2) return new MwError(code === 3 ? "environment" : "internal", `Machines cannot be made here: ${said}`);
    return new MwError("sandbox_failed", `The process that makes machines has ended (${signal ?? `exit code ${code}`})${said ? `: ${said}` : ""}`);
  }
}

function flags(options: SpawnerOptions): string[] {
  const values: readonly (readonly [string, string | undefined])[] = [
    ["--data", options.dataDirectory],
    ["--run", options.runDirectory],
    ["--init", options.init],
    ["--files", options.files],
    ["--tree", options.tree],
    ["--slirp", options.slirp],
    ["--criu", options.criu],
    ["--seccomp", options.seccompFile],
    ["--caps", options.capabilities?.toString(16)],
    ["--grace-ms", options.graceMs?.toString()],
    ["--slot-base", options.slotBase?.toString()],
    ["--version", options.version],
  ];
  return values.flatMap(([flag, value]) => (value === undefined ? [] : [flag, value]));
}

/** The spawner needs to find newuidmap and nothing else: no secret of the controller's environment reaches it. */
function environment(): Record<string, string> {
  return { PATH: `${process.env["PATH"] ?? ""}:/usr/sbin:/usr/bin:/sbin:/bin` };
}
