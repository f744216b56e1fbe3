/**
 * The controller's side of the spawner (native/spawn.c): starts the process, sends typed requests, hands out events.
 *
 * The spawner ends every machine when this side of the socket closes, so `close` is the whole clean-up, and a crash of Node is the same as `close`; with `graceMs` a crash leaves the machines
 * to another controller for that long.
 */
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import {
  AS_TAG,
  BUSY,
  COUNT_TAG,
  type CreatedMachine,
  type CreateMachine,
  createFields,
  DIRECTORY_TAG,
  EVENT,
  FORCE_TAG,
  ID_TAG,
  LAYER_TAG,
  type MachineEnded,
  type MachineMetrics,
  REQUEST,
  NOTE_TAG,
  type RecalledMachine,
  readCreated,
  readHello,
  readMetrics,
  readRecalled,
  type SpawnerHello,
  TTL_TAG,
} from "./spawner-protocol.ts";
import type { SpawnerChannel } from "./spawner-channel.ts";
import { connectProcess, type Keeper, startProcess } from "./spawner-process.ts";
import type { Frame } from "./wire.ts";

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
  /** CRIU; absent: no processes are kept. */
  readonly criu?: string;
  /** How long machines live on without a controller, so that another one may take them over. Default 0. */
  readonly graceMs?: number;
  /** Of controller and programs: only the same takes over. */
  readonly version?: string;
  /** First of the host's user ids that machines get, 65,536 each. */
  readonly slotBase?: number;
  /** Lines that the spawner writes. Default: this process's stderr. */
  readonly log?: (line: string) => void;
}

export class Spawner {
  readonly hello: SpawnerHello;
  readonly runDirectory: string;
  /** Resolves when the spawner is gone, whoever ended it. */
  readonly exited: Promise<void>;
  readonly #channel: SpawnerChannel;

  private constructor(channel: SpawnerChannel, keeper: Keeper, hello: SpawnerHello, runDirectory: string) {
    this.#channel = channel;
    this.hello = hello;
    this.runDirectory = runDirectory;
    this.exited = keeper.exited;
    keeper.greeted();
  }

  /** Rejects `busy` when another spawner holds the data directory, `environment` when machines cannot be made here, with the reason. */
  static async start(options: SpawnerOptions): Promise<Spawner> {
    const { channel, keeper } = startProcess(options);
    const first = await channel.first;
    if (first.type === EVENT.hello) return new Spawner(channel, keeper, readHello(first), options.runDirectory);
    channel.end();
    await keeper.exited;
    channel.destroy();
    throw held(options.dataDirectory, first);
  }

