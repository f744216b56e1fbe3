/**
 * The files of a machine that has ended, kept by the service as a snapshot. What is in them is read in a machine of its own that starts from the snapshot, in which nothing of the
 * agent's runs and our programs were put anew; changes are what differs from a machine that nobody has touched.
 *
 * What is discarded is put back in that machine from an untouched one, and a machine that starts from the workspace afterwards starts from that state.
 */
import { MwError } from "../../../core/errors.ts";
import type { SandboxId } from "../../../core/ids.ts";
import type { SandboxPath, Workspace, WorkspaceChange } from "../../sandbox.ts";
import type { ScannedEntry } from "../native/files.ts";
import type { TreeItem } from "../native/tree-items.ts";
import type { ControlPlane } from "./control-plane.ts";
import type { RemoteMachine } from "./machine.ts";
import { changesBetween, parentOf, sameBut, type Scan } from "./scan.ts";

export interface WorkspaceOptions {
  readonly control: ControlPlane;
  readonly snapshot: string;
  /** Of what the machine started from. */
  readonly base: Scan;
  /** Starts a machine that is nobody's from a template. */
  readonly open: (template: string, fresh: boolean) => Promise<RemoteMachine>;
  /** What the machine started from. */
  readonly baseTemplate: () => Promise<string>;
  readonly forget: (id: SandboxId) => void;
}

export class RemoteWorkspace implements Workspace {
  readonly id: SandboxId;
  bytes = 0;
  readonly #options: WorkspaceOptions;
  #snapshot: string;
  /** Whether the reader holds something else than the snapshot. */
  #discarded = false;
  #reader: Promise<RemoteMachine> | null = null;
  #untouched: Promise<RemoteMachine> | null = null;
  #scan: Promise<Scan> | null = null;
  /** Put back by us: their attributes are not sent, which is no change of anybody's. */
  readonly #restored = new Set<string>();
  #released = false;
  #turn: Promise<unknown> = Promise.resolve();

  private constructor(id: SandboxId, options: WorkspaceOptions) {
    this.id = id;
    this.#options = options;
    this.#snapshot = options.snapshot;
  }

  static async of(id: SandboxId, options: WorkspaceOptions): Promise<RemoteWorkspace> {
    const workspace = new RemoteWorkspace(id, options);
    try {
      const sizes = (await workspace.changes()).filter(({ kind, type }) => kind !== "removed" && type === "file").map(({ size }) => size);
      workspace.bytes = sizes.reduce((sum, size) => sum + size, 0);
      return workspace;
    } catch (error) {
      await workspace.release();
      throw error;
    }
  }

  async changes(): Promise<readonly WorkspaceChange[]> {
    return this.#next(async () => changesBetween(this.#options.base, await this.#now()));
  }

