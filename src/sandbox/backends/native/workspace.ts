/** Client of the workspace reader (native/tree.c): one connection to one sealed workspace. Requests follow each other. */
import { createConnection, type Socket } from "node:net";
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { FileStat, SandboxPath, WorkspaceChange } from "../../sandbox.ts";
import { FILE_TAG, FILES, KINDS } from "./files-protocol.ts";
import { encodeFrame, type FieldList, type Frame, FrameDecoder } from "./wire.ts";

const TREE = { changes: 1, discard: 2, read: 3, usage: 4, export: 5, squash: 6 } as const;
const CHANGE_TAG = 14;
const CHANGES = ["added", "changed", "removed"] as const;

export class WorkspaceReader {
  readonly #socket: Socket;
  readonly #decoder = new FrameDecoder();
  #waiting: { readonly frame: (frame: Frame) => void; readonly lost: (error: MwError) => void } | null = null;
  #last: Promise<unknown> = Promise.resolve();
  #failure: MwError | null = null;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    socket.on("error", () => undefined);
    socket.on("close", () => this.#fail(new MwError("sandbox_gone", "The reader of the workspace has ended")));
  }

  /** Rejects `sandbox_gone` when nothing listens there. */
  static connect(path: string): Promise<WorkspaceReader> {
    return new Promise((resolve, reject) => {
      const socket = createConnection(path);
      const onError = (cause: Error): void => reject(new MwError("sandbox_gone", "The reader of the workspace does not answer", { cause }));
      socket.once("error", onError);
      socket.once("connect", () => {
        socket.off("error", onError);
        resolve(new WorkspaceReader(socket));
      });
    });
  }

  /** Everything that the workspace adds to, changes in and removes from the image. Fails rather than leave something out. */
  async changes(): Promise<readonly WorkspaceChange[]> {
    const changes: WorkspaceChange[] = [];
    let bytes = 0;
    await this.#ask(TREE.changes, [], (frame) => {
      if (frame.type !== FILES.entry) return;
      const change = changeOf(frame);
      bytes += change.path.length + (change.target?.length ?? 0);
      if (bytes > LIMITS.treeNamesBytes) throw new MwError("limit_exceeded", `The names of the workspace's changes take more than ${LIMITS.treeNamesBytes} bytes`);
      changes.push(change);
    });
    return changes;
  }

  /** Takes paths out, so that what the image has there (or nothing) shows again. */
  async discard(paths: readonly SandboxPath[]): Promise<void> {
    for (const path of paths) await this.#ask(TREE.discard, [[FILE_TAG.path, path]]).catch(fullWorkspace);
  }

  /** Null when the workspace itself has no such file. Rejects `limit_exceeded` beyond `maxBytes`, `invalid_input` for what is no regular file. */
  async read(path: SandboxPath, maxBytes: number): Promise<Uint8Array | null> {
    const parts: Buffer[] = [];
    try {
      await this.#ask(TREE.read, [[FILE_TAG.path, path], [FILE_TAG.max, maxBytes]], (frame) => {
        if (frame.type === FILES.data) parts.push(frame.bytes(FILE_TAG.data) ?? Buffer.alloc(0));
      });
    } catch (error) {
      if (error instanceof MwError && (error.facts["errno"] === "ENOENT" || error.facts["errno"] === "ENOTDIR")) return null;
      throw error;
    }
    return Buffer.concat(parts);
  }

  /** Bytes that the workspace occupies. */
  async usage(): Promise<number> {
    const end = await this.#ask(TREE.usage, []);
    return end.number(FILE_TAG.bytes) ?? 0;
  }

  /** Copies the workspace exactly, as an overlay upper, to a host directory that does not exist yet. Rejects `conflict` when it does. */
  async export(directory: string): Promise<void> {
    await this.#ask(TREE.export, [[FILE_TAG.path, directory]]);
  }

  /** As `export`, with all that the workspace is based on and `layers` of the layers below it merged in. */
  async squash(directory: string, layers: number): Promise<{ readonly bytes: number }> {
    const end = await this.#ask(TREE.squash, [[FILE_TAG.path, directory], [FILE_TAG.max, layers]]);
    return { bytes: end.number(FILE_TAG.bytes) ?? 0 };
  }

  close(): void {
    this.#socket.destroy();
  }

  /** Resolves to the frame that ends the answer. */
  #ask(type: number, fields: FieldList, each: (frame: Frame) => void = () => undefined): Promise<Frame> {
    const request = encodeFrame(type, 0, fields);
    const answer = this.#last.then(
      () =>
        new Promise<Frame>((resolve, reject) => {
          if (this.#failure) throw this.#failure;
          let frames = 0;
          this.#waiting = {
            lost: reject,
            frame: (frame) => {
              const error = frame.error();
              if (error) reject(treeError(error));
              else if (frame.type === FILES.end) resolve(frame);
              else if (++frames > 2 * LIMITS.treeEntries) this.#fail(new MwError("limit_exceeded", "The answer of the workspace reader has no end"));
              else each(frame);
              if (error || frame.type === FILES.end) this.#waiting = null;
            },
          };
          this.#socket.write(request);
        }),
    );
    this.#last = answer.catch(() => undefined);
    return answer;
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#decoder.push(chunk)) this.#waiting?.frame(frame);
    } catch (error) {
      this.#fail(error instanceof MwError ? error : new MwError("internal", "An answer of the workspace reader could not be handled", { cause: error }));
    }
  }

  #fail(error: MwError): void {
    this.#failure ??= error;
    this.#socket.destroy();
    const waiting = this.#waiting;
    this.#waiting = null;
    waiting?.lost(this.#failure);
  }
}

function changeOf(frame: Frame): WorkspaceChange {
  const kind = KINDS[frame.number(FILE_TAG.kind) ?? -1];
  const type: FileStat["type"] = kind === undefined || kind === "hardlink" || kind === "directory-end" ? "device" : kind;
  return {
    path: frame.bytes(FILE_TAG.path) ?? Buffer.alloc(0),
    kind: CHANGES[frame.number(CHANGE_TAG) ?? 1] ?? "changed",
    type,
    mode: frame.number(FILE_TAG.mode) ?? 0,
    size: frame.number(FILE_TAG.size) ?? 0,
    target: frame.bytes(FILE_TAG.target),
  };
}

/** What is full is the workspace, by what its machine wrote, not the host. */
function fullWorkspace(error: unknown): never {
  if (error instanceof MwError && error.code === "host_exhausted") throw new MwError("limit_exceeded", error.message, { cause: error, facts: error.facts });
  throw error;
}

function treeError({ code, message }: { readonly code: string; readonly message: string }): MwError {
  const facts = { errno: code };
  const text = `In the sealed workspace: ${message}`;
  if (code === "ENOENT") return new MwError("not_found", text, { facts });
  if (code === "EEXIST") return new MwError("conflict", text, { facts });
  if (code === "EFBIG" || code === "ENAMETOOLONG") return new MwError("limit_exceeded", text, { facts });
  if (code === "EINVAL" || code === "ENOTDIR") return new MwError("invalid_input", text, { facts });
  if (code === "ENOSPC") return new MwError("host_exhausted", text, { facts });
  return new MwError("sandbox_failed", text, { facts });
}