  /**
   * The spawner whose controller has died, with its machines, which from now on live as long as this controller, and `graceMs`. Null when there is none; one of another version is ended with its
   * machines, and `ended` is its pid. Rejects `busy` when its controller lives, or another one was first.
   */
  static async takeOver(options: Pick<SpawnerOptions, "dataDirectory" | "runDirectory" | "version" | "log"> & { readonly graceMs: number }): Promise<{ readonly spawner: Spawner | null; readonly ended: number | null }> {
    const found = await connectProcess(join(options.runDirectory, TAKEOVER_SOCKET));
    if (found === null) return NONE;
    const { channel, keeper } = found;
    const first = await channel.first.catch(() => null);
    // It was about to end, or ended just now.
    if (first === null) return NONE;
    if (first.type !== EVENT.hello) {
      channel.destroy();
      throw held(options.dataDirectory, first);
    }
    const spawner = new Spawner(channel, keeper, readHello(first), options.runDirectory);
    channel.startAt(spawner.hello.epoch);
    if (spawner.hello.version !== options.version) {
      options.log?.("The machines of the controller before were made by another version, which cannot be taken over: they are ended");
      await spawner.close();
      return { spawner: null, ended: spawner.hello.pid };
    }
    await channel.request(REQUEST.keep, [[TTL_TAG, options.graceMs]]);
    return { spawner, ended: null };
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

  /**
   * What the machine wrote becomes the workspace `as`; the machine is over without being reported as ended: the caller makes one of the same id again. Rejects `busy`, having
   * done nothing, when something besides init runs in it, unless `force`.
   */
  async detach(id: string, as: string, force = false): Promise<{ readonly bytes: number }> {
    const answer = await this.#channel.request(REQUEST.detach, [[ID_TAG, id], [AS_TAG, as], [FORCE_TAG, force ? 1 : undefined]]);
    return { bytes: answer.number(1) ?? 0 };
  }

  /** What the machine wrote, as the workspace `as`: everything in it stands still while it is copied. */
  async copy(id: string, as: string): Promise<{ readonly bytes: number; readonly stoppedMs: number }> {
    const answer = await this.#channel.request(REQUEST.copy, [[ID_TAG, id], [AS_TAG, as]]);
    return { bytes: answer.number(1) ?? 0, stoppedMs: (answer.number(2) ?? 0) / 1000 };
  }

  /** Keeps the processes of a machine that stands still, and goes on to, in an empty directory, with CRIU's log. Rejects `sandbox_failed` with `facts.native` "criu" where CRIU does not do it, "vfork" at once while a process waits in vfork. */
  async dump(id: string, directory: string): Promise<{ readonly lifeline: number; readonly listener: number }> {
    const answer = await this.#channel.request(REQUEST.dump, [[ID_TAG, id], [DIRECTORY_TAG, directory]]);
    return { lifeline: answer.number(1) ?? 0, listener: answer.number(2) ?? 0 };
  }

  /** The workspace now lies over another one, or over none, and below that over `layers`, topmost first; absent: over those that it has. */
  async rebase(id: string, onto: string | null, layers: readonly string[] = []): Promise<void> {
    await this.#channel.request(REQUEST.rebase, [[ID_TAG, id], [AS_TAG, onto ?? undefined], [LAYER_TAG, layers]]);
  }

  /** Makes the workspace `as` of a workspace (or of what a machine lies on), all that it is based on, and `layers` of the layers below. */
  async flatten(id: string, as: string, layers: number): Promise<{ readonly bytes: number }> {
    const answer = await this.#channel.request(REQUEST.flatten, [[ID_TAG, id], [AS_TAG, as], [COUNT_TAG, layers]]);
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

  /** Starts the reader of a sealed workspace, or of what a machine that stands still wrote, if it does not run, and returns its unix socket. */
  async openWorkspace(id: string): Promise<string> {
    await this.#channel.request(REQUEST.workspaceOpen, [[ID_TAG, id]]);
    return join(this.runDirectory, id, "tree.sock");
  }

  /** Machines that started from it keep what they use of it. */
  async releaseWorkspace(id: string): Promise<void> {
    await this.#channel.request(REQUEST.workspaceRelease, [[ID_TAG, id]]);
  }

  /** `unfinished`: workspaces that are being made. */
  async list(): Promise<{ readonly running: readonly string[]; readonly sealed: readonly string[]; readonly unfinished: readonly string[] }> {
    const answer = await this.#channel.request(REQUEST.list, []);
    return { running: answer.all(1).map(String), sealed: answer.all(2).map(String), unfinished: answer.all(3).map(String) };
  }

  /** Calls `listener` for every machine that ends, whatever the reason, after everything of it is gone. */
  onEnded(listener: (ended: MachineEnded) => void): () => void {
    this.#channel.ended.add(listener);
    return () => this.#channel.ended.delete(listener);
  }

  /** What a successor of this controller is told of the machine. One without a note is not taken over. */
  async note(id: string, note: Uint8Array): Promise<void> {
    await this.#channel.request(REQUEST.note, [[ID_TAG, id], [NOTE_TAG, note]]);
  }

  /** Of a machine or workspace that an earlier controller made. Rejects `busy` while what that one began is under way. */
  async recall(id: string): Promise<RecalledMachine> {
    return readRecalled(await this.#channel.request(REQUEST.recall, [[ID_TAG, id]]));
  }

  /** Ends every machine and waits for the spawner. */
  async close(): Promise<void> {
    // Our end of the socket stays open: its end is to be the spawner's.
    this.#channel.request(REQUEST.stop, []).catch(() => undefined);
    await this.exited;
    this.#channel.destroy();
  }
}

const NONE = { spawner: null, ended: null } as const;
const TAKEOVER_SOCKET = "takeover.sock";

function held(home: string, busy: Frame): MwError {
  const [pid, leftMs] = [busy.number(BUSY.pid), busy.number(BUSY.leftMs)];
  if (leftMs === null) return new MwError("busy", `Another process (${pid ?? "unknown"}) makes machines for ${home}`, { fix: "Stop it, or use another data directory (MW_HOME).", facts: { pid } });
  const seconds = Math.ceil(leftMs / 1000);
  return new MwError("busy", `The controller of ${home} has died, and its machines wait ${seconds} s more for another one`, {
    fix: `mw resume RUN goes on with those of a run with --take-over, a server started with mw serve --take-over SECONDS takes them over; else wait ${seconds} s, then they have ended, or use another data directory (MW_HOME)`,
    facts: { pid, leftMs },
  });
}
