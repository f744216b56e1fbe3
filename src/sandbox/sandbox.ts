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
import type { ExecId, SandboxId } from "../core/ids.ts";
import type { Exec, ExecOptions, ExecResult, LimitCause } from "./contract/exec.ts";
import type { SandboxFiles } from "./contract/files.ts";
import type { NetworkMode, SandboxEgress, Service } from "./contract/network.ts";
import type { SnapshotOptions, SnapshotStore, SnapshotTaken } from "./contract/snapshots.ts";
import type { Workspace, WorkspaceRef } from "./contract/workspace.ts";

export type * from "./contract/exec.ts";
export type * from "./contract/files.ts";
export type * from "./contract/network.ts";
export type * from "./contract/snapshots.ts";
export type * from "./contract/workspace.ts";

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

export interface SandboxMetrics {
  readonly cpuMs: number | null;
  readonly memoryBytes: number | null;
  readonly memoryPeakBytes: number | null;
  readonly diskBytes: number | null;
  readonly pids: number | null;
  /** Times each limit was hit since creation. */
  readonly limits: Readonly<Record<LimitCause, number>>;
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
  /** Ended machines whose files the controller before this one had sealed, which nobody has yet: `seal` gives them, `kill` gives them up. Absent: machines do not outlive their controllers. */
  readonly sealed?: ReadonlyMap<SandboxId, Sandbox>;
  readonly snapshots: SnapshotStore;
  /**
   * A sandbox that was paused, by this controller or an earlier one, under its old id and with `spec`, whose image must be the one that it had. Still paused: `resume` starts it.
   * `not_found` when no pause of that id is kept.
   */
  adoptPaused(id: SandboxId, spec: SandboxSpec): Promise<Sandbox>;
  /** Kills every sandbox of this backend and stops its helpers. Paused ones are kept, and taken up again through `adoptPaused`. */
  close(): Promise<void>;
}
