/** `docker-archive:PATH[:TAG]`: what `docker save` writes, old (a directory a layer) and new (an OCI layout with a manifest.json). */
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { hexOf } from "./digest.ts";
import { archiveFiles, type FileSet } from "./file-set.ts";
import { parseJson, type LayerRecord } from "./layers.ts";
import { imageConfig, parseConfig } from "./oci.ts";
import { fullName, parseImageReference } from "./reference.ts";
import { fileFingerprint, mustBeKind } from "./root-sources.ts";
import { needed, type LoadedImage, type LoadOptions, type Source, type SourceContext } from "./source.ts";
import { removeTree } from "./unpacker.ts";

const SavedImages = z.array(z.object({ Config: z.string(), RepoTags: z.array(z.string()).nullish(), Layers: z.array(z.string()) }));

export function dockerArchiveSource(path: string, tag: string | null, context: SourceContext | null): Source {
  const name = `docker-archive:${path}${tag === null ? "" : `:${tag}`}`;
  return {
    name,
    label: name,
    fingerprint: () => fileFingerprint(path),
    load: async (options) => {
      await mustBeKind(path, "file");
      const { layers } = needed(context);
      const temporary = await layers.temporary();
      try {
        options.progress(`reading ${path}`);
        return await load(await archiveFiles(path, temporary), tag, name, needed(context), options);
      } finally {
        await removeTree(temporary);
      }
    },
  };
}

async function load(files: FileSet, tag: string | null, label: string, context: SourceContext, options: LoadOptions): Promise<LoadedImage> {
  const manifest = await files.read("manifest.json", LIMITS.imageManifestBytes);
  const images = SavedImages.safeParse(manifest === null ? undefined : parseJson(manifest.toString()));
  if (!images.success) {
    throw new MwError("invalid_image", `${label} has no valid manifest.json`, { fix: "for an OCI layout write oci:PATH, for a plain root write tar:PATH" });
  }
  const image = choose(images.data, tag, label);
  const bytes = await files.read(image.Config, LIMITS.imageManifestBytes);
  if (bytes === null) throw new MwError("invalid_image", `${label} is not whole: it has no ${image.Config}`, { fix: "save it again" });
  const config = parseConfig(bytes, label);
  const diffIds = config.rootfs.diff_ids;
  if (diffIds.length !== image.Layers.length || diffIds.length > LIMITS.imageLayers) {
    throw new MwError("invalid_image", `${label} has ${image.Layers.length} layers and ${diffIds.length} diff ids, at most ${LIMITS.imageLayers} of each are possible`, { fix: "save it again" });
  }
  const layers: LayerRecord[] = [];
  for (const [index, file] of image.Layers.entries()) {
    const name = `layer ${index + 1} of ${image.Layers.length} of ${label}`;
    const diffId = diffIds[index] ?? "";
    hexOf(diffId);
    options.progress(name);
    layers.push(await context.layers.unpack(() => files.stream(file), { diffId, digest: null, whiteouts: true }, { name, signal: options.signal }));
  }
  return { layers, config: imageConfig(config.config ?? {}) };
}

function choose(images: z.infer<typeof SavedImages>, tag: string | null, label: string): z.infer<typeof SavedImages>[number] {
  const [only] = images;
  if (tag === null && images.length === 1 && only !== undefined) return only;
  const wanted = tag === null ? null : full(tag);
  const found = images.find(({ RepoTags }) => wanted !== null && (RepoTags ?? []).some((name) => full(name) === wanted || name.endsWith(`:${tag}`)));
  if (found !== undefined) return found;
  const tags = images.flatMap(({ RepoTags }) => RepoTags ?? []);
  throw new MwError("invalid_image", `${label} ${tag === null ? `holds ${images.length} images` : `holds no image ${tag}`}: ${tags.join(", ") || "they have no tags"}`, { fix: "write docker-archive:PATH:TAG with one of its tags" });
}

function full(name: string): string {
  try {
    const parsed = parseImageReference(name);
    return parsed.kind === "name" ? fullName(parsed.name) : name;
  } catch {
    return name;
  }
}
