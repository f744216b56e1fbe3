/** The way out for Dockerfiles beyond our executor: buildah, when it is installed. Its result is imported as an OCI layout. */
import { execFile } from "node:child_process";
import { access, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { promisify } from "node:util";
import { MwError, messageOf } from "../core/errors.ts";
import type { Image, ImageStore } from "../image/image.ts";
import type { BuildRequest } from "./builder.ts";

const execFileAsync = promisify(execFile);

/** Absolute path of buildah, or null. */
export async function findBuildah(): Promise<string | null> {
  for (const directory of (process.env["PATH"] ?? "").split(delimiter)) {
    const path = join(directory, "buildah");
    const found = await access(path).then(
      () => true,
      () => false,
    );
    if (found) return path;
  }
  return null;
}

export async function buildWithBuildah(buildah: string, images: ImageStore, request: BuildRequest): Promise<Image> {
  const directory = await mkdtemp(join(tmpdir(), "mw-buildah-"));
  const layout = join(directory, "image");
  const args = ["build", "--isolation=chroot", "--format=oci", "--file", request.dockerfile, "--tag", `oci:${layout}`];
  for (const [name, value] of Object.entries(request.args ?? {})) args.push("--build-arg", `${name}=${value}`);
  if (request.target !== undefined) args.push("--target", request.target);
  try {
    await execFileAsync(buildah, [...args, request.context], {
      timeout: request.timeoutMs ?? 600_000,
      maxBuffer: 64 << 20,
      ...(request.signal === undefined ? {} : { signal: request.signal }),
    });
    return await images.resolve(`oci:${layout}`);
  } catch (error) {
    throw new MwError("image_failed", `buildah could not build ${request.dockerfile}: ${messageOf(error).slice(-4000)}`, {
      fix: "The end of its output is above.",
      cause: error,
    });
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}
