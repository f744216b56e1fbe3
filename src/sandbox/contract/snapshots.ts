/** What a sandbox was at one moment, and the store of it. */
import type { SandboxId, SnapshotId } from "../../core/ids.ts";

export interface SnapshotOptions {
  /** Letters, digits, `.`, `_` and `-`, at most 128 of them. A name that another snapshot has moves to the new one. */
  readonly name?: string;
  /** Keep the processes too. Needs a `checkpointable` sandbox and the capability `memorySnapshot`; else `unsupported`, before anything stands still. */
  readonly memory?: boolean;
  readonly labels?: Readonly<Record<string, string>>;
}

/** What a sandbox was at one moment, kept on disk. Immutable; as useful after the sandbox, its controller and its data directory as before. */
export interface Snapshot {
  readonly id: SnapshotId;
  readonly name: string | null;
  readonly createdAt: number;
  /** The sandbox that it was taken of. */
  readonly sandbox: SandboxId;
  /** `RootFilesystem.digest` of the image below it. */
  readonly imageDigest: string;
  /** Whether it holds processes. */
  readonly memory: boolean;
  /** On disk, of all that it consists of; layers that snapshots share count in each. */
  readonly bytes: number;
  /** File layers over the image. */
  readonly layers: number;
  readonly labels: Readonly<Record<string, string>>;
  /** The sandbox whose pause this is: it goes when that one is resumed or killed. Null for snapshots that were asked for. */
  readonly pausedSandbox: SandboxId | null;
}

/** How a snapshot was come by. */
export interface SnapshotTaken {
  readonly snapshot: Snapshot;
  /** `switched`: the machine went on over its frozen layer. `copied`: it stood still while its layer was copied. `dumped`: its processes were written out. */
  readonly method: "switched" | "copied" | "dumped";
  /** How long nothing inside could run, milliseconds. */
  readonly stoppedMs: number;
}

/** The snapshots of a data directory. Several processes may use it at once. */
export interface SnapshotStore {
  /** Oldest first. Only whole ones, whatever was killed while one was made. */
  list(): Promise<readonly Snapshot[]>;
  /** By id or name. */
  get(reference: string): Promise<Snapshot | null>;
  /** At once for everybody who looks for it; machines that started from it keep what they use. `not_found` for what is not there. */
  remove(reference: string): Promise<void>;
  /** Gives the name to this snapshot, taking it from another; null takes its own away. */
  rename(reference: string, name: string | null): Promise<Snapshot>;
  /** Bytes on disk of these together: what they share counts once. Ids of none count nothing. */
  sizeOf(ids: readonly SnapshotId[]): Promise<number>;
  /** Takes away what no snapshot and no living machine uses, and what was left half-made. */
  collect(): Promise<{ readonly layers: number; readonly bytes: number }>;
  /** One file that holds the snapshot whole, but not the image below it. It appears only when it is whole; `conflict` when the path exists. */
  export(reference: string, path: string): Promise<void>;
  /** Takes such a file in, under its own id. A file that does not hold what it says is refused (`corrupt`). One that is there already is left as it is. */
  import(path: string, options?: { readonly name?: string }): Promise<Snapshot>;
}
