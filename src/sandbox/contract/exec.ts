/** Running a command in a sandbox. */
import type { ExecId } from "../../core/ids.ts";

/** Why a process or a sandbox ended the way it did, where the kernel tells more than an exit code. */
export type LimitCause = "oom_killed" | "pids" | "disk_full";

export interface ExecOptions {
  /** argv, or a string for `/bin/sh -c`. An argv is never given to a shell. */
  readonly command: readonly string[] | string;
  readonly cwd?: string;
  /** Added to the sandbox's environment. */
  readonly env?: Readonly<Record<string, string>>;
  /** `name`, `uid`, `name:group`, `uid:gid`. */
  readonly user?: string;
  /** Bytes for stdin; it is closed after them. Absent: an immediate end of file. */
  readonly stdin?: Uint8Array | string;
  /** Leaves stdin open after those bytes: more is written through `Exec.writeStdin`, until `Exec.closeStdin`. */
  readonly openStdin?: boolean;
  readonly pty?: { readonly columns: number; readonly rows: number };
  /** The whole process tree of the exec is killed when it passes; result `timed_out`. Milliseconds from the start of the command. */
  readonly timeoutMs?: number;
  /** Bytes delivered per stream; what exceeds it is counted, dropped and flagged. Default `LIMITS.execOutputBytes`. */
  readonly maxOutputBytes?: number;
  /** Client-chosen: a second exec with the same id attaches to the first and never starts a second process. */
  readonly id?: ExecId;
  /** Aborting kills the exec's process tree; the result says `killed`. */
  readonly signal?: AbortSignal;
}

/** How an exec ended. `code` is 128 + signal for signalled processes, as shells report it. */
export interface ExecExit {
  readonly code: number;
  /** Name such as `SIGKILL`, when a signal ended it. */
  readonly signal: string | null;
  /** `exited`: by itself or by a signal from inside. `timed_out`, `killed`: by us. `lost`: the sandbox died under it. */
  readonly ended: "exited" | "timed_out" | "killed" | "lost";
  /** Present when a limit was hit during this exec. */
  readonly cause: LimitCause | null;
  /** Wall time of the command inside the sandbox, milliseconds. */
  readonly durationMs: number;
  /** Bytes that the command wrote, delivered or not. */
  readonly stdoutBytes: number;
  readonly stderrBytes: number;
  readonly truncated: boolean;
}

export interface ExecResult extends ExecExit {
  /** Raw bytes as written, at most `maxOutputBytes`. With a pty, everything is on stdout. */
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
}

export interface ExecChunk {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
}

/** A command that is running or has ended. Iterate `output` to the end (it applies back-pressure), then await `exit`. */
export interface Exec {
  readonly id: ExecId;
  /** Of its main process, as the sandbox sees it; null where that is not known. */
  readonly pid: number | null;
  /** Bytes of its input that were on their way when it was attached to; absent where that is not known. */
  readonly inputBytes?: number;
  /** Ends when the process has exited and its own output is drained, even if a background child still holds the pipe. Single use. */
  readonly output: AsyncIterable<ExecChunk>;
  readonly exit: Promise<ExecExit>;
  writeStdin(data: Uint8Array | string): Promise<void>;
  closeStdin(): Promise<void>;
  /** Sends a signal to the exec's process group; `SIGKILL` reaches its whole tree. */
  kill(signal?: NodeJS.Signals): Promise<void>;
  resize(columns: number, rows: number): Promise<void>;
  /** Forgets the exec inside the sandbox. After it the id can no longer be attached. `Sandbox.run` does it by itself. */
  acknowledge(): Promise<void>;
}
