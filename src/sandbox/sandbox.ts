/**
 * The machine: one interface that every backend implements and one conformance suite (test/conformance/sandbox) checks.
 *
 * A sandbox is leased to one owner, starts from an image (plus, for verification, the sealed workspace of another sandbox), runs commands, moves files,
 * and dies when it is killed or its lease ends. Nothing of it outlives it except what `seal` keeps on purpose.
 *
 * Everything that comes out of a sandbox (paths, lengths, names, output) is hostile input.
 */
import type { ExecId, SandboxId } from "../core/ids.ts";

/** What a sandbox starts from: read-only directories on the host, each already unpacked and verified. Made by `image/`. */
export interface RootFilesystem {
  /** Content identity of the whole, for pools and records: `sha256:...`, or `host:...` for the host image. */
  readonly digest: string;
  /** Overlay lower directories, topmost first, absolute host paths. Files in them carry the owners that the sandbox is to see. */
  readonly layers: readonly string[];
  /**
   * Second-level mounts for roots that cannot be one overlay (the image `host`: overlayfs refuses `/` as a layer beside layers that lie on it): each directory
   * `target` (absolute, in the sandbox) is an overlay of its own whose upper directory is the same path below the root's upper. Its layers are topmost first and
   * complete for the image itself; the same paths of `SandboxSpec.layers` (and of a workspace) go above them where they are directories. Usually empty.
   */
  readonly parts: readonly { readonly target: string; readonly layers: readonly string[] }[];
  /** Defaults from the image's configuration. */
  readonly env: Readonly<Record<string, string>>;
  readonly workdir: string;
  /** `name`, `uid`, `name:group`, `uid:gid` as in an OCI image; empty means root. */
  readonly user: string;
  /** The image's own start command, for tasks whose service it is; never run unless asked for. */
  readonly entrypoint: readonly string[];
  readonly cmd: readonly string[];
}

/**
 * Read-only directories laid over the image (harness layers, tools), topmost first, shared by any number of sandboxes; they win over the image, the agent's writes
 * win over them and stay its own. No part of a sealed workspace, beyond what the agent changed in them.
 */
export interface LayerMount {
  /**
   * Absolute host path of an unpacked directory whose content appears at the same relative paths below `/`, whatever the image is made of. A directory that the image
   * has too, `/` included, looks as in the layer (mode, owner): give `/` and the way to the content mode 0755.
   */
  readonly path: string;
}

/** `none`: loopback and declared services only. `public`: user-mode networking to the outside, host loopback unreachable. */
export type NetworkMode = "none" | "public";

/** A TCP port on the sandbox's loopback that the host side forwards to a unix socket of the controller. */
export interface Service {
  readonly port: number;
  /**
   * Absolute path of a listening unix socket on the host. Each forwarded connection starts with one line, `MW1 <sandbox id> <port>\n`, written by the
   * forwarder before any byte of the client: the listener says who is asking.
   */
  readonly target: string;
}

export interface SandboxSpec {
  readonly root: RootFilesystem;
  /** Extra read-only layers over the image. */
  readonly layers?: readonly LayerMount[];
  /** The sealed workspace that this machine starts from, over image and layers; consumed read-only, stays valid until released. */
  readonly workspace?: WorkspaceRef;
  /** CPUs as a fraction, e.g. 1.5. Absent: no limit of its own. */
  readonly cpus?: number;
  /** Memory of processes, bytes; files written to disk do not count. Exceeding it ends a process with cause `oom_killed`. */
  readonly memoryBytes?: number;
  /** Room for everything the sandbox writes, bytes; beyond it writes fail with ENOSPC. */
  readonly diskBytes?: number;
  /** Processes and threads alive at once. */
  readonly pids?: number;
  readonly network?: NetworkMode;
  readonly services?: readonly Service[];
  /** Added to the image's environment for every exec. */
  readonly env?: Readonly<Record<string, string>>;
  /** Default user of execs; else the image's. */
  readonly user?: string;
  /** Default working directory of execs; else the image's. Created if missing. Relative paths are below `/`. */
  readonly workdir?: string;
  readonly hostname?: string;
  readonly labels?: Readonly<Record<string, string>>;
  /** Lease: the sandbox dies this long after the last `renew`. Backends renew on their own while the controller lives. */
  readonly ttlMs?: number;
  /** Idempotency: a second create with the same key returns the same sandbox while it lives. */
  readonly key?: string;
}

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

