/** `oci:PATH[:TAG]`: an OCI image layout, as a directory or as a tar archive of one. */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { hexOf } from "./digest.ts";
import { archiveFiles, directoryFiles, type FileSet } from "./file-set.ts";
import { collect, forThisMachine, loadOci, parseIndex, type Descriptor } from "./oci.ts";
import { fileFingerprint, mustBeKind } from "./root-sources.ts";
import { needed, type LoadedImage, type LoadOptions, type Source, type SourceContext } from "./source.ts";
import { removeTree } from "./unpacker.ts";

const REF_NAME = "org.opencontainers.image.ref.name";

export function ociSource(path: string, tag: string | null, context: SourceContext | null): Source {
  const name = `oci:${path}${tag === null ? "" : `:${tag}`}`;
  return {
    name,
    label: name,
    // The blobs of a layout never change; its index does.
    fingerprint: async () => fileFingerprint((await isDirectory(path)) ? join(path, "index.json") : path),
    load: async (options) => {
      const { layers } = needed(context);
      if (await isDirectory(path)) return loadLayout(directoryFiles(path), tag, name, needed(context), options);
      await mustBeKind(path, "file");
      const temporary = await layers.temporary();
      try {
        options.progress(`reading ${path}`);
        return await loadLayout(await archiveFiles(path, temporary), tag, name, needed(context), options);
      } finally {
        await removeTree(temporary);
      }
    },
  };
}

async function isDirectory(path: string): Promise<boolean> {
  return stat(path).then((stats) => stats.isDirectory(), () => false);
}

async function loadLayout(files: FileSet, tag: string | null, label: string, context: SourceContext, options: LoadOptions): Promise<LoadedImage> {
  const index = await files.read("index.json", LIMITS.imageManifestBytes);
  if (index === null) throw new MwError("invalid_image", `${label} is no OCI image layout: it has no index.json`, { fix: "for a docker-save archive write docker-archive:PATH, for a plain root write dir:PATH or tar:PATH" });
  const root = choose(parseIndex(index, label), tag, label);
  const source = {
    label,
    manifest: async (descriptor: Descriptor) => collect(await files.stream(blobPath(descriptor)), LIMITS.imageManifestBytes, label),
    blob: (descriptor: Descriptor) => files.stream(blobPath(descriptor)),
  };
  return loadOci(source, root, context.layers, options);
}

/** The manifest that the tag names; without a tag the only one, or the one for this machine. */
function choose(manifests: readonly Descriptor[], tag: string | null, label: string): Descriptor {
  const candidates = tag === null ? manifests : manifests.filter((descriptor) => nameOf(descriptor) === tag || nameOf(descriptor).endsWith(`:${tag}`));
  const [only] = candidates;
  if (candidates.length === 1 && only !== undefined) return only;
  const known = [...new Set(manifests.map(nameOf).filter((name) => name !== ""))];
  const listed = known.length > 0 ? `it has ${known.slice(0, 20).join(", ")}` : "its images have no tags";
  if (candidates.length === 0) throw new MwError("invalid_image", `${label} holds no image${tag === null ? "" : ` with the tag ${tag}`}: ${listed}`, { fix: "write oci:PATH:TAG with one of its tags" });
  if (candidates.every((descriptor) => descriptor.platform)) return forThisMachine(candidates, label);
  throw new MwError("invalid_image", `${label} holds ${candidates.length} images: ${listed}`, { fix: "write oci:PATH:TAG with one of its tags" });
}

function blobPath(descriptor: Descriptor): string {
  return `blobs/sha256/${hexOf(descriptor.digest)}`;
}

function nameOf(descriptor: Descriptor): string {
  return descriptor.annotations?.[REF_NAME] ?? "";
}
