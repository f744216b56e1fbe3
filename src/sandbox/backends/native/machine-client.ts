/**
 * Commands and files of one machine over one connection to its init: what a sandbox does inside, without the spawner's part (life, limits, leases). The backend
 * builds machines on it; the CLI uses it to reach a machine that another process holds.
 */
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import { newId, type ExecId } from "../../../core/ids.ts";
import type { Runtime } from "../../../core/runtime.ts";
import type { Exec, ExecOptions, ExecResult, SandboxFiles } from "../../sandbox.ts";
import { attachExec, openExec, runExec, startExec, type ExecRequest, type NativeExec } from "./exec.ts";
import { NativeFiles } from "./files.ts";
import { InitConnection } from "./init-connection.ts";

/** What a command gets when its caller says nothing. */
export interface MachineDefaults {
  readonly env: Readonly<Record<string, string>>;
  readonly user: string;
  readonly workdir: string;
}

/** The file helper, in every machine at this path, on a read-only mount. */
const FILES_PROGRAM = "/dev/.mw/files";

export class MachineClient {
  readonly files: SandboxFiles;
  readonly #socket: string;
  readonly #defaults: MachineDefaults;
  readonly #runtime: Runtime;
  #connection: Promise<InitConnection> | null = null;
  #closed = false;

  constructor(socket: string, defaults: MachineDefaults, runtime: Runtime) {
    this.#socket = socket;
    this.#defaults = defaults;
    this.#runtime = runtime;
    this.files = new NativeFiles((user) => this.#startHelper(user));
  }

  async run(options: ExecOptions): Promise<ExecResult> {
    return runExec(await this.connect(), this.#request(options));
  }

  async exec(options: ExecOptions): Promise<NativeExec> {
    return startExec(await this.connect(), this.#request(options));
  }

  async attach(id: ExecId, offsets: { readonly stdout?: number; readonly stderr?: number } = {}): Promise<NativeExec> {
    return attachExec(await this.connect(), id, offsets);
  }

  async killProcesses(): Promise<void> {
    await (await this.connect()).killAll();
  }

  /** Uses a connection that was made before the machine was. */
  adopt(connection: InitConnection): void {
    if (this.#closed) connection.close();
    else void this.#use(Promise.resolve(connection));
  }

  close(): void {
    this.#closed = true;
    this.#connection?.then((connection) => connection.close()).catch(() => undefined);
    this.#connection = null;
  }

  /** One connection serves everything; it is made again when it broke while the machine lives. */
  connect(): Promise<InitConnection> {
    if (this.#closed) return Promise.reject(new MwError("sandbox_gone", "The sandbox is over"));
    if (this.#connection !== null) return this.#connection;
    return this.#use(InitConnection.connect(this.#socket));
  }

  #use(connecting: Promise<InitConnection>): Promise<InitConnection> {
    this.#connection = connecting;
    const forget = (): void => {
      if (this.#connection === connecting) this.#connection = null;
    };
    connecting.then((connection) => connection.closed.then(forget), forget);
    return connecting;
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

  async #startHelper(user: string): Promise<NativeExec> {
    return openExec(await this.connect(), {
      id: newId("ex", this.#runtime),
      command: [FILES_PROGRAM],
      env: {},
      cwd: "/",
      user,
      openStdin: true,
      maxOutputBytes: Number.MAX_SAFE_INTEGER,
    });
  }
}

/** A client of a machine that lives. Rejects `sandbox_gone` when nothing listens at the socket. */
export async function connectMachine(socket: string, defaults: MachineDefaults, runtime: Runtime): Promise<MachineClient> {
  const client = new MachineClient(socket, defaults, runtime);
  await client.connect();
  return client;
}

export type { Exec };