export interface FileStat {
  /** Bytes of the name; names need not be UTF-8. */
  readonly path: Uint8Array;
  readonly type: "file" | "directory" | "symlink" | "fifo" | "socket" | "device";
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly size: number;
  /** Nanoseconds since the epoch. */
  readonly mtimeNs: bigint;
  /** Target of a symlink. */
  readonly target: Uint8Array | null;
}

/** A path inside the sandbox, absolute; as bytes where it is not UTF-8. */
export type SandboxPath = string | Uint8Array;

export interface TreeReport {
  readonly entries: number;
  readonly bytes: number;
  /** Entries that were not transferred, with the reason: devices, escapes, over a limit. Never silent. */
  readonly refused: readonly { readonly path: string; readonly reason: string }[];
}

export interface TreeOptions {
  /** Owner given to everything uploaded, `name` or `uid:gid`; default root. */
  readonly owner?: string;
  /** Of `copyTo`: everything keeps the owner that it has, as numbers, and `owner` is for nothing but a missing target directory. */
  readonly keepOwners?: boolean;
  /** Mode given to every file and every new directory that goes into a sandbox. */
  readonly mode?: number;
  /** Names or paths (glob with `*` within one segment, `**` across) left out. */
  readonly exclude?: readonly string[];
  readonly maxBytes?: number;
  /** Of `download`: files, directories and links. */
  readonly maxEntries?: number;
  readonly signal?: AbortSignal;
}

export type FileEvent = { readonly kind: "created" | "modified" | "removed" | "overflow"; readonly path: Uint8Array };

/** File access, carried out inside the sandbox: paths and links resolve there and cannot reach the host. */
export interface SandboxFiles {
  read(path: SandboxPath, options?: { readonly maxBytes?: number; readonly user?: string }): Promise<Uint8Array>;
  /** Writes a regular file, making parent directories; an existing link at the path is replaced, never followed. */
  write(path: SandboxPath, data: Uint8Array | string, options?: { readonly mode?: number; readonly owner?: string }): Promise<void>;
  list(path: SandboxPath): Promise<readonly FileStat[]>;
  /** Does not follow a link at the last component. Null when nothing is there. */
  stat(path: SandboxPath): Promise<FileStat | null>;
  mkdir(path: SandboxPath, options?: { readonly mode?: number; readonly owner?: string }): Promise<void>;
  move(from: SandboxPath, to: SandboxPath): Promise<void>;
  /** Removes a file or a whole tree, never following links, also when made immutable or append-only. Nothing there is no error. */
  remove(path: SandboxPath): Promise<void>;
  /** Merges a host directory (or file) into `to`: modes, links, empty directories, names of any bytes. */
  upload(from: string, to: SandboxPath, options?: TreeOptions): Promise<TreeReport>;
  /**
   * Copies a tree out to a host directory that does not exist yet. Links are recreated only where they stay inside; nothing outside `to` is written,
   * whatever the sandbox sends.
   */
  download(from: SandboxPath, to: string, options?: TreeOptions): Promise<TreeReport>;
  /** Copies a tree straight into another sandbox, links as they are: nothing of it touches the host's file system. */
  copyTo(target: SandboxFiles, from: SandboxPath, to: SandboxPath, options?: TreeOptions): Promise<TreeReport>;
  watch(path: SandboxPath, options?: { readonly recursive?: boolean; readonly signal?: AbortSignal }): AsyncIterable<FileEvent>;
}

export interface SandboxMetrics {
  readonly cpuMs: number | null;
  readonly memoryBytes: number | null;
  readonly memoryPeakBytes: number | null;
  readonly diskBytes: number | null;
  readonly pids: number | null;
  /** Times each limit was hit since creation. */
  readonly limits: Readonly<Record<LimitCause, number>>;
}

/** The files of a sandbox that has ended, kept so that another sandbox can start from them. Held until released or its keeper dies. */
export interface WorkspaceRef {
  readonly id: SandboxId;
}

/** One difference between a sealed workspace and the image below it. */
export interface WorkspaceChange {
  /** Absolute path as the sandbox saw it. */
  readonly path: Uint8Array;
  /** `added`: nothing was there in the image; `changed`: it replaces what the image had; `removed`: the image's is hidden. */
  readonly kind: "added" | "changed" | "removed";
  readonly type: FileStat["type"];
  readonly mode: number;
  readonly size: number;
  readonly target: Uint8Array | null;
}

