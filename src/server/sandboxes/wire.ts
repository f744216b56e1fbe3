/** The native sandbox interface on the wire, as schemas: routes, OpenAPI document and clients are made from these. Times are milliseconds; `*_at` since the epoch. */
import { z } from "zod";
import { LIMITS } from "../../core/limits.ts";
import type { EgressReport, ExecExit, FileStat, NetworkMode, SandboxMetrics, Snapshot } from "../../sandbox/sandbox.ts";
import type { SandboxEntry } from "./sandbox-entry.ts";

const count = z.int().nonnegative();
const ttl = z.number().min(LIMITS.leaseMinMs).max(LIMITS.leaseMaxMs);
const path = z.string().min(1).max(LIMITS.treePathBytes);
const environment = z.record(z.string(), z.string());
export const allowedHosts = z.array(z.string().min(1).max(300)).max(LIMITS.allowedHosts);

export const sandboxId = z.string().max(64);
export const execId = z.string().regex(/^[A-Za-z0-9._-]{1,64}$/, "1 to 64 of A-Z a-z 0-9 . _ -");
export const sandboxParams = z.strictObject({ id: sandboxId });
export const execParams = z.strictObject({ id: sandboxId, exec: execId });

export const createRequest = z
  .strictObject({
    /** `host`, a local name, or anything that `mw image` can make. Absent, with `snapshot` absent too: `host`. */
    image: z.string().min(1).max(4096).exactOptional(),
    /** Id or name of a snapshot of the same owner. */
    snapshot: z.string().min(1).max(128).exactOptional(),
    /** Start from the snapshot's files alone, though it holds processes. */
    snapshot_files_only: z.boolean().default(false),
    /** Fractions are allowed. Absent: no limit. */
    cpus: z.number().positive().exactOptional(),
    memory_bytes: count.exactOptional(),
    disk_bytes: count.exactOptional(),
    pids: count.default(LIMITS.sandboxPids),
    network: z.enum(["none", "allowlist", "public"]).default("none"),
    /** Of the network `allowlist`: hosts that can be reached over HTTP and HTTPS: `example.com`, `*.example.com`, `example.com:8443`, addresses and ranges. */
    allow: allowedHosts.exactOptional(),
    env: environment.default({}),
    user: z.string().exactOptional(),
    workdir: z.string().exactOptional(),
    hostname: z.string().exactOptional(),
    /** So that its memory can be kept in snapshots and pauses; weaker isolation. */
    checkpointable: z.boolean().default(false),
    metadata: environment.default({}),
    /** The lease: the sandbox ends so long after its creation, or after the last renewal. */
    ttl_ms: ttl.default(300_000),
    on_timeout: z.enum(["kill", "pause"]).default("kill"),
    /** Of that pause: keep the processes too. Needs `checkpointable`. */
    pause_memory: z.boolean().default(false),
    /** Requests to the paused sandbox resume it. */
    auto_resume: z.boolean().default(false),
  })
  .refine((request) => request.image === undefined || request.snapshot === undefined, { path: ["snapshot"], message: "a sandbox starts from an image or a snapshot, not both" });

export const sandboxSchema = z.strictObject({
  id: z.string(),
  state: z.enum(["running", "paused"]),
  /** What it was asked to start from. */
  image: z.string(),
  image_digest: z.string(),
  metadata: environment,
  created_at: z.number(),
  started_at: z.number(),
  /** When its lease ends; null while it is paused, and for the machines of rollouts. */
  ends_at: z.number().nullable(),
  on_timeout: z.enum(["kill", "pause"]),
  auto_resume: z.boolean(),
  cpus: z.number().nullable(),
  memory_bytes: z.number().nullable(),
  disk_bytes: z.number().nullable(),
  network: z.enum(["none", "allowlist", "public"]),
  /** The list as it is now; null for other networks than `allowlist`. */
  allow: z.array(z.string()).nullable(),
  isolation: z.strictObject({ backend: z.string(), profile: z.string() }).nullable(),
});

/** What it reaches. `egress` is null for other networks than `allowlist`. */
export const networkSchema = z.strictObject({
  network: z.enum(["none", "allowlist", "public"]),
  egress: z
    .strictObject({
      allow: z.array(z.string()),
      connections: count,
      sent_bytes: count,
      received_bytes: count,
      refused: count,
      /** The first destinations that were refused; those beyond are in `refused` alone. */
      refusals: z.array(z.strictObject({ reason: z.string(), host: z.string(), port: z.number().nullable(), detail: z.string(), count, first_at: z.number(), last_at: z.number() })),
    })
    .nullable(),
});

