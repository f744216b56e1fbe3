/** Sealed workspaces of a controller: upper directories of machines that have ended, kept until they are released and nobody stands on them. */
import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, constants, openSync } from "node:fs";
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import type { SandboxId } from "../../../core/ids.ts";
import { nativePrograms } from "../native/programs.ts";
import type { WorkspaceKeeper } from "../native/sealed-workspace.ts";
import { WorkspaceReader } from "../native/workspace.ts";
import { listening } from "./listening.ts";

/** What a machine or a workspace stands on. */
export interface Kept {
  readonly id: SandboxId;
  /** The bundle's directory. */
  readonly directory: string;
  readonly base: Kept | null;
  /** Of the image and the layers over it, topmost first. */
  readonly layers: readonly string[];
}

/** Upper directories of it and of all that it stands on, topmost first. */
export function uppersFrom(kept: Kept | null): readonly string[] {
  return kept === null ? [] : [join(kept.directory, "upper"), ...uppersFrom(kept.base)];
}

export class OciWorkspaces implements WorkspaceKeeper {
  readonly #sockets: string;
  readonly #remove: (directory: string) => Promise<void>;
  readonly #kept = new Map<SandboxId, Kept>();
  readonly #users = new Map<Kept, number>();
  readonly #released = new Set<Kept>();
  readonly #readers = new Map<Kept, ChildProcess>();
  #opened = 0;

  /** `sockets`: a short path, where readers listen. */
  constructor(sockets: string, remove: (directory: string) => Promise<void>) {
    this.#sockets = sockets;
    this.#remove = remove;
  }

  /** Takes over the files of a machine that has ended, with what it stood on; returns how many bytes they are. */
  async keep(machine: Kept): Promise<number> {
    this.#kept.set(machine.id, machine);
    const reader = await WorkspaceReader.connect(await this.openWorkspace(machine.id));
    try {
      return await reader.usage();
    } finally {
      reader.close();
    }
  }

  /** Stays until `leave`. Throws `sandbox_gone` when there is none. */
  use(id: SandboxId): Kept {
    const kept = this.#get(id);
    this.#users.set(kept, (this.#users.get(kept) ?? 0) + 1);
    return kept;
  }

  async leave(kept: Kept | null): Promise<void> {
    if (kept === null) return;
    const users = (this.#users.get(kept) ?? 1) - 1;
    this.#users.set(kept, users);
    if (users === 0 && this.#released.has(kept)) await this.#dispose(kept);
  }

  /** Starts its reader; returns where that listens, for one client. */
  async openWorkspace(id: SandboxId): Promise<string> {
    const kept = this.#get(id);
    const { directory, base, layers } = kept;
    const { oci, tree } = nativePrograms();
    if (tree === null) throw new MwError("environment", "The native program tree is not built", { fix: "Run `npm run build`." });
    const socket = join(this.#sockets, `tree-${this.#opened++}.sock`);
    const bases = uppersFrom(base);
    const upper = openSync(join(directory, "upper"), constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
    try {
      const child = spawn(oci, ["--with-parent", "--listen", socket, "--", tree, `--bases=${bases.length}`, ...bases, ...layers], { stdio: ["ignore", "ignore", "inherit", "ignore", "pipe", upper], env: {} });
      await listening(child);
      this.#readers.set(kept, child);
      child.once("exit", () => {
        if (this.#readers.get(kept) === child) this.#readers.delete(kept);
      });
      return socket;
    } finally {
      closeSync(upper);
    }
  }

  async releaseWorkspace(id: SandboxId): Promise<void> {
    const kept = this.#kept.get(id);
    if (kept === undefined) return;
    this.#kept.delete(id);
    // Whoever asked for it may still hold the connection.
    this.#readers.get(kept)?.kill("SIGKILL");
    if ((this.#users.get(kept) ?? 0) > 0) this.#released.add(kept);
    else await this.#dispose(kept);
  }

  /** All of them, whoever holds them. */
  async close(): Promise<void> {
    for (const id of this.#kept.keys()) await this.releaseWorkspace(id);
  }

  async #dispose(kept: Kept): Promise<void> {
    this.#users.delete(kept);
    this.#released.delete(kept);
    await this.#remove(kept.directory);
    await this.leave(kept.base);
  }

  #get(id: SandboxId): Kept {
    const kept = this.#kept.get(id);
    if (kept === undefined) throw new MwError("sandbox_gone", `There is no sealed workspace ${id}: it was released, or its keeper died`);
    return kept;
  }
}
