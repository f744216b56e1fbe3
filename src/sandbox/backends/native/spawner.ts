/**
 * The controller's side of the spawner (native/spawn.c): starts the process, sends typed requests, hands out events.
 *
 * The spawner ends every machine when this side of the socket closes, so `close` is the whole clean-up, and a crash of Node is the same as `close`.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import {
  type CreatedMachine,
  type CreateMachine,
  createFields,
  EVENT,
  ID_TAG,
  type MachineEnded,
  type MachineMetrics,
  REQUEST,
  readBlank,
  readCreated,
  readEnded,
  readHello,
  readMetrics,
  type SpawnerHello,
  spawnerError,
  TTL_TAG,
} from "./spawner-protocol.ts";
import { encodeFrame, type FieldList, type Frame, FrameDecoder } from "./wire.ts";

/** How long the last words of a spawner that has ended are waited for. */
const LAST_WORDS_MS = 500;

export interface SpawnerOptions {
  /** The program `spawn`, and the ones that it puts into machines or starts beside them. */
  readonly program: string;
  readonly init: string;
  readonly files?: string;
  readonly tree?: string;
  /** slirp4netns; absent: no public networks. */
  readonly slirp?: string;
  /** Holds the lock and the epoch; one spawner at a time. */
  readonly dataDirectory: string;
  /** Sockets and records; its last part (at most 15 characters) names control groups. Short: socket paths end at 107 bytes. */
  readonly runDirectory: string;
  /** File of `struct sock_filter`s that every machine runs under. Absent: none. */
  readonly seccompFile?: string;
  /** Capabilities of root in machines, as a bit mask. Default: an ordinary container's. */
  readonly capabilities?: bigint;
  /** How long machines live on without a controller. Default 0. */
  readonly graceMs?: number;
  /** First of the host's user ids that machines get, 65,536 each. */
  readonly slotBase?: number;
  /** Lines that the spawner writes. Default: this process's stderr. */
  readonly log?: (line: string) => void;
}

interface Waiter {
  readonly resolve: (frame: Frame) => void;
  readonly reject: (error: MwError) => void;
}

export class Spawner {
  readonly hello: SpawnerHello;
  readonly runDirectory: string;
  /** Resolves when the spawner is gone, whoever ended it. */
  readonly exited: Promise<void>;
  readonly #channel: Channel;

  private constructor(channel: Channel, hello: SpawnerHello, runDirectory: string) {
    this.#channel = channel;
    this.hello = hello;
    this.runDirectory = runDirectory;
    this.exited = channel.exited;
  }

  /** Rejects `busy` when another spawner holds the data directory, `environment` when machines cannot be made here, with the reason. */
  static async start(options: SpawnerOptions): Promise<Spawner> {
    const channel = new Channel(options);
    const first = await channel.first;
    if (first.type === EVENT.hello) return new Spawner(channel, readHello(first), options.runDirectory);
    await channel.close();
    const holder = first.number(1);
    throw new MwError("busy", `Another process (${holder ?? "unknown"}) makes machines for ${options.dataDirectory}`, {
      fix: "Stop it, or use another data directory (MW_HOME).",
      facts: { pid: holder },
    });
  }

