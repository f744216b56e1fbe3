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
} as const;
export const EVENT = { hello: 64, busy: 65, ended: 66, blank: 67 } as const;
export const ID_TAG = 1;
export const TTL_TAG = 2;

const CREATE = {
  id: 1, profile: 2, layer: 3, part: 4, partLayer: 5, workspace: 6, cpuMilli: 7, memoryBytes: 8, diskBytes: 9, pids: 10, network: 11, service: 12, hostname: 13, ttlMs: 14,
} as const;

export interface CreateMachine {
  /** One DNS label. */
  readonly id: string;
  /** Default `userns`. */
  readonly profile?: "userns" | "namespaces";
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
  /** Absent: no lease, the machine lives until it is killed or the controller is gone. */
  readonly ttlMs?: number;
}

export function createFields(request: CreateMachine): FieldList {
  return [
    [CREATE.id, request.id],
    [CREATE.profile, request.profile === "namespaces" ? 1 : 0],
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
  /** Reasons by name (`userns`, `users`, `memory`, `pids`, `cpu`, `freeze`, `public`), each with the setting or command that changes it. */
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
};

/** An error answer as an error of the catalogue; `facts.native` keeps the spawner's own code. */
export function spawnerError(error: { readonly code: string; readonly message: string }): MwError {
  const fix = error.code === "no_idmap" ? { fix: "Keep images on ext4, xfs, btrfs or tmpfs, or ask for the namespaces profile." } : {};
  return new MwError(CODES[error.code] ?? "sandbox_failed", `Making or changing a machine failed: ${error.message}`, { facts: { native: error.code }, ...fix });
}
