/**
 * Commands and files of one machine over one connection to its init: what a sandbox does inside, without the spawner's part (life, limits, leases). The backend
 * builds machines on it; the CLI uses it to reach a machine that another process holds.
 */
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { MwError, toMwError } from "../../../core/errors.ts";
import { newId, type ExecId } from "../../../core/ids.ts";
import type { Runtime } from "../../../core/runtime.ts";
import type { Exec, ExecOptions, ExecResult } from "../../sandbox.ts";
import { attachExec, openExec, runExec, startExec, type ExecRequest, type NativeExec } from "./exec.ts";
import { NativeFiles } from "./files.ts";
import { type FrameReceiver, InitConnection } from "./init-connection.ts";
import { openPort } from "./machine-port.ts";

/** What a command gets when its caller says nothing. */
export interface MachineDefaults {
  readonly env: Readonly<Record<string, string>>;
  readonly user: string;
  readonly workdir: string;
}

/** What the ids of file helpers begin with, and no other's: they are of one controller, and mean nothing to the next. */
const HELPER_MARK = "~";

/** The file helper, in every machine of this host at this path, on a read-only mount. */
const FILES_PROGRAM = "/dev/.mw/files";

export class MachineClient {
  readonly files: NativeFiles;
  readonly #open: () => Promise<InitConnection>;
  readonly #filesProgram: string;
  readonly #defaults: MachineDefaults;
  readonly #runtime: Runtime;
  /** Throws when the machine is over, or has none at the moment. */
  readonly #usable: () => void;
  #connection: Promise<InitConnection> | null = null;
  /** Commands on their way into the machine, and those of `run` until they have ended. */
  #underway = 0;
  /** Set while the machine is about to be another one: what comes in waits. */
  #gate: { readonly opened: Promise<void>; readonly open: () => void } | null = null;
  #closed = false;
  #parted: readonly FrameReceiver[] = [];

