/**
 * What one owner may have on the disk of the host: a number of snapshots, and bytes. Bytes are what its snapshots and paused sandboxes hold, what these share counted once, and what its
 * running sandboxes may write, which is bounded for each. Changes of one owner follow each other, so that two of them cannot both take the last room.
 */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { Semaphore } from "../../core/semaphore.ts";
import type { Snapshot, SnapshotStore, SnapshotTaken } from "../../sandbox/sandbox.ts";
import { ProblemError } from "../problem.ts";
import type { SandboxEntry, SandboxRequest } from "./sandbox-entry.ts";

export interface StorageLimits {
  readonly maxSnapshotsPerOwner?: number | undefined;
  readonly maxDiskBytesPerOwner?: number | undefined;
}

export interface StorageOptions extends StorageLimits {
  readonly store: () => SnapshotStore;
  readonly ownerOf: (snapshot: Snapshot) => string;
  readonly entries: (owner: string) => readonly SandboxEntry[];
}

export class OwnerStorage {
  readonly #options: StorageOptions;
  readonly #turns = new Map<string, Semaphore>();
  /** Promised to sandboxes that are being made. */
  readonly #pending = new Map<string, number>();

  constructor(options: StorageOptions) {
    this.#options = options;
  }

  /** What it is asked for with a bound of its disk, where owners have one. */
  bounded(request: SandboxRequest): SandboxRequest {
    return this.#options.maxDiskBytesPerOwner === undefined || request.diskBytes !== undefined ? request : { ...request, diskBytes: LIMITS.e2bDiskBytes };
  }

  /** Makes sandboxes that may write `bytes` in all. Rejects `quota_exceeded`. */
  async forSandboxes<T>(owner: string, bytes: number, make: () => Promise<T>): Promise<T> {
    if (this.#options.maxDiskBytesPerOwner === undefined) return make();
    await this.#turn(owner, async () => {
      await this.#expectRoom(owner, bytes);
      this.#pending.set(owner, this.#pendingOf(owner) + bytes);
    });
    try {
      return await make();
    } finally {
      this.#pending.set(owner, this.#pendingOf(owner) - bytes);
    }
  }

  /** Takes a snapshot of about `size`, bytes. Rejects `overloaded` for one too many, `quota_exceeded` where it has no room; one that turns out larger is not kept. */
  async forSnapshot(owner: string, size: () => Promise<number>, take: () => Promise<SnapshotTaken>): Promise<SnapshotTaken> {
    const { maxSnapshotsPerOwner: most = Number.POSITIVE_INFINITY, maxDiskBytesPerOwner, store } = this.#options;
    if (most === Number.POSITIVE_INFINITY && maxDiskBytesPerOwner === undefined) return take();
    return this.#turn(owner, async () => {
      const count = (await this.#snapshots(owner)).filter(({ pausedSandbox }) => pausedSandbox === null).length;
      if (count >= most) throw new ProblemError("overloaded", `you have ${count} snapshots, and ${most} are the most of one owner here`, { fix: "remove some (DELETE /v1/snapshots/ID)" });
      await this.#expectRoom(owner, await size());
      const taken = await take();
      try {
        await this.#expectRoom(owner, 0);
      } catch (error) {
        await store().remove(taken.snapshot.id);
        throw error;
      }
      return taken;
    });
  }

  async #expectRoom(owner: string, more: number): Promise<void> {
    const { maxDiskBytesPerOwner: most = Number.POSITIVE_INFINITY, store, entries } = this.#options;
    if (most === Number.POSITIVE_INFINITY) return;
    const kept = await store().sizeOf((await this.#snapshots(owner)).map(({ id }) => id));
    const promised = entries(owner).reduce((sum, { state, facts }) => sum + (state === "running" ? (facts.request.diskBytes ?? 0) : 0), this.#pendingOf(owner));
    if (kept + promised + more <= most) return;
    throw new MwError("quota_exceeded", `your snapshots and paused sandboxes hold ${mib(kept)}, your sandboxes may write ${mib(promised)}, and ${mib(more)} more are beyond the ${mib(most)} that an owner has here`, {
      fix: "remove snapshots, end sandboxes, or make them with less disk",
      facts: { kept_bytes: kept, promised_bytes: promised, limit_bytes: most },
    });
  }

  /** Those of its pauses too. */
  async #snapshots(owner: string): Promise<readonly Snapshot[]> {
    const { store, ownerOf, entries } = this.#options;
    const own = new Set(entries(owner).map(({ id }) => id));
    return (await store().list()).filter((snapshot) => (snapshot.pausedSandbox === null ? ownerOf(snapshot) === owner : own.has(snapshot.pausedSandbox)));
  }

  #pendingOf(owner: string): number {
    return this.#pending.get(owner) ?? 0;
  }

  async #turn<T>(owner: string, work: () => Promise<T>): Promise<T> {
    const turn = this.#turns.get(owner) ?? new Semaphore(1);
    this.#turns.set(owner, turn);
    return turn.use(work);
  }
}

function mib(bytes: number): string {
  return `${Math.ceil(bytes / (1 << 20))} MiB`;
}
