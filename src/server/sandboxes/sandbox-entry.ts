/** One sandbox as the server knows it: what it is to its owner, and the machine where it has one. */
import { createHash } from "node:crypto";
import type { SandboxId } from "../../core/ids.ts";
import type { Runtime } from "../../core/runtime.ts";
import { Semaphore } from "../../core/semaphore.ts";
import type { Place } from "./admission.ts";
import type { NetworkMode, Sandbox, SandboxSpec, Service } from "../../sandbox/sandbox.ts";

/** What becomes of a sandbox when its lease runs out. */
export type OnTimeout = "kill" | "pause";

export interface SandboxRequest {
  /** An image reference, or a snapshot's id or name; one of both. */
  readonly image?: string | undefined;
  readonly snapshot?: string | undefined;
  readonly snapshotFilesOnly?: boolean | undefined;
  /** As whoever made it named what it starts from. */
  readonly template: string;
  readonly cpus?: number | undefined;
  readonly memoryBytes?: number | undefined;
  readonly diskBytes?: number | undefined;
  readonly pids?: number | undefined;
  readonly network?: NetworkMode | undefined;
  /** Of the network `allowlist`. */
  readonly allow?: readonly string[] | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly user?: string | undefined;
  readonly workdir?: string | undefined;
  readonly hostname?: string | undefined;
  readonly services?: readonly Service[] | undefined;
  readonly checkpointable?: boolean | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly ttlMs: number;
  readonly onTimeout: OnTimeout;
  /** Of the pause at the end of its lease: keep the processes too. */
  readonly pauseMemory: boolean;
  /** Requests to a paused one resume it. */
  readonly autoResume: boolean;
  /** Facts of the protocol that it was made through, kept with it. */
  readonly extra?: Readonly<Record<string, string>> | undefined;
}

/** What lasts beyond the controller, for paused ones, and where machines do. */
export interface SandboxFacts {
  readonly id: SandboxId;
  readonly owner: string;
  readonly request: SandboxRequest;
  readonly imageDigest: string;
  readonly createdAt: number;
}

export class SandboxEntry {
  readonly facts: SandboxFacts;
  /** Null for one that is paused since an earlier controller. */
  sandbox: Sandbox | null;
  /** Of its present life, milliseconds since the epoch. */
  startedAt: number;
  endAt: number;
  /** Grows only through requests that say so. */
  ttlMs: number;
  /** When its lease ended and it could not be paused; null: it has not. */
  lateSince: number | null = null;
  gone = false;
  /** Of its creation, where it had one. */
  key: { readonly name: string; readonly digest: string } | undefined = undefined;
  /** Changes of its state follow each other. */
  readonly turn = new Semaphore(1);
  #place: Place | null = null;
  #watched: { readonly until: number; readonly stop: AbortController } | null = null;

  constructor(facts: SandboxFacts, sandbox: Sandbox | null, startedAt: number) {
    this.facts = facts;
    this.sandbox = sandbox;
    this.startedAt = startedAt;
    this.ttlMs = facts.request.ttlMs;
    this.endAt = startedAt + this.ttlMs;
  }

  /** Sorts by when each came to its owner, which never changes: a machine that was made beforehand has an older id, and a resumed one starts anew. */
  get listKey(): string {
    return `${String(Math.floor(this.facts.createdAt)).padStart(15, "0")}${this.facts.id}`;
  }

  /** Calls back once the lease has ended, however often it is made longer until then. */
  watch(runtime: Runtime, timeUp: () => void): void {
    if (this.#watched !== null && this.#watched.until <= this.endAt) return;
    this.stopWatch();
    const stop = new AbortController();
    const until = this.endAt;
    this.#watched = { until, stop };
    runtime.sleep(Math.max(0, until - runtime.now()), stop.signal).then(
      () => {
        this.#watched = null;
        if (runtime.now() < this.endAt) this.watch(runtime, timeUp);
        else timeUp();
      },
      () => undefined,
    );
  }

  stopWatch(): void {
    this.#watched?.stop.abort("stopped");
    this.#watched = null;
  }

  /** While its machine lives. One that is over already needs none. */
  takePlace(place: Place | undefined): void {
    if (this.gone) place?.release();
    else this.#place = place ?? null;
  }

  leavePlace(): void {
    this.#place?.release();
    this.#place = null;
  }

  get id(): SandboxId {
    return this.facts.id;
  }

  get state(): "running" | "paused" {
    return this.sandbox?.state ?? "paused";
  }

  get spec(): SandboxSpec | null {
    return this.sandbox?.spec ?? null;
  }
}

/** The same for requests that ask for the same, whatever order their fields have. */
export function requestDigest(request: unknown): string {
  return createHash("sha256").update(JSON.stringify(sorted(request))).digest("hex");
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([key, inner]) => [key, sorted(inner)]));
}
