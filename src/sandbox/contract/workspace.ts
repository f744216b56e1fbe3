/** What a sandbox that has ended leaves, where it was asked to. */
import type { SandboxId } from "../../core/ids.ts";
import type { FileStat, SandboxPath } from "./files.ts";

/** The files of a sandbox that has ended, kept so that another sandbox can start from them. Held until released or its keeper dies. */
export interface WorkspaceRef {
  readonly id: SandboxId;
}

/** One difference between a sealed workspace and the image below it. */
export interface WorkspaceChange {
  /** Absolute path as the sandbox saw it. */
  readonly path: Uint8Array;
  /** `added`: nothing was there in the image; `changed`: it replaces what the image had; `removed`: the image's is hidden. */
  readonly kind: "added" | "changed" | "removed";
  readonly type: FileStat["type"];
  readonly mode: number;
  readonly size: number;
  readonly target: Uint8Array | null;
}

export interface Workspace extends WorkspaceRef {
  readonly bytes: number;
  /** Every path that the sandbox added, changed or removed; a directory appears only when it was added, replaced or its mode or owner changed. */
  changes(): Promise<readonly WorkspaceChange[]>;
  /** Takes paths out of the workspace, so that what the image has there (or nothing) shows again. Whole trees; missing paths are no error. */
  discard(paths: readonly SandboxPath[]): Promise<void>;
  /** Reads one regular file of the workspace (not of the image), without following links. Null when it has none there. */
  read(path: SandboxPath, maxBytes: number): Promise<Uint8Array | null>;
  /**
   * Copies the workspace to a host directory that does not exist yet, as an overlay upper: owners, modes, times, extended attributes, hard links, holes,
   * whiteouts and opaque marks exact. For image layers.
   */
  export(directory: string): Promise<void>;
  release(): Promise<void>;
}