  /** Returns when init runs, or with a public network when that is up. Nothing is left of a machine that failed. */
  async create(request: CreateMachine): Promise<CreatedMachine> {
    return readCreated(await this.#channel.request(REQUEST.create, createFields(request)));
  }

  /** Unix socket of a machine's init; connectable since `create`. */
  initSocket(id: string): string {
    return join(this.runDirectory, id, "init.sock");
  }

  /** Unix socket of the init of a blank, until a machine is made of it. */
  blankSocket(blank: string): string {
    return join(this.runDirectory, `.${blank}`, "init.sock");
  }

  /** Calls `listener` with the name of every blank: what it connects to is the machine that `create` later says was made of it. */
  onBlank(listener: (blank: string) => void): void {
    this.#channel.blank = listener;
  }

  /** Returns when nothing of the machine is left. One that is gone already is no error. */
  async kill(id: string): Promise<void> {
    await this.#channel.request(REQUEST.kill, [[ID_TAG, id]]);
  }

  /** Ends the machine and keeps its files as a workspace of the same id. */
  async seal(id: string): Promise<{ readonly bytes: number }> {
    const answer = await this.#channel.request(REQUEST.seal, [[ID_TAG, id]]);
    return { bytes: answer.number(1) ?? 0 };
  }

  /** Every lease now ends `ttlMs` from now. Returns the ids that are no running machines. */
  async renew(ids: readonly string[], ttlMs: number): Promise<readonly string[]> {
    const answer = await this.#channel.request(REQUEST.renew, [
      [TTL_TAG, ttlMs],
      [ID_TAG, ids],
    ]);
    return answer.all(ID_TAG).map((data) => data.toString());
  }

  async freeze(id: string): Promise<void> {
    await this.#channel.request(REQUEST.freeze, [[ID_TAG, id]]);
  }

  async thaw(id: string): Promise<void> {
    await this.#channel.request(REQUEST.thaw, [[ID_TAG, id]]);
  }

  async metrics(id: string): Promise<MachineMetrics> {
    return readMetrics(await this.#channel.request(REQUEST.metrics, [[ID_TAG, id]]));
  }

  /** Starts the reader of a sealed workspace, if it does not run, and returns its unix socket. */
  async openWorkspace(id: string): Promise<string> {
    await this.#channel.request(REQUEST.workspaceOpen, [[ID_TAG, id]]);
    return join(this.runDirectory, id, "tree.sock");
  }

  /** Machines that started from it keep what they use of it. */
  async releaseWorkspace(id: string): Promise<void> {
    await this.#channel.request(REQUEST.workspaceRelease, [[ID_TAG, id]]);
  }

  async list(): Promise<{ readonly running: readonly string[]; readonly sealed: readonly string[] }> {
    const answer = await this.#channel.request(REQUEST.list, []);
    return { running: answer.all(1).map(String), sealed: answer.all(2).map(String) };
  }

  /** Calls `listener` for every machine that ends, whatever the reason, after everything of it is gone. */
  onEnded(listener: (ended: MachineEnded) => void): () => void {
    this.#channel.ended.add(listener);
    return () => this.#channel.ended.delete(listener);
  }

  /** Ends every machine and waits for the spawner. */
  async close(): Promise<void> {
    await this.#channel.close();
  }
}

/** The process and its socket. */
class Channel {
  readonly first: Promise<Frame>;
  readonly exited: Promise<void>;
  readonly ended = new Set<(ended: MachineEnded) => void>();
  blank: (name: string) => void = () => undefined;
  readonly #process: ChildProcess;
  readonly #socket: Duplex;
  readonly #decoder = new FrameDecoder();
  readonly #waiting = new Map<number, Waiter>();
  #nextRef = 1;
  #failure: MwError | null = null;
  #lastLines: readonly string[] = [];
  /** Lines written before it said hello: part of the error where it never does. Null from then on. */
  #early: string[] | null = [];
  readonly #log: (line: string) => void;
  #announce: Waiter | null = null;