export const listQuery = z.looseObject({ state: z.enum(["running", "paused"]).exactOptional(), limit: z.coerce.number().int().min(1).max(1000).default(100), cursor: z.string().max(100).exactOptional() });
export const sandboxList = z.strictObject({ sandboxes: z.array(sandboxSchema), next: z.string().nullable() });
export const renewRequest = z.strictObject({ ttl_ms: ttl });
export const pauseRequest = z.strictObject({ memory: z.boolean().default(false) });
export const resumeRequest = z.strictObject({ ttl_ms: ttl.exactOptional() });

export const snapshotRequest = z.strictObject({ name: z.string().regex(/^[A-Za-z0-9._-]{1,128}$/).exactOptional(), memory: z.boolean().default(false) });
export const snapshotSchema = z.strictObject({
  id: z.string(),
  name: z.string().nullable(),
  created_at: z.number(),
  sandbox: z.string(),
  image_digest: z.string(),
  memory: z.boolean(),
  bytes: count,
  layers: count,
});
export const snapshotTaken = snapshotSchema.extend({ method: z.enum(["switched", "copied", "dumped"]), stopped_ms: z.number() });
export const snapshotParams = z.strictObject({ reference: z.string().max(128) });
export const snapshotList = z.strictObject({ snapshots: z.array(snapshotSchema) });

export const forkRequest = z.strictObject({ count: count.min(1).max(LIMITS.forkChildren).default(1), memory: z.boolean().default(false), ttl_ms: ttl.exactOptional() });
export const forkResult = z.strictObject({ children: z.array(z.union([z.strictObject({ sandbox: sandboxSchema }), z.strictObject({ error: z.strictObject({ code: z.string(), detail: z.string() }) })])) });

export const metricsSchema = z.strictObject({
  cpu_ms: z.number().nullable(),
  memory_bytes: z.number().nullable(),
  memory_peak_bytes: z.number().nullable(),
  disk_bytes: z.number().nullable(),
  pids: z.number().nullable(),
  limits: z.strictObject({ oom_killed: count, pids: count, disk_full: count }),
});

const command = {
  /** argv, or a line for `/bin/sh -c`. */
  command: z.union([z.string().min(1), z.array(z.string()).min(1)]),
  cwd: path.exactOptional(),
  env: environment.default({}),
  user: z.string().exactOptional(),
  /** The whole process tree is killed then. */
  timeout_ms: z.number().positive().exactOptional(),
  /** Of each stream; what is more is counted and dropped. */
  max_output_bytes: count.exactOptional(),
  stdin: z.string().exactOptional(),
  stdin_base64: z.base64().exactOptional(),
};
export const runRequest = z.strictObject({ ...command, /** How `stdout` and `stderr` come: `utf8` replaces what is none. */ encoding: z.enum(["utf8", "base64"]).default("utf8") });
export const execRequest = z.strictObject({ ...command, /** Asking again with the same id starts nothing. */ id: execId.exactOptional(), open_stdin: z.boolean().default(false), pty: z.strictObject({ columns: count.min(1).max(65_535), rows: count.min(1).max(65_535) }).exactOptional() });
export const execStarted = z.strictObject({ id: z.string(), pid: z.number().nullable() });
export const exitSchema = z.strictObject({
  code: z.int(),
  signal: z.string().nullable(),
  ended: z.enum(["exited", "timed_out", "killed", "lost"]),
  cause: z.enum(["oom_killed", "pids", "disk_full"]).nullable(),
  duration_ms: z.number(),
  stdout_bytes: count,
  stderr_bytes: count,
  truncated: z.boolean(),
});
export const runResult = exitSchema.extend({ stdout: z.string(), stderr: z.string() });
export const outputQuery = z.strictObject({ stdout: z.coerce.number().int().nonnegative().default(0), stderr: z.coerce.number().int().nonnegative().default(0) });
export const stdinQuery = z.strictObject({ close: z.stringbool().default(false) });
export const killRequest = z.strictObject({ signal: z.string().regex(/^SIG[A-Z0-9]{1,12}$/).default("SIGKILL") });
export const resizeRequest = z.strictObject({ columns: count.min(1).max(65_535), rows: count.min(1).max(65_535) });

