/**
 * What an agent changed: the archive of its workspace, where one was kept, against the layers of the image that its machine started from. The archive is an agent's work; its names and
 * contents are only ever shown as text.
 */
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "../../core/errors.ts";
import type { RolloutId } from "../../core/ids.ts";
import { hexOf } from "../../image/digest.ts";
import { imageRecords } from "../../image/records.ts";
import { readTar } from "../../image/tar-read.ts";
import type { TreeEntry } from "../../image/tree.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";
import type { ChangesView, ChangeView } from "./contract/rollout.ts";
import type { LiveRun } from "./live-run.ts";
import { listFiles, readRange } from "./rollout-files.ts";

const CHANGES = 500;
const TEXT_BYTES = 64 * 1024;
/** Texts of one answer together. */
const TEXTS_BYTES = 4 << 20;

/** What the shell of the white-box harnesses keeps between commands is ours. */
const OWN_SHELL = "run/mw-shell/";

/** `before` of a file: its text in the image, null when the image does not have it, undefined when nobody knows. */
type Before = (path: string) => Promise<Buffer | null | undefined>;

export async function changesOf(run: LiveRun, id: RolloutId): Promise<ChangesView> {
  const directory = rolloutDirectory(run.home, run.run, id);
  const archive = join(directory, "workspace.tar");
  if ((await stat(archive).catch(() => null))?.isFile() !== true) return artifactsOf(directory);
  const image = (await run.eventsOf(id)).findLast(({ event }) => event.type === "rollout_leased")?.event["image"];
  const before = typeof image === "string" ? await imageFiles(run.home, image) : unknown;
  const changes: ChangeView[] = [];
  let budget = TEXTS_BYTES;
  try {
    for await (const { entry, content } of entriesOf(archive)) {
      if (entry.path.length === 0 || entry.kind === "directory" || entry.path.toString("latin1").startsWith(OWN_SHELL)) continue;
      if (changes.length >= CHANGES) return { source: "workspace", changes, truncated: true };
      const change = await changeOf(entry, content, before, budget > 0);
      budget -= (change.before?.length ?? 0) + (change.after?.length ?? 0);
      changes.push(change);
    }
  } catch (error) {
    changes.push({ path: "workspace.tar", change: "unknown", kind: "other", bytes: 0, before: null, after: null, note: `damaged: ${messageOf(error)}` });
  }
  return { source: "workspace", changes, truncated: false };
}

const unknown: Before = () => Promise.resolve(undefined);

/** Without a workspace, what the task declares as the agent's product is all that is known. */
async function artifactsOf(directory: string): Promise<ChangesView> {
  const { files, truncated } = await listFiles(join(directory, "artifacts"));
  const changes: ChangeView[] = [];
  let budget = TEXTS_BYTES;
  for (const { path, bytes, kind } of files.slice(0, CHANGES)) {
    if (kind === "directory") continue;
    const content = kind === "file" && bytes <= TEXT_BYTES && budget > 0 ? ((await readRange(join(directory, "artifacts"), path, 0, TEXT_BYTES))?.bytes ?? null) : null;
    const after = content === null ? null : textOf(content);
    budget -= after?.length ?? 0;
    changes.push({ path, change: "unknown", kind: kind === "file" ? "file" : kind === "link" ? "link" : "other", bytes, before: null, after, note: kind === "file" && after === null ? "no text, or too long to be shown" : null });
  }
  return { source: changes.length === 0 ? "none" : "artifacts", changes, truncated: truncated || files.length > CHANGES };
}

async function changeOf(entry: TreeEntry, content: Buffer | null, before: Before, showTexts: boolean): Promise<ChangeView> {
  const path = entry.path.toString("utf8");
  const kind = entry.kind === "file" || entry.kind === "hardlink" ? "file" : entry.kind === "symlink" ? "link" : "other";
  const old = await before(path);
  const common = { path, kind, bytes: entry.size } as const;
  const oldText = old === null || old === undefined || !showTexts ? null : textOf(old);
  if (entry.kind === "whiteout") return { ...common, kind: "file", change: "removed", before: oldText, after: null, note: null };
  if (entry.kind === "symlink") return { ...common, change: old === null ? "added" : "changed", before: null, after: null, note: `-> ${entry.target?.toString("utf8") ?? ""}` };
  const text = content === null || !showTexts ? null : textOf(content);
  const change = old === undefined ? "unknown" : old === null ? "added" : "changed";
  return { ...common, change, before: oldText, after: text, note: entry.kind === "file" && text === null ? "no text, or too long to be shown" : null };
}

async function* entriesOf(archive: string): AsyncGenerator<{ readonly entry: TreeEntry; readonly content: Buffer | null }> {
  let entry: TreeEntry | null = null;
  let content: Buffer | null = null;
  for await (const event of readTar(createReadStream(archive, { highWaterMark: 1 << 18 }), { name: archive, whiteouts: true, onRefused: () => undefined })) {
    if (event.type === "entry") {
      if (entry !== null) yield { entry, content };
      ({ entry } = event);
      content = entry.kind === "file" && entry.size <= TEXT_BYTES ? Buffer.alloc(entry.size) : null;
    } else content?.set(event.bytes, event.offset);
  }
  if (entry !== null) yield { entry, content };
}

/** The files of an image that is in the store, looked for from the topmost layer down. */
async function imageFiles(home: string, digest: string): Promise<Before> {
  const image = await imageRecords(join(home, "images", "images"))
    .get(digest)
    .catch(() => null);
  if (image === null) return unknown;
  const layers = image.layers.toReversed().map((layer) => join(home, "images", "layers", hexOf(layer.digest), "fs"));
  return async (path) => {
    for (const layer of layers) {
      const range = await readRange(layer, path, 0, TEXT_BYTES + 1);
      if (range !== null) return range.bytes;
    }
    // Parts of the host show through in the host's image, and the host is nobody's to read here.
    return image.hostParts.some((part) => `/${path}`.startsWith(`${part}/`)) ? undefined : null;
  };
}

/** Null for what is no text, or longer than is shown. */
function textOf(bytes: Buffer): string | null {
  if (bytes.length > TEXT_BYTES || bytes.includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}