  constructor(options: SpawnerOptions) {
    this.first = new Promise((resolve, reject) => {
      this.#announce = { resolve, reject };
    });
    // In a session of its own: an interrupt typed at the terminal is the controller's to act on, and must not end the machines by itself.
    this.#process = spawn(options.program, flags(options), { stdio: ["ignore", "ignore", "pipe", "pipe"], env: environment(), detached: true });
    // Node's type does not know that a pipe beyond the standard three is a two-way socket.
    this.#socket = this.#process.stdio[3] as Duplex;
    this.#log = options.log ?? ((line) => process.stderr.write(`${line}\n`));
    this.#readLog();
    this.#socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    this.#socket.on("error", () => undefined);
    this.exited = new Promise((resolve) => {
      this.#process.on("error", (error) => {
        this.#fail(new MwError("environment", `Starting ${options.program} failed: ${error.message}`, { cause: error, fix: "Build it: node scripts/build.mjs" }));
        resolve();
      });
      this.#process.on("exit", (code, signal) => {
        const over = (): void => {
          clearTimeout(timer);
          this.#fail(this.#exitError(code, signal));
          resolve();
        };
        // By its close what it said last is in; but a helper that outlives a killed spawner may hold its stderr open.
        const timer = setTimeout(over, LAST_WORDS_MS);
        this.#process.once("close", over);
      });
    });
  }

  request(type: number, fields: FieldList): Promise<Frame> {
    return new Promise((resolve, reject) => {
      if (this.#failure) {
        reject(this.#failure);
        return;
      }
      const ref = this.#nextRef;
      // 0 is for events.
      this.#nextRef = ref === 0xffff_ffff ? 1 : ref + 1;
      const frame = encodeFrame(type, ref, fields);
      this.#waiting.set(ref, { resolve, reject });
      this.#socket.write(frame);
    });
  }

  async close(): Promise<void> {
    this.#socket.end();
    await this.exited;
    this.#socket.destroy();
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#decoder.push(chunk)) this.#take(frame);
    } catch (error) {
      this.#fail(error instanceof MwError ? error : new MwError("internal", "Reading from the spawner failed", { cause: error }));
      this.#socket.destroy();
    }
  }

  #take(frame: Frame): void {
    if (frame.ref === 0) {
      this.#event(frame);
      return;
    }
    const waiter = this.#waiting.get(frame.ref);
    if (!waiter) return;
    this.#waiting.delete(frame.ref);
    const error = frame.error();
    if (error) waiter.reject(spawnerError(error));
    else waiter.resolve(frame);
  }

  #event(frame: Frame): void {
    if (frame.type === EVENT.ended) {
      const ended = readEnded(frame);
      for (const listener of this.ended) listener(ended);
      return;
    }
    if (frame.type === EVENT.blank) {
      this.blank(readBlank(frame));
      return;
    }
    for (const line of this.#early ?? []) this.#log(line);
    this.#early = null;
    this.#announce?.resolve(frame);
  }

  #readLog(): void {
    let rest = "";
    this.#process.stderr?.setEncoding("utf8").on("data", (text: string) => {
      const lines = `${rest}${text}`.split("\n");
      rest = (lines.pop() ?? "").slice(-4096);
      this.#lastLines = [...this.#lastLines, ...lines].slice(-5);
      if (this.#early === null) for (const line of lines) this.#log(line);
      else this.#early = [...this.#early, ...lines].slice(-100);
    });
  }

  #exitError(code: number | null, signal: string | null): MwError {
    const said = this.#lastLines.map((line) => line.replace(/^spawn: /, "")).join("; ");
    if (/No space left on device|Disk quota exceeded/.test(said)) {
      return new MwError("host_exhausted", `Machines cannot be made while the disk of the data directory is full: ${said}`, { fix: "free some space (mw image gc), or name a data directory on a larger file system in MW_HOME" });
    }
    if (code === 3 || code === 2) return new MwError(code === 3 ? "environment" : "internal", `Machines cannot be made here: ${said}`);
    return new MwError("sandbox_failed", `The process that makes machines has ended (${signal ?? `exit code ${code}`})${said ? `: ${said}` : ""}`);
  }

  #fail(error: MwError): void {
    this.#failure ??= error;
    this.#announce?.reject(this.#failure);
    // Nobody may be waiting for the announcement any more.
    this.first.catch(() => undefined);
    for (const waiter of this.#waiting.values()) waiter.reject(this.#failure);
    this.#waiting.clear();
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
    ["--seccomp", options.seccompFile],
    ["--caps", options.capabilities?.toString(16)],
    ["--grace-ms", options.graceMs?.toString()],
    ["--slot-base", options.slotBase?.toString()],
  ];
  return values.flatMap(([flag, value]) => (value === undefined ? [] : [flag, value]));
}

/** The spawner needs to find newuidmap and nothing else: no secret of the controller's environment reaches it. */
function environment(): Record<string, string> {
  return { PATH: `${process.env["PATH"] ?? ""}:/usr/sbin:/usr/bin:/sbin:/bin` };
}
