/** The files of a machine that has ended: held by whoever ended it, read through its reader, which starts with the first question. */
import { resolve } from "node:path";
import { MwError } from "../../../core/errors.ts";
import type { SandboxId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import type { SandboxPath, Workspace, WorkspaceChange } from "../../sandbox.ts";
import { WorkspaceReader } from "./workspace.ts";

/** Between two looks at whether it is there. */
const LOOK_MS = 20;

/** Who holds the files. */
export interface WorkspaceKeeper {
  /** Starts its reader; resolves to where that listens. */
  openWorkspace(id: SandboxId): Promise<string>;
  releaseWorkspace(id: SandboxId): Promise<void>;
}

export class SealedWorkspace implements Workspace {
  readonly id: SandboxId;
  readonly bytes: number;
  readonly #keeper: WorkspaceKeeper;
  #reader: Promise<WorkspaceReader> | null = null;
  #released = false;

  constructor(keeper: WorkspaceKeeper, id: SandboxId, bytes: number, reader: WorkspaceReader | null = null) {
    this.#keeper = keeper;
    this.id = id;
    this.bytes = bytes;
    this.#reader = reader === null ? null : Promise.resolve(reader);
  }

  /** One that an earlier controller had. Its reader serves that one to the end, in the middle of something perhaps, and another one starts then. */
  static async takeUp(keeper: WorkspaceKeeper, id: SandboxId, runtime: Runtime): Promise<SealedWorkspace> {
    for (const end = runtime.monotonic() + LIMITS.collectTimeoutMs; ; await runtime.sleep(LOOK_MS)) {
      const socket = await keeper.openWorkspace(id);
      try {
        const reader = await WorkspaceReader.connect(socket);
        return new SealedWorkspace(keeper, id, await reader.usage(), reader);
      } catch (error) {
        if (!(error instanceof MwError) || error.code !== "sandbox_gone" || runtime.monotonic() > end) throw error;
      }
    }
  }

  async changes(): Promise<readonly WorkspaceChange[]> {
    return (await this.#open()).changes();
  }

  async discard(paths: readonly SandboxPath[]): Promise<void> {
    return (await this.#open()).discard(paths);
  }

  async read(path: SandboxPath, maxBytes: number): Promise<Uint8Array | null> {
    try {
      return await (await this.#open()).read(path, maxBytes);
    } catch (error) {
      // Something else than a regular file is there: then there is no such file.
      if (error instanceof MwError && error.code === "invalid_input") return null;
      throw error;
    }
  }

  async export(directory: string): Promise<void> {
    return (await this.#open()).export(resolve(directory));
  }

  async release(): Promise<void> {
    if (this.#released) return;
    this.#released = true;
    this.#reader?.then((reader) => reader.close()).catch(() => undefined);
    try {
      await this.#keeper.releaseWorkspace(this.id);
    } catch (error) {
      // Its keeper died, and the workspace with it: it is as released as can be.
      if (!(error instanceof MwError) || (error.code !== "sandbox_gone" && error.code !== "sandbox_failed")) throw error;
    }
  }

  #open(): Promise<WorkspaceReader> {
    if (this.#released) return Promise.reject(new MwError("sandbox_gone", `The workspace ${this.id} was released`));
    if (this.#reader !== null) return this.#reader;
    const opening = this.#keeper.openWorkspace(this.id).then((socket) => WorkspaceReader.connect(socket));
    this.#reader = opening;
    // One that could not be opened is tried again by the next question.
    opening.catch(() => (this.#reader = null));
    return opening;
  }
}
