/**
 * The servers of a policy: each with its connections, kept while the policy names it or a call still uses it. A session stays with one of them, whose cache has its conversation;
 * one that fails is left alone for a while, and its sessions go to the others.
 */
import { createHash } from "node:crypto";
import type { Runtime } from "../../../core/runtime.ts";
import { specOf, type PolicyEndpoint } from "../../../policy/register.ts";

const FIRST_REST_MS = 500;
const LONGEST_REST_MS = 30_000;

export interface EndpointUse<Server> {
  readonly key: string;
  readonly server: Server;
  /** It answered: whatever failed there before is over. */
  works(): void;
  /** It did not: others are asked for a while. */
  fails(): void;
  /** Once, when the call has ended there. */
  release(): void;
}

interface Entry<Server> {
  readonly server: Server;
  uses: number;
  failures: number;
  /** Monotonic. */
  restsUntil: number;
}

export class Endpoints<Server extends { close(): Promise<void> }> {
  readonly #open: (endpoint: PolicyEndpoint) => Server;
  readonly #runtime: Runtime;
  readonly #entries = new Map<string, Entry<Server>>();
  #named: readonly PolicyEndpoint[] = [];

  constructor(open: (endpoint: PolicyEndpoint) => Server, runtime: Runtime) {
    this.#open = open;
    this.#runtime = runtime;
  }

  /** Which there are from now on. */
  name(endpoints: readonly PolicyEndpoint[]): void {
    this.#named = endpoints;
    for (const key of this.#entries.keys()) this.#closeUnused(key);
  }

  /** The one for a session: of those that do not rest the same each time, as far as they stay the same. When all rest, the one that has rested longest. */
  use(session: string): EndpointUse<Server> {
    const now = this.#runtime.monotonic();
    const all = this.#named.map((endpoint) => ({ endpoint, key: specOf(endpoint) }));
    const awake = all.filter(({ key }) => (this.#entries.get(key)?.restsUntil ?? 0) <= now);
    const candidates = awake.length > 0 ? awake : all.toSorted((a, b) => (this.#entries.get(a.key)?.restsUntil ?? 0) - (this.#entries.get(b.key)?.restsUntil ?? 0)).slice(0, 1);
    // The highest of numbers drawn from session and endpoint: one more or one less endpoint moves only its own sessions.
    const chosen = candidates.toSorted((a, b) => weight(session, b.key) - weight(session, a.key))[0];
    if (chosen === undefined) throw new Error("a policy without endpoints");
    return this.#use(chosen.endpoint, chosen.key);
  }

  async close(): Promise<void> {
    this.#named = [];
    await Promise.all([...this.#entries.values()].map(({ server }) => server.close()));
    this.#entries.clear();
  }

  #use(endpoint: PolicyEndpoint, key: string): EndpointUse<Server> {
    const entry = this.#entries.get(key) ?? { server: this.#open(endpoint), uses: 0, failures: 0, restsUntil: 0 };
    this.#entries.set(key, entry);
    entry.uses++;
    let released = false;
    return {
      key,
      server: entry.server,
      works: () => {
        entry.failures = 0;
        entry.restsUntil = 0;
      },
      fails: () => {
        entry.restsUntil = this.#runtime.monotonic() + Math.min(FIRST_REST_MS * 2 ** entry.failures, LONGEST_REST_MS);
        entry.failures++;
      },
      release: () => {
        if (released) return;
        released = true;
        entry.uses--;
        this.#closeUnused(key);
      },
    };
  }

  #closeUnused(key: string): void {
    const entry = this.#entries.get(key);
    if (entry === undefined || entry.uses > 0 || this.#named.some((endpoint) => specOf(endpoint) === key)) return;
    this.#entries.delete(key);
    void entry.server.close().catch(() => undefined);
  }
}

function weight(session: string, key: string): number {
  return createHash("sha256").update(`${session}\0${key}`).digest().readUInt32BE(0);
}
