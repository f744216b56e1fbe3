/** Writes an image as an OCI archive that other tools read: layers uncompressed, in their canonical form. */
import { createHash } from "node:crypto";
import { open, rename, unlink, type FileHandle } from "node:fs/promises";
import { MwError } from "../core/errors.ts";
import { digestOf, hexOf } from "./digest.ts";
import { ownName } from "./holder.ts";
import type { Image } from "./image.ts";
import type { LocalImageStore } from "./store.ts";
import { isWhiteoutName, TarEncoder } from "./tar-write.ts";
import { directoryEntry, fileEntry, type TreeEntry } from "./tree.ts";
import { ownersMode } from "./owners.ts";
import { readTree } from "./unpacker.ts";

const ARCHITECTURES: Readonly<Record<string, string>> = { x64: "amd64", ia32: "386" };

interface Blob {
  readonly digest: string;
  readonly size: number;
  /** The blob's bytes, the same every time. */
  readonly parts: () => AsyncIterable<Uint8Array>;
}

/** `path` must not exist; it appears only when it is whole. */
export async function exportOciArchive(store: LocalImageStore, image: Image, path: string, signal?: AbortSignal): Promise<void> {
  const root = await store.rootFilesystem(image);
  if (root.parts.length > 0) throw new MwError("unsupported", "the image host and what was built on it show this machine's own programs and cannot be exported", { fix: "build on another image, e.g. debian:12" });
  const layers: Blob[] = [];
  for (const directory of root.layers.toReversed()) layers.push(await measured(() => layerArchive(directory, signal)));
  const { config } = image;
  const configBlob = documentBlob({
    architecture: ARCHITECTURES[process.arch] ?? process.arch,
    os: "linux",
    created: new Date(image.createdAt).toISOString(),
    config: {
      Env: Object.entries(config.env).map(([key, value]) => `${key}=${value}`),
      WorkingDir: config.workdir,
      User: config.user,
      Entrypoint: config.entrypoint,
      Cmd: config.cmd,
      Labels: config.labels,
    },
    rootfs: { type: "layers", diff_ids: layers.map(({ digest }) => digest) },
  });
  const manifest = documentBlob({
    schemaVersion: 2,
    mediaType: "application/vnd.oci.image.manifest.v1+json",
    config: { mediaType: "application/vnd.oci.image.config.v1+json", digest: configBlob.digest, size: configBlob.size },
    layers: layers.map(({ digest, size }) => ({ mediaType: "application/vnd.oci.image.layer.v1.tar", digest, size })),
  });
  const index = documentBlob({ schemaVersion: 2, manifests: [{ mediaType: "application/vnd.oci.image.manifest.v1+json", digest: manifest.digest, size: manifest.size }] });
  const layout = documentBlob({ imageLayoutVersion: "1.0.0" });
  const blobs = [...new Map([configBlob, manifest, ...layers].map((blob) => [blob.digest, blob])).values()];
  await writeWhole(path, async (file) => {
    const tar = new TarEncoder();
    const entry = async (of: TreeEntry, blob: Blob | null): Promise<void> => {
      for (const part of tar.encode({ type: "entry", entry: of })) await file.writeFile(part);
      let offset = 0;
      if (blob !== null) {
        for await (const bytes of blob.parts()) {
          for (const part of tar.encode({ type: "data", offset, bytes })) await file.writeFile(part);
          offset += bytes.length;
        }
      }
    };
    await entry(fileEntry("oci-layout", 0o644, layout.size), layout);
    await entry(fileEntry("index.json", 0o644, index.size), index);
    await entry(directoryEntry("blobs", 0o755), null);
    await entry(directoryEntry("blobs/sha256", 0o755), null);
    for (const blob of blobs) await entry(fileEntry(`blobs/sha256/${hexOf(blob.digest)}`, 0o644, blob.size), blob);
    for (const part of tar.end()) await file.writeFile(part);
  });
}

/** A tree as one layer archive, with whiteouts as OCI layers have them. `path` must not exist; it appears only when it is whole. */
export async function writeLayerArchive(directory: string, path: string, signal?: AbortSignal): Promise<void> {
  await writeWhole(path, async (file) => {
    for await (const part of layerArchive(directory, signal)) await file.writeFile(part);
  });
}

async function* layerArchive(directory: string, signal: AbortSignal | undefined): AsyncGenerator<Uint8Array> {
  const tar = new TarEncoder();
  for await (const event of readTree(directory)) {
    signal?.throwIfAborted();
    if (event.type === "entry" && event.entry.kind !== "whiteout" && isWhiteoutName(event.entry.path)) {
      throw new MwError("unsupported", `the image holds a file named ${JSON.stringify(event.entry.path.toString())}, which OCI layers cannot express`, { fix: "remove it from the image" });
    }
    // Where only root exists inside, files are the user's here and root's there.
    yield* tar.encode(event.type === "entry" && ownersMode().kind === "flattened" ? { ...event, entry: { ...event.entry, uid: 0, gid: 0 } } : event);
  }
  yield* tar.end();
}

async function measured(parts: () => AsyncIterable<Uint8Array>): Promise<Blob> {
  const hash = createHash("sha256");
  let size = 0;
  for await (const part of parts()) {
    hash.update(part);
    size += part.length;
  }
  return { digest: `sha256:${hash.digest("hex")}`, size, parts };
}

function documentBlob(document: unknown): Blob {
  const bytes = Buffer.from(JSON.stringify(document));
  return {
    digest: digestOf(bytes),
    size: bytes.length,
    parts: async function* () {
      yield bytes;
    },
  };
}

async function writeWhole(path: string, write: (file: FileHandle) => Promise<void>): Promise<void> {
  const existing = await open(path, "r").then((file) => file.close().then(() => true), () => false);
  if (existing) throw new MwError("conflict", `${path} exists already`, { fix: "remove it, or choose another name" });
  const temporary = `${path}.${ownName()}`;
  const file = await open(temporary, "wx", 0o644);
  try {
    await write(file);
    await file.close();
    await rename(temporary, path);
  } catch (error) {
    await file.close().catch(() => undefined);
    await unlink(temporary).catch(() => undefined);
    throw error;
  }
}
