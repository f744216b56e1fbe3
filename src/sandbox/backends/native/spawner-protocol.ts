/** Numbers of the spawner protocol (native/spawn-protocol.h; every field is described in docs/internals/native.md) and how its frames are read. */
import { type ErrorCode, MwError } from "../../../core/errors.ts";
import type { LimitCause, SandboxEnd } from "../../sandbox.ts";
import type { FieldList, Frame } from "./wire.ts";

export const REQUEST = {
  create: 1,
  kill: 2,
  seal: 3,
  renew: 4,
  freeze: 5,
  thaw: 6,
  metrics: 7,
  workspaceOpen: 8,
  workspaceRelease: 9,
  list: 10,
  detach: 11,
  copy: 12,
  rebase: 13,
  flatten: 14,
  dump: 15,
  note: 16,
  recall: 17,
  keep: 18,
  stop: 19,
} as const;
export const EVENT = { hello: 64, busy: 65, ended: 66, blank: 67 } as const;
/** Tags of `busy`: the holder, and how long its machines wait for another controller, where it has none. */
export const BUSY = { pid: 1, leftMs: 2 } as const;
export const ID_TAG = 1;
export const TTL_TAG = 2;
export const AS_TAG = 3;
export const FORCE_TAG = 4;
export const COUNT_TAG = 5;
export const LAYER_TAG = 6;
export const DIRECTORY_TAG = 7;
export const NOTE_TAG = 8;

const CREATE = {
  id: 1, profile: 2, layer: 3, part: 4, partLayer: 5, workspace: 6, cpuMilli: 7, memoryBytes: 8, diskBytes: 9, pids: 10, network: 11, service: 12, hostname: 13, ttlMs: 14, machineId: 15, ownIdentity: 16, processes: 17, lifeline: 18, listener: 19,
} as const;

/** `checkpointable`: as `namespaces`, and its processes can be kept. */
export type Profile = "userns" | "namespaces" | "checkpointable";
const PROFILES: readonly Profile[] = ["userns", "namespaces", "checkpointable"];

/** Processes that were kept: where, and the numbers that init's lifeline and listener had then. */
export interface KeptProcesses {
  readonly directory: string;
  readonly lifeline: number;
  readonly listener: number;
}

export interface CreateMachine {
  /** One DNS label. */
  readonly id: string;
  /** Default `userns`. */
  readonly profile?: Profile;
  /** Absolute host paths of directories, topmost first; at least one. */
  readonly layers: readonly string[];
  readonly parts?: readonly { readonly target: string; readonly layers: readonly string[] }[];
  /** Id of a sealed workspace that lies over the layers. */
  readonly workspace?: string;
  readonly cpus?: number;
  readonly memoryBytes?: number;
  readonly diskBytes?: number;
  readonly pids?: number;
  readonly network?: "none" | "public";
  readonly services?: readonly { readonly port: number; readonly target: string }[];
  readonly hostname?: string;
  /** 32 hexadecimal digits for /etc/machine-id where the layers have none. */
  readonly machineId?: string;
  /** Machine id and host name also in place of the files that the layers have. */
  readonly ownIdentity?: boolean;
  /** These go on in it. Only for the profile `checkpointable`. */
  readonly processes?: KeptProcesses;
  /** Absent: no lease, the machine lives until it is killed or the controller is gone. */
  readonly ttlMs?: number;
}

export function createFields(request: CreateMachine): FieldList {
  return [
    [CREATE.id, request.id],
    [CREATE.profile, PROFILES.indexOf(request.profile ?? "userns")],
    [CREATE.layer, request.layers],
    // A part's layers belong to the part before them.
    ...(request.parts ?? []).flatMap((part): FieldList => [
      [CREATE.part, part.target],
      [CREATE.partLayer, part.layers],
    ]),
    [CREATE.workspace, request.workspace],
    [CREATE.cpuMilli, request.cpus === undefined ? undefined : Math.max(1, Math.round(request.cpus * 1000))],
    [CREATE.memoryBytes, request.memoryBytes],
    [CREATE.diskBytes, request.diskBytes],
    [CREATE.pids, request.pids],
    [CREATE.network, request.network === "public" ? 1 : 0],
    [CREATE.service, (request.services ?? []).map(serviceBytes)],
    [CREATE.hostname, request.hostname],
    [CREATE.ttlMs, request.ttlMs],
    [CREATE.machineId, request.machineId],
    [CREATE.ownIdentity, request.ownIdentity === true ? 1 : undefined],
    [CREATE.processes, request.processes?.directory],
    [CREATE.lifeline, request.processes?.lifeline],
    [CREATE.listener, request.processes?.listener],
  ];
}

function serviceBytes(service: { readonly port: number; readonly target: string }): Uint8Array {
  const port = Buffer.alloc(2);
  port.writeUInt16LE(service.port);
  return Buffer.concat([port, Buffer.from(service.target)]);
}

