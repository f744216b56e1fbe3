/** Watches that are asked for their events from time to time, for clients that keep no stream open. */
import type { FileEvent, Sandbox } from "../../../sandbox/sandbox.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { ConnectFailure, connectFailure } from "./connect-protocol.ts";
import type { EntryInfo } from "./entry-info.ts";

/** How long the first event is waited for, where there is none yet. */
const SETTLE_MS = 50;

export interface WatchEvent {
  readonly name: string;
  readonly type: "EVENT_TYPE_CREATE" | "EVENT_TYPE_WRITE" | "EVENT_TYPE_REMOVE" | "EVENT_TYPE_RENAME" | "EVENT_TYPE_CHMOD";
  readonly entry?: EntryInfo;
}

interface Watcher {
  readonly stop: AbortController;
  events: WatchEvent[];
  /** While an event is being described: who asks meanwhile is told of it. */
  describing: Promise<void>;
  failure: ConnectFailure | null;
}

export class Watchers {
  readonly #sandbox: Sandbox;
  readonly #runtime: Runtime;
  readonly #watchers = new Map<string, Watcher>();

  constructor(sandbox: Sandbox, runtime: Runtime) {
    this.#sandbox = sandbox;
    this.#runtime = runtime;
  }

  /** Resolves once nothing is missed any more. */
  async create(path: string, recursive: boolean, describe: (event: FileEvent) => Promise<WatchEvent>): Promise<string> {
    if (this.#watchers.size >= LIMITS.watchersPerSandbox) throw new ConnectFailure("resource_exhausted", `a sandbox has at most ${LIMITS.watchersPerSandbox} watchers`);
    const id = `w${Buffer.from(this.#runtime.randomBytes(12)).toString("hex")}`;
    const watcher: Watcher = { stop: new AbortController(), events: [], describing: Promise.resolve(), failure: null };
    this.#watchers.set(id, watcher);
    try {
      await new Promise<void>((resolve, reject) => {
        this.#follow(watcher, this.#sandbox.files.watch(path, { recursive, signal: watcher.stop.signal, onReady: resolve }), describe).then(resolve, reject);
      });
    } catch (error) {
      this.#watchers.delete(id);
      throw error;
    }
    return id;
  }

  async take(id: string): Promise<readonly WatchEvent[]> {
    const watcher = this.#find(id);
    // What the client did just before it asks is on its way.
    if (watcher.events.length === 0) await this.#runtime.sleep(SETTLE_MS);
    await watcher.describing.catch(() => undefined);
    if (watcher.failure !== null) throw watcher.failure;
    return watcher.events.splice(0);
  }

  remove(id: string): void {
    this.#find(id).stop.abort("removed");
    this.#watchers.delete(id);
  }

  async #follow(watcher: Watcher, events: AsyncIterable<FileEvent>, describe: (event: FileEvent) => Promise<WatchEvent>): Promise<void> {
    try {
      for await (const event of events) {
        watcher.describing = describe(event).then((described) => void watcher.events.push(described));
        await watcher.describing;
        if (watcher.events.length > LIMITS.watchEventsKept) throw new ConnectFailure("resource_exhausted", "more happened than is kept: look again");
      }
    } catch (error) {
      watcher.failure = connectFailure(error);
      if (!watcher.stop.signal.aborted) throw error;
    }
  }

  #find(id: string): Watcher {
    const watcher = this.#watchers.get(id);
    if (watcher === undefined) throw new ConnectFailure("not_found", `there is no watcher ${JSON.stringify(id.slice(0, 100))}`);
    return watcher;
  }
}
