/** What a machine is asked for with, and what lasts of it beyond the controller, as a sandbox's request says. */
import { LIMITS } from "../../core/limits.ts";
import type { RootFilesystem, SandboxSpec, Snapshot } from "../../sandbox/sandbox.ts";
import type { SandboxRecord } from "./durable-records.ts";
import type { SandboxEntry, SandboxFacts, SandboxRequest } from "./sandbox-entry.ts";

export function specOf(owner: string, request: SandboxRequest, root: RootFilesystem, snapshot: Snapshot | null): SandboxSpec {
  const { cpus, memoryBytes, diskBytes, pids, network, allow, env, user, workdir, hostname, services, checkpointable, snapshotFilesOnly } = request;
  const given = { cpus, memoryBytes, diskBytes, network, allow, env, user, workdir, hostname, services, checkpointable, ...(snapshot === null ? {} : { snapshot: snapshot.id, snapshotFilesOnly }) };
  return { root, labels: { owner, template: request.template }, pids: pids ?? LIMITS.sandboxPids, ...withoutUndefined(given) };
}

/** Its list of hosts may have changed since it was made, and is to be the same after a restart. */
function factsNow({ facts, sandbox }: SandboxEntry): SandboxFacts {
  const allow = sandbox?.egress?.report().allow;
  return allow === undefined ? facts : { ...facts, request: { ...facts.request, allow } };
}

export function recordOf(entry: SandboxEntry, now: number): SandboxRecord {
  const { startedAt, endAt, ttlMs, key } = entry;
  return { facts: factsNow(entry), pausedAt: now, running: { startedAt, endAt, ttlMs, ...(key === undefined ? {} : { key }) } };
}

function withoutUndefined<T extends object>(value: T): { [Key in keyof T]?: Exclude<T[Key], undefined> } {
  // What is left has no undefined values.
  return Object.fromEntries(Object.entries(value).filter(([, inner]) => inner !== undefined)) as { [Key in keyof T]?: Exclude<T[Key], undefined> };
}