export interface CreatedMachine {
  /** Process id of init, as the spawner sees it. */
  readonly pid: number;
  /** The host's id of the machine's root, where it has a range of its own; else 0. */
  readonly uidBase: number;
  /** The blank that it was made of. */
  readonly blank: string;
}

export function readCreated(frame: Frame): CreatedMachine {
  return { pid: frame.number(1) ?? 0, uidBase: frame.number(2) ?? 0, blank: frame.text(3) ?? "" };
}

/** Name of a machine that was made beforehand. */
export function readBlank(frame: Frame): string {
  return frame.text(1) ?? "";
}

export interface RecalledMachine {
  readonly note: string | null;
  /** Of its lease; null: it has none. */
  readonly leftMs: number | null;
  readonly frozen: boolean;
}

export function readRecalled(frame: Frame): RecalledMachine {
  return { note: frame.text(1), leftMs: frame.number(2), frozen: frame.number(3) === 1 };
}

export interface MachineMetrics {
  readonly cpuMs: number | null;
  /** What processes hold; files are under `diskBytes`. */
  readonly memoryBytes: number | null;
  /** Most that was ever in use, files on the scratch included. */
  readonly memoryPeakBytes: number | null;
  readonly diskBytes: number | null;
  /** Init included. */
  readonly pids: number | null;
  readonly limits: Readonly<Record<LimitCause, number>>;
}

export function readMetrics(frame: Frame): MachineMetrics {
  const cpuUs = frame.number(1);
  return {
    cpuMs: cpuUs === null ? null : cpuUs / 1000,
    memoryBytes: frame.number(2),
    memoryPeakBytes: frame.number(3),
    diskBytes: frame.number(4),
    pids: frame.number(5),
    limits: { oom_killed: frame.number(6) ?? 0, pids: frame.number(7) ?? 0, disk_full: frame.number(8) ?? 0 },
  };
}

export interface SpawnerHello {
  readonly epoch: number;
  readonly pid: number;
  /** Root of the host's user namespace: every machine has a range of ids of its own. */
  readonly privileged: boolean;
  readonly users: boolean;
  readonly userns: boolean;
  readonly enforced: { readonly cpu: boolean; readonly memory: boolean; readonly pids: boolean };
  readonly freeze: boolean;
  readonly publicNetwork: boolean;
  /** Processes of `checkpointable` machines can be kept. */
  readonly processes: boolean;
  /** What it was started with; null: none. */
  readonly version: string | null;
  /** Reasons by name (`userns`, `users`, `memory`, `pids`, `cpu`, `freeze`, `public`, `processes`), each with the setting or command that changes it. */
  readonly missing: Readonly<Record<string, string>>;
}

export function readHello(frame: Frame): SpawnerHello {
  const flag = (tag: number): boolean => frame.number(tag) === 1;
  const missing = frame.all(11).map((data) => {
    const text = data.toString("utf8");
    const at = text.indexOf(": ");
    return [text.slice(0, at), text.slice(at + 2)] as const;
  });
  return {
    epoch: frame.number(1) ?? 0,
    pid: frame.number(2) ?? 0,
    privileged: flag(3),
    users: flag(4),
    userns: flag(5),
    enforced: { memory: flag(6), pids: flag(7), cpu: flag(8) },
    freeze: flag(9),
    publicNetwork: flag(10),
    processes: flag(12),
    version: frame.text(13),
    missing: Object.fromEntries(missing),
  };
}

export interface MachineEnded extends SandboxEnd {
  readonly id: string;
}

const REASONS: readonly SandboxEnd["reason"][] = ["killed", "expired", "died", "lost", "sealed"];

export function readEnded(frame: Frame): MachineEnded {
  const reason = frame.text(2);
  return {
    id: frame.text(1) ?? "",
    reason: REASONS.find((known) => known === reason) ?? "lost",
    limits: { oom_killed: frame.number(3) ?? 0, pids: frame.number(4) ?? 0, disk_full: frame.number(5) ?? 0 },
    kept: frame.number(6) === 1,
  };
}

const CODES: Readonly<Record<string, ErrorCode>> = {
  gone: "sandbox_gone",
  EEXIST: "conflict",
  ENOENT: "not_found",
  EINVAL: "invalid_input",
  limit: "limit_exceeded",
  unsupported: "unsupported",
  no_idmap: "unsupported",
  EOPNOTSUPP: "unsupported",
  EAGAIN: "host_exhausted",
  ENOMEM: "host_exhausted",
  ENOSPC: "host_exhausted",
  EMFILE: "host_exhausted",
  ENFILE: "host_exhausted",
  EUSERS: "host_exhausted",
  EBUSY: "busy",
};

/** An error answer as an error of the catalogue; `facts.native` keeps the spawner's own code. */
export function spawnerError(error: { readonly code: string; readonly message: string }): MwError {
  const fix = error.code === "no_idmap" ? { fix: "Keep images on ext4, xfs, btrfs or tmpfs, or ask for the namespaces profile." } : {};
  return new MwError(CODES[error.code] ?? "sandbox_failed", `Making or changing a machine failed: ${error.message}`, { facts: { native: error.code }, ...fix });
}
