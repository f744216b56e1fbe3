/**
 * The machine: one interface that every backend implements and one conformance suite (test/conformance/sandbox) checks.
 *
 * A sandbox is leased to one owner, starts from an image (plus, for verification, the sealed workspace of another sandbox), runs commands, moves files,
 * and dies when it is killed or its lease ends. Nothing of it outlives it except what `seal` keeps on purpose.
 *
 * Everything that comes out of a sandbox (paths, lengths, names, output) is hostile input.
 */
import type { Duplex } from "node:stream";
import type { MwError } from "../core/errors.ts";
import type { ExecId, SandboxId, SnapshotId } from "../core/ids.ts";

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

/**
 * `none`: loopback and declared services only. `allowlist`: the same, and a proxy for HTTP and HTTPS to the hosts of `SandboxSpec.allow`; there is no other way out. `public`:
 * user-mode networking to the outside, host loopback unreachable.
 */
export type NetworkMode = "none" | "allowlist" | "public";

/** Why the proxy of an `allowlist` network did not pass something on. */
export type RefusalReason =
  /** The destination is not in the list. */
  | "not_allowed"
  /** The name is, but it leads to an address inside the host's networks, which the list does not name. */
  | "address"
  /** TLS with another server than the one that the tunnel was asked for. */
  | "server_name"
  /** What came was no HTTP, no TLS, or in a form that could be read in two ways. */
  | "protocol"
  /** The sandbox has its share of connections already. */
  | "busy";

/** What was refused, by destination and reason. */
export interface EgressRefusal {
  readonly reason: RefusalReason;
  /** As the proxy understood it: lower case, in ASCII. Empty where it understood none. */
  readonly host: string;
  readonly port: number | null;
  /** For people: what was asked, and why not. */
  readonly message: string;
  readonly count: number;
  /** Milliseconds since the epoch. */
  readonly firstAt: number;
  readonly lastAt: number;
}

export interface EgressReport {
  /** The list as it is now. */
  readonly allow: readonly string[];
  /** Made to hosts outside, by request or tunnel. */
  readonly connections: number;
  readonly sentBytes: number;
  readonly receivedBytes: number;
  readonly refused: number;
  /** The first `LIMITS.egressRefusalsKept` destinations, each with its count; those beyond are in `refused` alone. */
  readonly refusals: readonly EgressRefusal[];
}

/** The way out of a sandbox with the network `allowlist`, on the host's side. */
export interface SandboxEgress {
  /** Replaces the list. What is open and no longer allowed ends. Throws `invalid_input` for an entry that is none. */
  allow(hosts: readonly string[]): void;
  report(): EgressReport;
  /** Called when a destination is refused for the first time, for as many as the report names. Returns what ends it. */
  onRefusal(listener: (refusal: EgressRefusal) => void): () => void;
}

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
  /**
   * Id or name of the snapshot that this machine starts from, over `root`, which must be the image that the snapshot was taken on. With the snapshot's memory its processes go on
   * where they were, unless `snapshotFilesOnly`.
   */
  readonly snapshot?: string;
  readonly snapshotFilesOnly?: boolean;
  /**
   * Made so that its memory can be kept in a snapshot: without a user namespace of its own, which is weaker (`Isolation.profile` records it) and needs the capability
   * `memorySnapshot`.
   */
  readonly checkpointable?: boolean;
  /** CPUs as a fraction, e.g. 1.5. Absent: no limit of its own. */
  readonly cpus?: number;
  /** Memory of processes, bytes; files written to disk do not count. Exceeding it ends a process with cause `oom_killed`. */
  readonly memoryBytes?: number;
  /** Room for everything the sandbox writes, bytes; beyond it writes fail with ENOSPC. */
  readonly diskBytes?: number;
  /** Processes and threads alive at once. */
  readonly pids?: number;
  readonly network?: NetworkMode;
  /**
   * Of the network `allowlist`: `example.com`, `*.example.com`, `example.com:8443`, an address or a range (`src/sandbox/egress/host-rules.ts`). May be empty, and changed later
   * through `Sandbox.egress`. For other networks it is refused.
   */
  readonly allow?: readonly string[];
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
  /** Of its main process, as the sandbox sees it; null where that is not known. */
  readonly pid: number | null;
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
  /** Extended attributes in `user.`, of files and directories, as text; where the backend tells them. */
  readonly attributes?: Readonly<Record<string, string>>;
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

/** What `files.write` makes is seen once it is there: created, then modified. `cause`, where the backend tells it: only mode, owner or attributes changed; it was moved away. */
export type FileEvent = { readonly kind: "created" | "modified" | "removed" | "overflow"; readonly path: Uint8Array; readonly cause?: "attributes" | "moved" };

export interface WriteOptions {
  readonly mode?: number;
  readonly owner?: string;
  /** Extended attributes in `user.`; those that a file had before are gone with it. */
  readonly attributes?: Readonly<Record<string, string>>;
}