export interface Workspace extends WorkspaceRef {
  readonly bytes: number;
  /** Every path that the sandbox added, changed or removed; a directory appears only when it was added, replaced or its mode or owner changed. */
  changes(): Promise<readonly WorkspaceChange[]>;
  /** Takes paths out of the workspace, so that what the image has there (or nothing) shows again. Whole trees; missing paths are no error. */
  discard(paths: readonly SandboxPath[]): Promise<void>;
  /** Reads one regular file of the workspace (not of the image), without following links. Null when it has none there. */
  read(path: SandboxPath, maxBytes: number): Promise<Uint8Array | null>;
  /**
   * Copies the workspace to a host directory that does not exist yet, as an overlay upper: owners, modes, times, extended attributes, hard links, holes,
   * whiteouts and opaque marks exact. For image layers.
   */
  export(directory: string): Promise<void>;
  release(): Promise<void>;
}

export interface SandboxEnd {
  /** `killed`: on request. `expired`: the lease ran out. `died`: its init ended. `lost`: the machinery around it died. `sealed`: kept as a workspace. */
  readonly reason: "killed" | "expired" | "died" | "lost" | "sealed";
  readonly limits: Readonly<Record<LimitCause, number>>;
  /** It died because its memory was used up, and its files are kept: `seal` still works until `kill`, or until its lease would have ended. */
  readonly kept: boolean;
}

export interface Sandbox {
  readonly id: SandboxId;
  readonly spec: SandboxSpec;
  /** What was declared and enforced, for the record and the verdict. */
  readonly isolation: Isolation;
  /** Runs to the end and collects the output. */
  run(options: ExecOptions): Promise<ExecResult>;
  /** Starts a command, or attaches to the one with the same id. */
  exec(options: ExecOptions): Promise<Exec>;
  /** Attaches to an exec by id at byte offsets of its output; bytes before an offset are not sent again. Rejects `not_found` for an unknown id. */
  attach(id: ExecId, offsets?: { readonly stdout?: number; readonly stderr?: number }): Promise<Exec>;
  readonly files: SandboxFiles;
  /** Kills every process except init, repeatedly until none is left. */
  killProcesses(): Promise<void>;
  freeze(): Promise<void>;
  thaw(): Promise<void>;
  metrics(): Promise<SandboxMetrics>;
  /** The lease now ends `ttlMs` from now. From the first call on it is the caller's to renew: the backend no longer does so by itself. */
  renew(ttlMs: number): Promise<void>;
  /** Ends the machine and keeps its files. The sandbox is over; the workspace is the caller's to release. Works once on an ended one whose `kept` is true. */
  seal(): Promise<Workspace>;
  /** Ends the machine and waits until nothing of it is left. Idempotent. */
  kill(): Promise<void>;
  readonly ended: Promise<SandboxEnd>;
}

/** What separates a sandbox from the host and its neighbours; recorded in every verdict. */
export interface Isolation {
  readonly backend: string;
  /** `userns`: own user namespace and ids. `namespaces`: shared user namespace, weaker. */
  readonly profile: "userns" | "namespaces";
  /** Whether the controller runs as root. */
  readonly privileged: boolean;
  readonly enforced: { readonly cpu: boolean; readonly memory: boolean; readonly pids: boolean; readonly disk: boolean };
}

export interface Capabilities {
  readonly isolation: Isolation;
  readonly networks: readonly NetworkMode[];
  /** Users other than root exist inside (subordinate ids as an ordinary user). */
  readonly users: boolean;
  readonly freeze: boolean;
  readonly seal: boolean;
  readonly memorySnapshot: boolean;
  /** Why something is missing and how to get it, by capability name. */
  readonly missing: Readonly<Record<string, string>>;
}

export interface SandboxBackend {
  readonly name: string;
  readonly capabilities: Capabilities;
  /** A request that needs a missing capability fails with `unsupported` before anything starts. */
  create(spec: SandboxSpec): Promise<Sandbox>;
  list(): Promise<readonly { readonly id: SandboxId; readonly labels: Readonly<Record<string, string>>; readonly createdAt: number }[]>;
  get(id: SandboxId): Sandbox | null;
  /** Kills every sandbox of this backend and stops its helpers. */
  close(): Promise<void>;
}
