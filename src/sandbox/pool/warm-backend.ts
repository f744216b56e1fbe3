/**
 * A backend that keeps sandboxes ready, of the kinds that are asked for: same image, layers, limits, network, user. What an owner adds (labels, environment) is given to a ready one
 * when it is taken. A ready sandbox has run nothing, is given once, and is in no list.
 *
 * They are made one after the other in moments without demand, in which nobody waits for the processors; kinds that nobody asks for any more are given up, and all of them while the
 * host is short of memory.
 */
import { lstatSync } from "node:fs";
import { messageOf } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import { checkSpec } from "../check-spec.ts";
import type { PreparedSandbox, Sandbox, SandboxBackend, SandboxSpec } from "../sandbox.ts";
import { Demand } from "./demand.ts";
import { underMemoryPressure } from "./memory-pressure.ts";

export interface WarmOptions {
  readonly runtime: Runtime;
  /** Sandboxes ready at once, of all kinds together. */
  readonly most: number;
  /** One line for whoever watches. */
  readonly log: (line: string) => void;
  readonly pressure?: () => Promise<boolean>;
}

export interface WarmCounts {
  /** Creations that were met by a ready one, and that were not. */
  taken: number;
  missed: number;
  ready: number;
}

export interface WarmBackend extends SandboxBackend {
  readonly warm: Readonly<WarmCounts>;
}

interface Kind {
  readonly spec: SandboxSpec;
  readonly demand: Demand;
  readonly ready: Ready[];
  failures: number;
}

interface Ready {
  readonly sandbox: PreparedSandbox;
  /** What the image's directories were when it was made: one that was removed meanwhile and made again is another. */
  readonly layers: string;
}

/** A sandbox is not made beforehand so soon after somebody asked for one. */
const QUIET_MS = 20;
/** Between looks at what is asked for and how the host is. */
const LOOK_MS = 1_000;
const KINDS_KEPT = 256;
/** What making one takes, before it is known. */
const FIRST_LEAD_MS = 10;

/** Nothing is kept where `backend` makes nothing beforehand. */
export function withWarmSandboxes(backend: SandboxBackend, options: WarmOptions): WarmBackend {
  return new Warm(backend, options);
}

class Warm implements WarmBackend {
  readonly warm: WarmCounts = { taken: 0, missed: 0, ready: 0 };
  readonly #inner: SandboxBackend;
  readonly #options: WarmOptions;
  /** By what is asked for; the one that was asked for last is last. */
  readonly #kinds = new Map<string, Kind>();
  readonly #closing = new AbortController();
  #leadMs = FIRST_LEAD_MS;
  #lastDemand = Number.NEGATIVE_INFINITY;
  #looking: Promise<void> | null = null;
  #wake: () => void = () => undefined;

  constructor(inner: SandboxBackend, options: WarmOptions) {
    this.#inner = inner;
    this.#options = options;
  }

  get name(): string {
    return this.#inner.name;
  }

  get capabilities(): SandboxBackend["capabilities"] {
    return this.#inner.capabilities;
  }

  get snapshots(): SandboxBackend["snapshots"] {
    return this.#inner.snapshots;
  }

  list(): ReturnType<SandboxBackend["list"]> {
    return this.#inner.list();
  }

  get(id: Sandbox["id"]): Sandbox | null {
    return this.#inner.get(id);
  }

  get sealed(): NonNullable<SandboxBackend["sealed"]> {
    return this.#inner.sealed ?? new Map();
  }

  adoptPaused(id: Sandbox["id"], spec: SandboxSpec): Promise<Sandbox> {
    return this.#inner.adoptPaused(id, spec);
  }

  async create(spec: SandboxSpec): Promise<Sandbox> {
    const { labels, env, ...kept } = spec;
    if (this.#closing.signal.aborted || !canBePrepared(this.#inner, spec)) return this.#inner.create(spec);
    checkSpec(spec, this.capabilities);
    const kind = this.#kindOf(kept);
    kind.demand.arrived(this.#now());
    this.#lastDemand = this.#now();
    this.#wake();
    const own = { ...(labels === undefined ? {} : { labels }), ...(env === undefined ? {} : { env }) };
    const sandbox = await this.#take(kind, own);
    this.#looking ??= this.#look();
    if (sandbox !== null) return sandbox;
    this.warm.missed++;
    return this.#inner.create(spec);
  }

  async close(): Promise<void> {
    this.#closing.abort("closing");
    await this.#looking;
    // What is ready ends with everything else.
    await this.#inner.close();
  }

  async #take(kind: Kind, own: Parameters<PreparedSandbox["take"]>[0]): Promise<Sandbox | null> {
    for (let ready = kind.ready.shift(); ready !== undefined; ready = kind.ready.shift()) {
      this.warm.ready--;
      if (ready.layers !== layersNow(kind.spec)) {
        this.#discard(ready);
        continue;
      }
      const sandbox = await ready.sandbox.take(own);
      if (sandbox === null) continue;
      this.warm.taken++;
      return sandbox;
    }
    return null;
  }

  #kindOf(spec: SandboxSpec): Kind {
    const name = JSON.stringify(spec);
    const kind = this.#kinds.get(name) ?? { spec, demand: new Demand(), ready: [], failures: 0 };
    this.#kinds.delete(name);
    this.#kinds.set(name, kind);
    if (this.#kinds.size > KINDS_KEPT) {
      const [oldest] = this.#kinds.keys();
      if (oldest !== undefined) this.#forget(oldest);
    }
    return kind;
  }

