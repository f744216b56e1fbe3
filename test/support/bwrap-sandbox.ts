/**
 * A machine for unit tests of what uses a sandbox, made by bubblewrap: a directory of its own as root, with the host's programs. It
 * implements only what harnesses call, and shares the contract's types; the real backends have their own suite.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { ExecId, SandboxId } from "../../src/core/ids.ts";
import { LIMITS } from "../../src/core/limits.ts";
import type { Exec, ExecChunk, ExecExit, ExecOptions, ExecResult, Sandbox, SandboxPath } from "../../src/sandbox/sandbox.ts";

const DIRECTORIES = ["dev", "etc", "proc", "root", "run", "tmp", "usr", "work"];
const LINKS = ["bin", "lib", "lib64", "sbin"];

export async function bwrapSandbox(): Promise<{ readonly sandbox: Sandbox; readonly root: string; close(): Promise<void> }> {
  const root = await mkdtemp(join(tmpdir(), "mw-bwrap-"));
  for (const name of DIRECTORIES) await mkdir(join(root, name));
  for (const name of LINKS) await symlink(`usr/${name}`, join(root, name));
  const children = new Set<ChildProcess>();
  const host = (path: SandboxPath): string => join(root, String(path));
  const exec = async (options: ExecOptions): Promise<Exec> => run(root, children, options);
  const sandbox = {
    id: "sbxtest" as SandboxId,
    spec: { root: { digest: "host:test", layers: [], parts: [], env: {}, workdir: "/work", user: "", entrypoint: [], cmd: [] } },
    exec,
    run: async (options: ExecOptions): Promise<ExecResult> => {
      const started = await exec(options);
      const out: Uint8Array[] = [];
      const err: Uint8Array[] = [];
      for await (const chunk of started.output) (chunk.stream === "stdout" ? out : err).push(chunk.data);
      return { ...(await started.exit), stdout: Buffer.concat(out), stderr: Buffer.concat(err) };
    },
    files: {
      remove: async (path: SandboxPath) => await rm(host(path), { recursive: true, force: true }),
      mkdir: async (path: SandboxPath) => void (await mkdir(host(path), { recursive: true })),
      write: async (path: SandboxPath, data: Uint8Array | string) => {
        await mkdir(dirname(host(path)), { recursive: true });
        await writeFile(host(path), data);
      },
      upload: async (from: string, to: SandboxPath) => {
        await cp(from, host(to), { recursive: true });
        return { entries: 0, bytes: 0, refused: [] };
      },
    },
  };
  return {
    // The rest of the interface is never reached by a harness; a call of it is a test failure.
    sandbox: sandbox as unknown as Sandbox,
    root,
    close: async () => {
      for (const child of children) child.kill("SIGKILL");
      await rm(root, { recursive: true, force: true });
    },
  };
}

const nothing = (): void => undefined;

function run(root: string, children: Set<ChildProcess>, options: ExecOptions): Exec {
  const argv = typeof options.command === "string" ? ["/bin/sh", "-c", options.command] : [...options.command];
  const startedAt = performance.now();
  const child = spawn(
    "bwrap",
    ["--bind", root, "/", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--die-with-parent", "--chdir", options.cwd ?? "/work", "--", ...argv],
    { env: { PATH: "/usr/local/bin:/usr/bin:/bin", HOME: "/root", ...options.env }, stdio: ["pipe", "pipe", "pipe"] },
  );
  children.add(child);
  child.stdin.on("error", () => undefined);
  child.stdin.end(options.stdin ?? "");
  let ended: ExecExit["ended"] = "exited";
  const stop = (how: ExecExit["ended"]): void => {
    ended = how;
    child.kill("SIGKILL");
  };
  const timer = options.timeoutMs === undefined ? undefined : setTimeout(() => stop("timed_out"), options.timeoutMs);
  const onAbort = (): void => stop("killed");
  if (options.signal?.aborted) onAbort();
  options.signal?.addEventListener("abort", onAbort, { once: true });
  const cap = options.maxOutputBytes ?? LIMITS.execOutputBytes;
  const bytes = { stdout: 0, stderr: 0 };
  const queue: ExecChunk[] = [];
  let wake = nothing;
  let closed = false;
  for (const stream of ["stdout", "stderr"] as const) {
    child[stream].on("data", (data: Buffer) => {
      const room = Math.max(0, cap - bytes[stream]);
      bytes[stream] += data.length;
      if (room > 0) queue.push({ stream, data: data.subarray(0, room) });
      wake();
    });
  }
  const exit = new Promise<ExecExit>((resolve) => {
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", onAbort);
      children.delete(child);
      closed = true;
      wake();
      resolve({
        code: code ?? 137,
        signal: signal ?? null,
        ended,
        cause: null,
        durationMs: performance.now() - startedAt,
        stdoutBytes: bytes.stdout,
        stderrBytes: bytes.stderr,
        truncated: bytes.stdout > cap || bytes.stderr > cap,
      });
    });
  });
  async function* output(): AsyncGenerator<ExecChunk> {
    for (;;) {
      const next = queue.shift();
      if (next !== undefined) yield next;
      else if (closed) return;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
  }
  return {
    id: (options.id ?? "extest") as ExecId,
    output: output(),
    exit,
    acknowledge: () => Promise.resolve(),
    writeStdin: () => Promise.reject(new Error("not in this double")),
    closeStdin: () => Promise.reject(new Error("not in this double")),
    kill: () => Promise.reject(new Error("not in this double")),
    resize: () => Promise.reject(new Error("not in this double")),
  };
}
