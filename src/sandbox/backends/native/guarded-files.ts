/** File access of a sandbox: refuses what cannot be meant or cannot be had before the machine is asked, and knows when the machine is over. */
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import { checkUser } from "../../check-spec.ts";
import type { Capabilities, FileEvent, FileStat, SandboxFiles, SandboxPath, TreeOptions, TreeReport, WriteOptions } from "../../sandbox.ts";

export class GuardedFiles implements SandboxFiles {
  readonly #files: SandboxFiles;
  readonly #capabilities: Capabilities;
  readonly #alive: () => void;

  constructor(files: SandboxFiles, capabilities: Capabilities, alive: () => void) {
    this.#files = files;
    this.#capabilities = capabilities;
    this.#alive = alive;
  }

  async read(path: SandboxPath, options: { readonly maxBytes?: number; readonly user?: string } = {}): Promise<Uint8Array> {
    this.#check(path, options.user);
    return this.#files.read(path, options);
  }

  readStream(path: SandboxPath, options: { readonly user?: string } = {}): AsyncIterable<Uint8Array> {
    this.#check(path, options.user);
    return this.#files.readStream(path, options);
  }

  async write(path: SandboxPath, data: Uint8Array | string | AsyncIterable<Uint8Array>, options: WriteOptions = {}): Promise<void> {
    this.#check(path, options.owner);
    return this.#files.write(path, data, options);
  }

  async list(path: SandboxPath): Promise<readonly FileStat[]> {
    this.#check(path);
    return this.#files.list(path);
  }

  async stat(path: SandboxPath): Promise<FileStat | null> {
    this.#check(path);
    return this.#files.stat(path);
  }

  async mkdir(path: SandboxPath, options: { readonly mode?: number; readonly owner?: string } = {}): Promise<void> {
    this.#check(path, options.owner);
    return this.#files.mkdir(path, options);
  }

  async move(from: SandboxPath, to: SandboxPath): Promise<void> {
    this.#check(from);
    this.#check(to);
    return this.#files.move(from, to);
  }

  async remove(path: SandboxPath): Promise<void> {
    this.#check(path);
    return this.#files.remove(path);
  }

  async upload(from: string, to: SandboxPath, options: TreeOptions = {}): Promise<TreeReport> {
    this.#check(to, options.owner);
    return this.#files.upload(from, to, options);
  }

  async applyLayer(archive: string, options: { readonly signal?: AbortSignal } = {}): Promise<TreeReport> {
    this.#alive();
    return this.#files.applyLayer(archive, options);
  }

  async download(from: SandboxPath, to: string, options: TreeOptions = {}): Promise<TreeReport> {
    this.#check(from);
    return this.#files.download(from, to, options);
  }

  async copyTo(target: SandboxFiles, from: SandboxPath, to: SandboxPath, options: TreeOptions = {}): Promise<TreeReport> {
    this.#check(from);
    if (!(target instanceof GuardedFiles)) return this.#files.copyTo(target, from, to, options);
    target.#check(to, options.owner);
    return this.#files.copyTo(target.#files, from, to, options);
  }

  watch(path: SandboxPath, options: { readonly recursive?: boolean; readonly signal?: AbortSignal; readonly onReady?: () => void } = {}): AsyncIterable<FileEvent> {
    this.#check(path);
    return this.#files.watch(path, options);
  }

  #check(path: SandboxPath, user?: string): void {
    this.#alive();
    const bytes = typeof path === "string" ? Buffer.from(path) : path;
    const shown = JSON.stringify(Buffer.from(bytes).toString("utf8"));
    if (bytes[0] !== 0x2f) throw new MwError("invalid_input", `The path ${shown} is not absolute`, { fix: "Paths in a sandbox begin with /." });
    if (bytes.includes(0)) throw new MwError("invalid_input", `The path ${shown} contains a NUL byte`);
    if (bytes.length > LIMITS.treePathBytes) throw new MwError("invalid_input", `The path of ${bytes.length} bytes is longer than ${LIMITS.treePathBytes}`);
    if (user !== undefined) checkUser(user, this.#capabilities);
  }
}