  #forget(name: string): void {
    const kind = this.#kinds.get(name);
    this.#kinds.delete(name);
    if (kind !== undefined) this.#shrink(kind, 0);
  }

  #shrink({ ready }: Kind, to: number): void {
    for (const one of ready.splice(to)) {
      this.warm.ready--;
      this.#discard(one);
    }
  }

  #discard({ sandbox }: Ready): void {
    sandbox.discard().catch((error: unknown) => this.#options.log(`giving up a sandbox made beforehand: ${messageOf(error)}`));
  }

  /** Until nothing is asked for any more. */
  async #look(): Promise<void> {
    const { signal } = this.#closing;
    const pressure = this.#options.pressure ?? underMemoryPressure;
    try {
      while (!signal.aborted && this.#kinds.size > 0) {
        const short = await pressure();
        const until = this.#now() + LOOK_MS;
        this.#giveUp(short);
        if (!short) await this.#fill(until);
        await this.#pause(Math.max(QUIET_MS, until - this.#now()), short);
      }
    } catch (error) {
      if (!signal.aborted) this.#options.log(`keeping sandboxes ready: ${messageOf(error)}`);
    } finally {
      this.#looking = null;
    }
  }

  /** One after the other, as long as one is missing. */
  async #fill(until: number): Promise<void> {
    while (!this.#closing.signal.aborted && this.#now() < until && (await this.#makeOne()));
  }

  #giveUp(short: boolean): void {
    const now = this.#now();
    for (const [name, kind] of this.#kinds) {
      if (kind.demand.idle(now)) this.#forget(name);
      else this.#shrink(kind, short ? 0 : this.#target(kind, now));
    }
  }

  #target({ demand, failures }: Kind, now: number): number {
    // One that cannot be made will not be made by trying on.
    return failures >= 3 ? 0 : Math.min(this.#options.most, demand.target(now, this.#leadMs + QUIET_MS));
  }

  /** False when nothing is missing, or there is no room. */
  async #makeOne(): Promise<boolean> {
    const now = this.#now();
    const kind = [...this.#kinds.values()].toReversed().find((one) => one.ready.length < this.#target(one, now));
    if (kind === undefined || (this.warm.ready >= this.#options.most && !this.#makeRoom(kind))) return false;
    const quiet = this.#lastDemand + QUIET_MS - now;
    if (quiet > 0) {
      await this.#options.runtime.sleep(quiet, this.#closing.signal);
      return true;
    }
    const layers = layersNow(kind.spec);
    try {
      const sandbox = await this.#inner.prepare?.(kind.spec);
      if (sandbox === undefined) return false;
      this.#leadMs += (this.#now() - now - this.#leadMs) / 8;
      kind.failures = 0;
      this.#keep(kind, { sandbox, layers });
    } catch (error) {
      kind.failures++;
      if (!this.#closing.signal.aborted) this.#options.log(`making a sandbox beforehand: ${messageOf(error)}`);
    }
    return true;
  }

  #keep(kind: Kind, ready: Ready): void {
    if (this.#closing.signal.aborted || ![...this.#kinds.values()].includes(kind)) {
      this.#discard(ready);
      return;
    }
    kind.ready.push(ready);
    this.warm.ready++;
    void ready.sandbox.ended.then(() => {
      const at = kind.ready.indexOf(ready);
      if (at < 0) return;
      kind.ready.splice(at, 1);
      this.warm.ready--;
    });
  }

  /** Takes one from the kind that was asked for longest ago, unless that is this one. */
  #makeRoom(kind: Kind): boolean {
    const other = [...this.#kinds.values()].find((one) => one !== kind && one.ready.length > 0);
    if (other === undefined || other.demand.last > kind.demand.last) return false;
    this.#shrink(other, other.ready.length - 1);
    return true;
  }

  /** Shorter when somebody asks, unless nothing may be made anyway. */
  async #pause(ms: number, short: boolean): Promise<void> {
    const asked = short ? [] : [new Promise<void>((resolve) => (this.#wake = resolve))];
    await Promise.race([...asked, this.#options.runtime.sleep(ms, this.#closing.signal)]);
  }

  #now(): number {
    return this.#options.runtime.monotonic();
  }
}

/** What stands on files of another sandbox, has a life of its own or is named by its maker is made for whoever asks. */
function canBePrepared(backend: SandboxBackend, { workspace, snapshot, ttlMs, key, network, hostname }: SandboxSpec): boolean {
  return backend.prepare !== undefined && network !== "allowlist" && [workspace, snapshot, ttlMs, key, hostname].every((part) => part === undefined);
}

function layersNow({ root, layers = [] }: SandboxSpec): string {
  const paths = [...layers.map(({ path }) => path), ...root.layers];
  return paths.map((path) => nameOf(path)).join(" ");
}

/** An inode's number alone may be given again. */
function nameOf(path: string): string {
  const stats = lstatSync(path, { throwIfNoEntry: false, bigint: true });
  return stats === undefined ? "" : `${stats.ino}:${stats.birthtimeNs}`;
}
