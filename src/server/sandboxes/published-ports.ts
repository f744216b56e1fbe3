/** Ports of sandboxes on the server's own host, by sandbox and its port. They end with the sandbox and with the server. */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { publishPort, type PublishedPort, type PublishRule } from "../../sandbox/index.ts";
import type { SandboxManager } from "./manager.ts";
import type { SandboxEntry } from "./sandbox-entry.ts";

export class PublishedPorts {
  readonly #sandboxes: SandboxManager;
  readonly #ports = new WeakMap<SandboxEntry, Map<number, Promise<PublishedPort>>>();

  constructor(sandboxes: SandboxManager) {
    this.#sandboxes = sandboxes;
  }

  /** One that is published already stays as it is when it is asked for the same (`fresh` is false), else `conflict`. Connections to a paused sandbox resume it, where requests do. */
  async publish(entry: SandboxEntry, rule: PublishRule): Promise<{ readonly published: PublishedPort; readonly fresh: boolean }> {
    const { ended } = await this.#sandboxes.running(entry);
    const ports = this.#ports.get(entry) ?? new Map<number, Promise<PublishedPort>>();
    this.#ports.set(entry, ports);
    const known = ports.get(rule.port);
    if (known !== undefined) {
      const published = await known;
      if (published.address !== rule.address || (rule.hostPort !== 0 && published.hostPort !== rule.hostPort)) throw new MwError("conflict", `port ${rule.port} of ${entry.id} is published at ${published.address} port ${published.hostPort} already`, { fix: "end that first (DELETE)" });
      return { published, fresh: false };
    }
    if (ports.size >= LIMITS.publishedPorts) throw new MwError("limit_exceeded", `${ports.size} ports of ${entry.id} are published already`, { fix: "end one of them first (DELETE)" });
    const made = publishPort({ ended, connect: async (port) => (await this.#sandboxes.running(entry)).connect(port) }, rule);
    ports.set(rule.port, made);
    made.catch(() => ports.delete(rule.port));
    return { published: await made, fresh: true };
  }

  /** By their numbers in the sandbox. */
  async list(entry: SandboxEntry): Promise<readonly PublishedPort[]> {
    const all = await Promise.all(Array.from(this.#ports.get(entry)?.values() ?? [], (made) => made.catch(() => null)));
    return all.filter((published) => published !== null).toSorted((a, b) => a.port - b.port);
  }

  /** Rejects `not_found`. */
  async end(entry: SandboxEntry, port: number): Promise<void> {
    const ports = this.#ports.get(entry);
    const published = ports?.get(port);
    if (published === undefined) throw new MwError("not_found", `port ${port} of ${entry.id} is not published`);
    await (await published).close();
    ports?.delete(port);
  }
}
