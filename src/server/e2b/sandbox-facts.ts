/** What the facade keeps beside each sandbox, and how the protocol describes one. */
import { randomBytes } from "node:crypto";
import { availableParallelism, totalmem } from "node:os";
import { ALL_TRAFFIC } from "./egress-rules.ts";
import type { SandboxEntry } from "../sandboxes/sandbox-entry.ts";

/** Of the guest agent whose behaviour this is: clients switch features by it. */
export const ENVD_VERSION = "0.6.4";
export const ENVD_PORT = 49_983;

const MiB = 1 << 20;

export interface Secrets {
  /** For the guest agent. */
  readonly access: string;
  /** For ports that are not public; null where they are. */
  readonly traffic: string | null;
}

/** Sandboxes that were made through the native interface get tokens when the facade first names them: nobody has agreed that their ports are public. */
export class SandboxSecrets {
  readonly #later = new WeakMap<SandboxEntry, Secrets>();

  of(entry: SandboxEntry): Secrets {
    const kept = entry.facts.request.extra;
    if (kept?.["access"] !== undefined) return { access: kept["access"], traffic: kept["traffic"] ?? null };
    const known = this.#later.get(entry);
    if (known !== undefined) return known;
    const made = { access: newToken(), traffic: newToken() };
    this.#later.set(entry, made);
    return made;
  }
}

export function newToken(): string {
  return randomBytes(20).toString("hex");
}

export interface SandboxDocument {
  readonly templateID: string;
  readonly alias?: string;
  readonly sandboxID: string;
  readonly clientID: string;
  readonly envdVersion: string;
  readonly envdAccessToken: string;
  readonly trafficAccessToken?: string;
  readonly domain: string | null;
}

export function sandboxDocument(entry: SandboxEntry, { access, traffic }: Secrets, domain: string): SandboxDocument {
  const { template } = entry.facts.request;
  return { templateID: template, alias: template, sandboxID: entry.id, clientID: "manyworlds", envdVersion: ENVD_VERSION, envdAccessToken: access, ...(traffic === null ? {} : { trafficAccessToken: traffic }), domain };
}

export function listedDocument(entry: SandboxEntry): Readonly<Record<string, unknown>> {
  const { request } = entry.facts;
  return {
    templateID: request.template,
    alias: request.template,
    sandboxID: entry.id,
    clientID: "manyworlds",
    envdVersion: ENVD_VERSION,
    startedAt: new Date(entry.startedAt).toISOString(),
    // A paused one has no end; the protocol wants a time.
    endAt: new Date(Number.isFinite(entry.endAt) ? entry.endAt : entry.startedAt + 24 * 3_600_000).toISOString(),
    cpuCount: Math.max(1, Math.round(request.cpus ?? availableParallelism())),
    memoryMB: Math.round((request.memoryBytes ?? totalmem()) / MiB),
    diskSizeMB: Math.round((request.diskBytes ?? request.memoryBytes ?? totalmem() / 2) / MiB),
    state: entry.state,
    metadata: { ...request.metadata },
    volumeMounts: [],
  };
}

function rulesOf({ facts, sandbox }: SandboxEntry): { readonly allowOut: readonly string[]; readonly denyOut: readonly string[] } {
  if (facts.request.network !== "allowlist") return { allowOut: [], denyOut: [] };
  return { allowOut: sandbox?.egress?.report().allow ?? facts.request.allow ?? [], denyOut: [ALL_TRAFFIC] };
}

export function detailDocument(entry: SandboxEntry, secrets: Secrets, domain: string): Readonly<Record<string, unknown>> {
  const { request } = entry.facts;
  return {
    ...listedDocument(entry),
    ...sandboxDocument(entry, secrets, domain),
    allowInternetAccess: request.network === "public",
    network: { allowPublicTraffic: secrets.traffic === null, ...rulesOf(entry) },
    lifecycle: { onTimeout: request.onTimeout, autoResume: request.autoResume },
  };
}