  constructor(open: () => Promise<InitConnection>, defaults: MachineDefaults, runtime: Runtime, usable: () => void = () => undefined, filesProgram: string = FILES_PROGRAM) {
    this.#usable = usable;
    this.#open = open;
    this.#filesProgram = filesProgram;
    this.#defaults = defaults;
    this.#runtime = runtime;
    this.files = new NativeFiles((user, source) => this.#startHelper(user, source));
  }

  async run(options: ExecOptions): Promise<ExecResult> {
    return this.#send(async () => runExec(await this.connect(), this.#request(options)));
  }

  async exec(options: ExecOptions): Promise<NativeExec> {
    return this.#send(async () => startExec(await this.connect(), this.#request(options)));
  }

  async attach(id: ExecId, offsets: { readonly stdout?: number; readonly stderr?: number } = {}): Promise<NativeExec> {
    return this.#send(async () => attachExec(await this.connect(), id, offsets));
  }

  async connectPort(port: number): Promise<Duplex> {
    return openPort(await this.#startHelper(""), port);
  }

  /** Ends the file helpers of a controller that died: a transfer that was under way is given up, and leaves nothing. */
  async endHelpers(): Promise<void> {
    try {
      const connection = await this.connect();
      const helpers = (await connection.list()).filter(({ id }) => id.startsWith(HELPER_MARK));
      await Promise.all(helpers.map(({ id }) => endHelper(connection, id as ExecId)));
    } catch {
      // The machine is over, and they with it.
    }
  }

  async killProcesses(): Promise<void> {
    await this.#send(async () => (await this.connect()).killAll());
  }

  /**
   * Holds back everything that comes from now on, until `reopen`, and says whether nothing is in the machine that would be lost with its init: no command, and no exit that nobody
   * has acknowledged.
   */
  async quiesce(): Promise<boolean> {
    this.hold();
    if (this.#underway > 0) return false;
    return (await (await this.connect()).list()).length === 0;
  }

  /** Holds back everything that comes from now on, until `reopen`. */
  hold(): void {
    if (this.#gate !== null) return;
    let open = (): void => undefined;
    const opened = new Promise<void>((resolve) => (open = resolve));
    this.#gate = { opened, open };
  }

  /** Kills every process although commands are held back. */
  async killNow(): Promise<void> {
    await (await this.connect()).killAll();
  }

  reopen(): void {
    this.#gate?.open();
    this.#gate = null;
  }

  /** Holds back everything and parts from init, which has no connection then; what runs goes on with `rejoin`, after this machine or a copy of it in its place answers again. */
  async part(): Promise<void> {
    this.hold();
    const connection = await this.#connection?.catch(() => null);
    if (connection === undefined || connection === null) return;
    try {
      this.#parted = await connection.part();
    } catch (error) {
      connection.stay();
      this.reopen();
      throw error;
    }
    this.#connection = null;
  }

  async rejoin(): Promise<void> {
    const parted = this.#parted;
    this.#parted = [];
    try {
      if (parted.length === 0) return;
      const connection = await this.connect();
      for (const receiver of parted) receiver.move?.(connection);
    } catch (error) {
      for (const receiver of parted) receiver.lost(toMwError(error));
    } finally {
      this.reopen();
    }
  }

  /** Gives the connection up; the next command connects again. */
  drop(): void {
    this.#connection?.then((connection) => connection.close()).catch(() => undefined);
    this.#connection = null;
  }

  /** Uses a connection that was made before the machine was. */
  adopt(connection: InitConnection): void {
    if (this.#closed) connection.close();
    else void this.#use(Promise.resolve(connection));
  }

  close(): void {
    this.#closed = true;
    for (const receiver of this.#parted) receiver.lost(new MwError("sandbox_gone", "The sandbox is over"));
    this.#parted = [];
    this.#connection?.then((connection) => connection.close()).catch(() => undefined);
    this.#connection = null;
  }

  /** One connection serves everything; it is made again when it broke while the machine lives. */
  connect(): Promise<InitConnection> {
    if (this.#closed) return Promise.reject(new MwError("sandbox_gone", "The sandbox is over"));
    if (this.#connection !== null) return this.#connection;
    return this.#use(this.#open());
  }

  #use(connecting: Promise<InitConnection>): Promise<InitConnection> {
    this.#connection = connecting;
    const forget = (): void => {
      if (this.#connection === connecting) this.#connection = null;
    };
    connecting.then((connection) => connection.closed.then(forget), forget);
    return connecting;
  }

  async #send<T>(work: () => Promise<T>): Promise<T> {
    while (this.#gate !== null) await this.#gate.opened;
    this.#usable();
    this.#underway++;
    try {
      return await work();
    } finally {
      this.#underway--;
    }
  }

  #request(options: ExecOptions): ExecRequest {
    const { env, cwd, user, id } = options;
    const { env: defaultEnv, user: defaultUser, workdir } = this.#defaults;
    return {
      ...options,
      id: id ?? newId("ex", this.#runtime),
      env: env === undefined ? defaultEnv : { ...defaultEnv, ...env },
      cwd: cwd === undefined ? workdir : join("/", cwd),
      user: user ?? defaultUser,
    };
  }

  async #startHelper(user: string, source?: string): Promise<NativeExec> {
    return this.#send(async () =>
      openExec(await this.connect(), {
        // Ids of other commands do not begin so.
        id: `${HELPER_MARK}${newId("ex", this.#runtime)}` as ExecId,
        command: source === undefined ? [this.#filesProgram] : [this.#filesProgram, source],
        env: {},
        cwd: "/",
        user,
        openStdin: true,
        maxOutputBytes: Number.MAX_SAFE_INTEGER,
      }),
    );
  }
}

async function endHelper(connection: InitConnection, id: ExecId): Promise<void> {
  // What it had to say is no longer wanted; at the end of its input it gives up.
  const exec = await attachExec(connection, id, { stdout: Number.MAX_SAFE_INTEGER, stderr: Number.MAX_SAFE_INTEGER });
  await exec.closeStdin();
  await Promise.all([exec.collect(), exec.exit]);
  await exec.acknowledge();
}

/** A client of a machine that lives. `filesProgram`: where that is inside, if not where native machines have it. Rejects `sandbox_gone` when nothing listens at the socket. */
export async function connectMachine(socket: string, defaults: MachineDefaults, runtime: Runtime, filesProgram?: string): Promise<MachineClient> {
  const client = new MachineClient(() => InitConnection.connect(socket), defaults, runtime, () => undefined, filesProgram);
  await client.connect();
  return client;
}

export type { Exec };
