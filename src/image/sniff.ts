/** Finds out what a path holds, for people who do not want to know the prefixes. */
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../core/errors.ts";
import { decompressed } from "./decompress.ts";
import type { ImageReference } from "./image.ts";
import { readTar } from "./tar-read.ts";

/** A reference for the directory or archive at the absolute path. Reads an archive only as far as its names leave it open. */
export async function sniffImage(path: string): Promise<ImageReference> {
  const stats = await stat(path).catch((error: NodeJS.ErrnoException) => {
    throw new MwError("invalid_image", `cannot open ${path}: ${error.code === "ENOENT" ? "there is no such file" : error.message}`, { fix: "check the path", cause: error });
  });
  if (stats.isDirectory()) return (await stat(join(path, "oci-layout")).catch(() => null)) === null ? `dir:${path}` : `oci:${path}`;
  let layout = false;
  const source = createReadStream(path);
  try {
    for await (const event of readTar(await decompressed(source, path), { name: path, whiteouts: false, onRefused: () => undefined })) {
      if (event.type !== "entry") continue;
      const name = event.entry.path.toString("latin1");
      if (name === "manifest.json") return `docker-archive:${path}`;
      if (name === "oci-layout" || name === "index.json") layout = true;
      // A root has directories that no image archive has.
      else if (/^(bin|etc|lib|usr|var|home|tmp)(\/|$)/.test(name)) return `tar:${path}`;
    }
  } finally {
    source.destroy();
  }
  return `${layout ? "oci" : "tar"}:${path}`;
}