/** File access, carried out inside the sandbox: paths and links resolve there and cannot reach the host. */
export interface SandboxFiles {
  read(path: SandboxPath, options?: { readonly maxBytes?: number; readonly user?: string }): Promise<Uint8Array>;
  /** Writes a regular file, making parent directories; an existing link at the path is replaced, never followed. It appears whole, or, when the data break off, not at all. */
  write(path: SandboxPath, data: Uint8Array | string | AsyncIterable<Uint8Array>, options?: WriteOptions): Promise<void>;
  /** The same as `read`, in pieces, with back-pressure and without a bound. Ending the iteration early ends the transfer. */
  readStream(path: SandboxPath, options?: { readonly user?: string }): AsyncIterable<Uint8Array>;
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
   * Makes the machine's files what they were where a layer archive was made of them, over the same image: what it removes is removed, the rest put in place with owners, modes and
   * times. Extended attributes, devices and sockets are refused by name.
   */
  applyLayer(archive: string, options?: { readonly signal?: AbortSignal }): Promise<TreeReport>;
  /**
   * Copies a tree out to a host directory that does not exist yet. Links are recreated only where they stay inside; nothing outside `to` is written,
   * whatever the sandbox sends.
   */
  download(from: SandboxPath, to: string, options?: TreeOptions): Promise<TreeReport>;
  /** Copies a tree straight into another sandbox, links as they are: nothing of it touches the host's file system. */
  copyTo(target: SandboxFiles, from: SandboxPath, to: SandboxPath, options?: TreeOptions): Promise<TreeReport>;
  /** `onReady` is called once nothing is missed any more. */
  watch(path: SandboxPath, options?: { readonly recursive?: boolean; readonly signal?: AbortSignal; readonly onReady?: () => void }): AsyncIterable<FileEvent>;
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

export interface SnapshotOptions {
  /** Letters, digits, `.`, `_` and `-`, at most 128 of them. A name that another snapshot has moves to the new one. */
  readonly name?: string;
  /** Keep the processes too. Needs a `checkpointable` sandbox and the capability `memorySnapshot`; else `unsupported`, before anything stands still. */
  readonly memory?: boolean;
  readonly labels?: Readonly<Record<string, string>>;
}

/** What a sandbox was at one moment, kept on disk. Immutable; as useful after the sandbox, its controller and its data directory as before. */
export interface Snapshot {
  readonly id: SnapshotId;
  readonly name: string | null;
  readonly createdAt: number;
  /** The sandbox that it was taken of. */
  readonly sandbox: SandboxId;
  /** `RootFilesystem.digest` of the image below it. */
  readonly imageDigest: string;
  /** Whether it holds processes. */
  readonly memory: boolean;
  /** On disk, of all that it consists of; layers that snapshots share count in each. */
  readonly bytes: number;
  /** File layers over the image. */
  readonly layers: number;
  readonly labels: Readonly<Record<string, string>>;
  /** The sandbox whose pause this is: it goes when that one is resumed or killed. Null for snapshots that were asked for. */
  readonly pausedSandbox: SandboxId | null;
}

/** How a snapshot was come by. */
export interface SnapshotTaken {
  readonly snapshot: Snapshot;
  /** `switched`: the machine went on over its frozen layer. `copied`: it stood still while its layer was copied. `dumped`: its processes were written out. */
  readonly method: "switched" | "copied" | "dumped";
  /** How long nothing inside could run, milliseconds. */
  readonly stoppedMs: number;
}

/** What a child has of its own; what is absent is as in the parent, except for the host name, which is the child's id. */
export interface ForkChild {
  readonly hostname?: string;
  readonly labels?: Readonly<Record<string, string>>;
  /** Listeners of the child; the targets learn the child's id from each connection. */
  readonly services?: readonly Service[];
  readonly env?: Readonly<Record<string, string>>;
  readonly ttlMs?: number;
  readonly key?: string;
}

export interface ForkOptions {
  /** Children go on with the parent's processes. Else they start with its files and no process. As for snapshots. */
  readonly memory?: boolean;
  /** Called with 0 to n-1. */
  readonly child?: (index: number) => ForkChild;
}

/** Children succeed and fail one by one. */
export type ForkResult = { readonly ok: true; readonly sandbox: Sandbox } | { readonly ok: false; readonly error: MwError };

export interface PauseOptions {
  /** Keep the processes too; as for snapshots. Default: files only, every process ends. */
  readonly memory?: boolean;
}

/** The snapshots of a data directory. Several processes may use it at once. */
export interface SnapshotStore {
  /** Oldest first. Only whole ones, whatever was killed while one was made. */
  list(): Promise<readonly Snapshot[]>;
  /** By id or name. */
  get(reference: string): Promise<Snapshot | null>;
  /** At once for everybody who looks for it; machines that started from it keep what they use. `not_found` for what is not there. */
  remove(reference: string): Promise<void>;
  /** Gives the name to this snapshot, taking it from another; null takes its own away. */
  rename(reference: string, name: string | null): Promise<Snapshot>;
  /** Takes away what no snapshot and no living machine uses, and what was left half-made. */
  /** Bytes on disk of these together: what they share counts once. Ids of none count nothing. */
  sizeOf(ids: readonly SnapshotId[]): Promise<number>;
  collect(): Promise<{ readonly layers: number; readonly bytes: number }>;
  /** One file that holds the snapshot whole, but not the image below it. It appears only when it is whole; `conflict` when the path exists. */
  export(reference: string, path: string): Promise<void>;
  /** Takes such a file in, under its own id. A file that does not hold what it says is refused (`corrupt`). One that is there already is left as it is. */
  import(path: string, options?: { readonly name?: string }): Promise<Snapshot>;
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
  /** Present with the network `allowlist`. */
  readonly egress?: SandboxEgress | undefined;
  /** Absolute path on this host where its init listens for other processes of this user; absent where the backend keeps it elsewhere, or to itself. */
  readonly socket?: string;
  /** Where no process but this one reaches its init: opens one more connection to it, to be passed on. `filesProgram`: where the file helper is inside. */
  readonly passage?: { readonly open: () => Promise<Duplex>; readonly filesProgram: string };
  /** A TCP connection to a port of the sandbox's own loopback, whatever network it has. Rejects `conflict` when nothing listens there. */
  connect(port: number): Promise<Duplex>;
  /** A paused one has no machine: commands and files are refused with `sandbox_paused`, `ended` is pending, `kill` gives up what was kept. */
  readonly state: "running" | "paused";
  /**
   * Keeps what the sandbox is now, and lets it go on. Files written since the image, exactly; with `memory` its processes too. Returns when the snapshot is on disk; the
   * sandbox stands still for `stoppedMs` of that only. A request that cannot be met fails before anything stands still.
   */
  snapshot(options?: SnapshotOptions): Promise<SnapshotTaken>;
  /** Children that start as this sandbox is now, while it goes on. Never rejects for one child: each has its own result. */
  fork(count: number, options?: ForkOptions): Promise<readonly ForkResult[]>;
  /** Gives the memory back and keeps the disk: the sandbox is there, under its id, until `resume` or `kill`. Its lease does not run meanwhile. Pausing a paused one changes nothing. */
  pause(options?: PauseOptions): Promise<void>;
  /** Goes on with the files (and processes) of the pause, and `ttlMs` anew. Resuming a running one changes nothing. */
  resume(options?: { readonly ttlMs?: number }): Promise<void>;
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
  /** `userns`: own user namespace and ids. `namespaces`: shared user namespace, weaker. `remote`: what a service of others gives, which it says nothing of. */
  readonly profile: "userns" | "namespaces" | "remote";
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
  /** Sealed workspaces can be brought to the host. */
  readonly export: boolean;
  /** Files of a running sandbox can be kept while it goes on. */
  readonly snapshot: boolean;
  /** Its processes too, of `checkpointable` ones. */
  readonly memorySnapshot: boolean;
  readonly fork: boolean;
  readonly pause: boolean;
  /** Ports inside that lead to sockets of the controller. */
  readonly services: boolean;
  /** Layers over the image. */
  readonly layers: boolean;
  /** A host name of one's choice. */
  readonly hostname: boolean;
  /** What of ours works inside is out of reach of root inside: no command can end or replace it. */
  readonly guarded: boolean;
  /** Why something is missing and how to get it, by capability name. */
  readonly missing: Readonly<Record<string, string>>;
}

/** What a sandbox has of its owner, whatever it was made of. */
export type OwnParts = Pick<SandboxSpec, "labels" | "env">;

/** A sandbox that was made before anybody asked for it. Nothing has run in it; it is in no list. */
export interface PreparedSandbox {
  readonly ended: Promise<SandboxEnd>;
  /** It is the caller's from now on. Null when it has ended meanwhile. Works once. */
  take(own: OwnParts): Promise<Sandbox | null>;
  discard(): Promise<void>;
}

export interface SandboxBackend {
  readonly name: string;
  readonly capabilities: Capabilities;
  /** A request that needs a missing capability fails with `unsupported` before anything starts. */
  create(spec: SandboxSpec): Promise<Sandbox>;
  /** Makes one beforehand, for pools. Absent where that is no faster than making it when it is asked for. */
  prepare?(spec: SandboxSpec): Promise<PreparedSandbox>;
  /** Brings an image to where machines are made, which may take minutes; `create` does it too. Absent: there is nothing to bring. */
  bringImage?(root: RootFilesystem): Promise<void>;
  list(): Promise<readonly { readonly id: SandboxId; readonly labels: Readonly<Record<string, string>>; readonly createdAt: number; readonly state: Sandbox["state"] }[]>;
  get(id: SandboxId): Sandbox | null;
  readonly snapshots: SnapshotStore;
  /**
   * A sandbox that was paused, by this controller or an earlier one, under its old id and with `spec`, whose image must be the one that it had. Still paused: `resume` starts it.
   * `not_found` when no pause of that id is kept.
   */
  adoptPaused(id: SandboxId, spec: SandboxSpec): Promise<Sandbox>;
  /** Kills every sandbox of this backend and stops its helpers. Paused ones are kept, and taken up again through `adoptPaused`. */
  close(): Promise<void>;
}