export const pathQuery = z.strictObject({ path });
export const readQuery = z.strictObject({ path, user: z.string().exactOptional() });
export const writeQuery = z.strictObject({ path, mode: z.string().regex(/^[0-7]{1,4}$/).exactOptional(), owner: z.string().exactOptional() });
export const moveRequest = z.strictObject({ from: path, to: path });
export const mkdirRequest = z.strictObject({ path, mode: z.string().regex(/^[0-7]{1,4}$/).exactOptional(), owner: z.string().exactOptional() });
/** A name that is no UTF-8 has `path_base64` too. */
export const fileSchema = z.strictObject({
  path: z.string(),
  path_base64: z.string().exactOptional(),
  type: z.enum(["file", "directory", "symlink", "fifo", "socket", "device"]),
  mode: z.string(),
  uid: count,
  gid: count,
  size: count,
  modified_at: z.number(),
  target: z.string().nullable(),
});
export const fileList = z.strictObject({ entries: z.array(fileSchema) });
export const treeReport = z.strictObject({ entries: count, bytes: count, refused: z.array(z.strictObject({ path: z.string(), reason: z.string() })) });
export const treeQuery = z.strictObject({ path, owner: z.string().exactOptional() });

export function sandboxDocument(entry: SandboxEntry): z.infer<typeof sandboxSchema> {
  const { facts, sandbox } = entry;
  const { request } = facts;
  return {
    id: entry.id,
    state: entry.state,
    image: request.template,
    image_digest: facts.imageDigest,
    metadata: { ...request.metadata },
    created_at: facts.createdAt,
    started_at: entry.startedAt,
    ends_at: entry.state === "paused" || !Number.isFinite(entry.endAt) ? null : entry.endAt,
    on_timeout: request.onTimeout,
    auto_resume: request.autoResume,
    cpus: request.cpus ?? null,
    memory_bytes: request.memoryBytes ?? null,
    disk_bytes: request.diskBytes ?? null,
    network: networkOf(entry),
    allow: networkDocument(entry).egress?.allow ?? null,
    isolation: sandbox === null ? null : { backend: sandbox.isolation.backend, profile: sandbox.isolation.profile },
  };
}

export function networkDocument(entry: SandboxEntry): z.infer<typeof networkSchema> {
  const network = networkOf(entry);
  if (network !== "allowlist") return { network, egress: null };
  // Without a machine it has reached nothing yet.
  const { allow, connections, sentBytes, receivedBytes, refused, refusals } = entry.sandbox?.egress?.report() ?? { ...NOTHING_REACHED, allow: entry.facts.request.allow ?? [] };
  return {
    network,
    egress: { allow: [...allow], connections, sent_bytes: sentBytes, received_bytes: receivedBytes, refused, refusals: refusals.map(({ reason, host, port, message, count: times, firstAt, lastAt }) => ({ reason, host, port, detail: message, count: times, first_at: firstAt, last_at: lastAt })) },
  };
}

const NOTHING_REACHED: EgressReport = { allow: [], connections: 0, sentBytes: 0, receivedBytes: 0, refused: 0, refusals: [] };

function networkOf({ facts, spec }: SandboxEntry): NetworkMode {
  return spec?.network ?? facts.request.network ?? "none";
}

export function snapshotDocument({ id, name, createdAt, sandbox, imageDigest, memory, bytes, layers }: Snapshot): z.infer<typeof snapshotSchema> {
  return { id, name, created_at: createdAt, sandbox, image_digest: imageDigest, memory, bytes, layers };
}

export function exitDocument({ code, signal, ended, cause, durationMs, stdoutBytes, stderrBytes, truncated }: ExecExit): z.infer<typeof exitSchema> {
  return { code, signal, ended, cause, duration_ms: durationMs, stdout_bytes: stdoutBytes, stderr_bytes: stderrBytes, truncated };
}

export function metricsDocument({ cpuMs, memoryBytes, memoryPeakBytes, diskBytes, pids, limits }: SandboxMetrics): z.infer<typeof metricsSchema> {
  return { cpu_ms: cpuMs, memory_bytes: memoryBytes, memory_peak_bytes: memoryPeakBytes, disk_bytes: diskBytes, pids, limits: { ...limits } };
}

export function fileDocument({ path: bytes, type, mode, uid, gid, size, mtimeNs, target }: FileStat): z.infer<typeof fileSchema> {
  const name = Buffer.from(bytes);
  const readable = name.toString("utf8");
  return {
    path: readable,
    ...(Buffer.from(readable).equals(name) ? {} : { path_base64: name.toString("base64") }),
    type,
    mode: mode.toString(8).padStart(4, "0"),
    uid,
    gid,
    size,
    modified_at: Number(mtimeNs / 1_000_000n),
    target: target === null ? null : Buffer.from(target).toString("utf8"),
  };
}