  async discard(paths: readonly SandboxPath[]): Promise<void> {
    return this.#next(async () => {
      for (const path of paths) await this.#discard(Buffer.from(typeof path === "string" ? Buffer.from(path) : path).toString("latin1").replace(/\/+$/, "").replace(/^\/+/, ""));
    });
  }

  async read(path: SandboxPath, maxBytes: number): Promise<Uint8Array | null> {
    return this.#next(async () => {
      const bytes = typeof path === "string" ? Buffer.from(path) : Buffer.from(path);
      const found = changesBetween(this.#options.base, await this.#now()).find((change) => Buffer.compare(change.path, bytes) === 0);
      if (found === undefined || found.kind === "removed" || found.type !== "file") return null;
      return (await this.#open()).ownFiles.read(path, { maxBytes });
    });
  }

  async export(): Promise<void> {
    throw new MwError("unsupported", "The workspace of a remote machine is not brought here as a layer: its attributes and whiteouts cannot be had exactly", { facts: { capability: "export" } });
  }

  async release(): Promise<void> {
    if (this.#released) return;
    this.#released = true;
    this.#options.forget(this.id);
    await this.#turn.catch(() => undefined);
    for (const machine of [this.#reader, this.#untouched]) await machine?.then((opened) => opened.kill()).catch(() => undefined);
    await this.#options.control.removeTemplate(this.#snapshot).catch(() => undefined);
  }

  /** What a machine on this workspace starts from, and what it holds then. */
  async template(): Promise<{ readonly template: string; readonly scan: Scan }> {
    return this.#next(async () => {
      const scan = await this.#now();
      if (this.#discarded) {
        const before = this.#snapshot;
        this.#snapshot = await this.#options.control.snapshot((await this.#open()).remote.sandboxID);
        this.#discarded = false;
        await this.#options.control.removeTemplate(before);
      }
      return { template: this.#snapshot, scan };
    });
  }

  async #discard(path: string): Promise<void> {
    const scan = await this.#now();
    for (let above = parentOf(path); above !== ""; above = parentOf(above)) {
      const there = scan.get(above);
      // Below a link or a file is nothing of the workspace's.
      if (there !== undefined && there.type !== "directory") return;
    }
    const [mine, old] = [scan.get(path), this.#options.base.get(path)];
    if (mine === undefined && old === undefined) return;
    this.#discarded = true;
    this.#scan = null;
    const files = (await this.#open()).ownFiles;
    if (mine !== undefined) await files.remove(bytesOf(path));
    if (old !== undefined) await this.#restore(path, scan);
  }

  async #restore(path: string, scan: Scan): Promise<void> {
    const { base } = this.#options;
    const missing: string[] = [];
    for (let above = parentOf(path); above !== "" && !scan.has(above); above = parentOf(above)) missing.unshift(above);
    const wanted = [...missing, path, ...(base.get(path)?.type === "directory" ? [...base.keys()].filter((name) => name.startsWith(`${path}/`)) : [])];
    const entries = wanted.flatMap((name) => {
      const entry = base.get(name);
      return entry === undefined ? [] : [{ name, entry }];
    });
    for (const { name } of entries) this.#restored.add(name);
    await (await this.#open()).ownFiles.place(this.#items(entries), "/");
  }

  /** Files and directories of the untouched machine, as they are there. */
  async *#items(entries: readonly { readonly name: string; readonly entry: ScannedEntry }[]): AsyncGenerator<TreeItem, void, undefined> {
    const open: { readonly name: string; readonly entry: ScannedEntry }[] = [];
    const close = function* (until: string): Generator<TreeItem> {
      for (let last = open.at(-1); last !== undefined && !until.startsWith(`${last.name}/`); last = open.at(-1)) {
        open.pop();
        yield { type: "entry", path: Buffer.from(last.name, "latin1"), kind: "directory-end", mode: 0, mtimeNs: last.entry.mtimeNs, target: null };
      }
    };
    for (const { name, entry } of entries) {
      yield* close(name);
      const { type, mode, uid, gid, mtimeNs, target } = entry;
      const path = Buffer.from(name, "latin1");
      if (type !== "file" && type !== "directory" && type !== "symlink") continue;
      yield { type: "entry", path, kind: type, mode, mtimeNs, target: target === null ? null : Buffer.from(target), owner: { uid, gid } };
      if (type === "directory") open.push({ name, entry });
      if (type !== "file") continue;
      for await (const data of (await this.#pristine()).ownFiles.readStream(bytesOf(name))) yield { type: "data", data: Buffer.from(data) };
    }
    yield* close("");
  }

  async #now(): Promise<Scan> {
    this.#scan ??= this.#open()
      .then((reader) => reader.scan())
      .then((scan) => {
        const known = new Map(scan);
        for (const path of this.#restored) {
          const [entry, old] = [scan.get(path), this.#options.base.get(path)];
          if (entry !== undefined && old !== undefined && sameBut(entry, old)) known.set(path, { ...entry, digest: old.digest });
        }
        return known;
      });
    this.#scan.catch(() => (this.#scan = null));
    return this.#scan;
  }

  #open(): Promise<RemoteMachine> {
    if (this.#reader !== null) return this.#reader;
    const opening = this.#options.open(this.#snapshot, true);
    this.#reader = opening;
    opening.catch(() => (this.#reader = null));
    return opening;
  }

  #pristine(): Promise<RemoteMachine> {
    if (this.#untouched !== null) return this.#untouched;
    const opening = this.#options.baseTemplate().then((template) => this.#options.open(template, true));
    this.#untouched = opening;
    opening.catch(() => (this.#untouched = null));
    return opening;
  }

  /** One question after the other. */
  #next<T>(work: () => Promise<T>): Promise<T> {
    if (this.#released) return Promise.reject(new MwError("sandbox_gone", `The workspace ${this.id} was released`));
    const answer = this.#turn.then(work, work);
    this.#turn = answer.catch(() => undefined);
    return answer;
  }
}

function bytesOf(path: string): Uint8Array {
  return Buffer.from(`/${path}`, "latin1");
}
