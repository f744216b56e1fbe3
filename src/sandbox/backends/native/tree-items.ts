/** A tree in transfer, as a sequence of items in the order of a walk: the same between host and machine and between two machines. */
import { MwError } from "../../../core/errors.ts";
import { FILE_TAG, FILES, type Kind, KINDS } from "./files-protocol.ts";
import { encodeFrame, type Frame } from "./wire.ts";

export interface TreeEntry {
  readonly type: "entry";
  /** Relative to the root of the transfer, bytes; empty for a root that is a file. */
  readonly path: Buffer;
  readonly kind: Kind;
  readonly mode: number;
  readonly mtimeNs: bigint;
  /** Of a symlink: its target. Of a hard link: the path of the entry that it names. */
  readonly target: Buffer | null;
  /** As numbers inside the machine that it comes from. Absent: the transfer's. */
  readonly owner?: { readonly uid: number; readonly gid: number };
}

export type TreeItem =
  | TreeEntry
  /** Content of the file entry before it. */
  | { readonly type: "data"; readonly data: Buffer }
  | { readonly type: "refused"; readonly path: Buffer; readonly reason: string };

/** Null for a frame that is no item. A malformed one throws. */
export function decodeItem(frame: Frame): TreeItem | null {
  if (frame.type === FILES.data) return { type: "data", data: frame.bytes(FILE_TAG.data) ?? Buffer.alloc(0) };
  const path = frame.bytes(FILE_TAG.path);
  if (frame.type === FILES.refused) return { type: "refused", path: path ?? Buffer.alloc(0), reason: frame.text(FILE_TAG.reason) ?? "unknown" };
  if (frame.type !== FILES.entry) return null;
  const kind = KINDS[frame.number(FILE_TAG.kind) ?? -1];
  const mode = frame.number(FILE_TAG.mode);
  if (path === null || kind === undefined || mode === null || mode > 0o7777) throw new MwError("sandbox_failed", "The machine sent a tree entry that makes no sense");
  const [uid, gid] = [frame.number(FILE_TAG.uid), frame.number(FILE_TAG.gid)];
  const owner = uid === null || gid === null ? {} : { owner: { uid, gid } };
  return { type: "entry", path, kind, mode, mtimeNs: frame.i64(FILE_TAG.mtime) ?? 0n, target: frame.bytes(FILE_TAG.target), ...owner };
}

/** Refusals are no part of what is sent into a machine: they stay with the reader. */
export function encodeItem(item: Exclude<TreeItem, { readonly type: "refused" }>): Buffer {
  if (item.type === "data") return encodeFrame(FILES.data, 0, [[FILE_TAG.data, item.data]]);
  const { path, kind, mode, mtimeNs, target, owner } = item;
  return encodeFrame(FILES.entry, 0, [
    [FILE_TAG.path, path],
    [FILE_TAG.kind, KINDS.indexOf(kind)],
    [FILE_TAG.mode, mode],
    [FILE_TAG.mtime, mtimeNs],
    [FILE_TAG.target, target ?? undefined],
    [FILE_TAG.uid, owner?.uid],
    [FILE_TAG.gid, owner?.gid],
  ]);
}

/** Collects what could not be transferred, bounded: a hostile tree may refuse a million times. */
export class Refusals {
  static readonly most = 10_000;
  readonly #list: { path: string; reason: string }[] = [];
  #more = 0;

  add(path: Uint8Array, reason: string): void {
    if (this.#list.length < Refusals.most) this.#list.push({ path: Buffer.from(path).toString("utf8"), reason });
    else this.#more++;
  }

  get list(): readonly { readonly path: string; readonly reason: string }[] {
    return this.#more === 0 ? this.#list : [...this.#list, { path: "", reason: `${this.#more} more entries were refused` }];
  }
}
