/** A small machine for tests of init and its clients: the real init as PID 1 over the host's files (test/support/launch-init.c). */
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { newId, type ExecId } from "../../src/core/ids.ts";
import { systemRuntime } from "../../src/core/runtime.ts";
import { runExec, startExec, type ExecRequest, type NativeExec } from "../../src/sandbox/backends/native/exec.ts";
import { InitConnection } from "../../src/sandbox/backends/native/init-connection.ts";
import type { ExecResult } from "../../src/sandbox/sandbox.ts";

const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
export const NATIVE = join(ROOT, "dist-native");

const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

export interface InitMachine {
  readonly directory: string;
  readonly socket: string;
  readonly process: ChildProcess;
  readonly connection: InitConnection;
  /** Exit code of the launcher, once init has ended. */
  readonly ended: Promise<number | null>;
  request(command: ExecRequest["command"], more?: Partial<ExecRequest>): ExecRequest;
  run(command: ExecRequest["command"], more?: Partial<ExecRequest>): Promise<ExecResult>;
  start(command: ExecRequest["command"], more?: Partial<ExecRequest>): Promise<NativeExec>;
  stop(): Promise<void>;
}

export const execId = (): ExecId => newId("ex", systemRuntime);

/** Compiles the launcher beside the other programs, once per change. */
function launcher(): string {
  const source = join(ROOT, "test/support/launch-init.c");
  const program = join(NATIVE, "test", "launch-init");
  mkdirSync(dirname(program), { recursive: true });
  if (!existsSync(program) || statSync(program).mtimeMs < statSync(source).mtimeMs) {
    const fresh = `${program}.${process.pid}`;
    execFileSync("gcc", ["-O1", "-Wall", "-Werror", "-o", fresh, source]);
    renameSync(fresh, program);
  }
  return program;
}

function request(command: ExecRequest["command"], more: Partial<ExecRequest> = {}): ExecRequest {
  return { id: execId(), command, env: { PATH }, cwd: "/", user: "", ...more };
}

/** Builds what is stale of the native programs. */
export function buildNative(): void {
  execFileSync(process.execPath, [join(ROOT, "scripts/build.mjs"), "--native"]);
}

export async function startInitMachine(flags: readonly string[] = [], { etc }: { readonly etc?: string } = {}): Promise<InitMachine> {
  buildNative();
  const directory = mkdtempSync(join(tmpdir(), "mw-init-"));
  const socket = join(directory, "init.sock");
  const child = spawn(launcher(), [socket, join(NATIVE, "init"), ...flags], { stdio: ["pipe", "pipe", "inherit"], env: etc === undefined ? {} : { MW_TEST_ETC: etc } });
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve));
  await new Promise((resolve) => child.stdout?.once("data", resolve));
  const connection = await InitConnection.connect(socket);
  return {
    directory,
    socket,
    process: child,
    connection,
    ended,
    request,
    run: (command, more) => runExec(connection, request(command, more)),
    start: (command, more) => startExec(connection, request(command, more)),
    stop: async () => {
      connection.close();
      child.stdin?.end();
      await ended;
      rmSync(directory, { recursive: true, force: true });
    },
  };
}
