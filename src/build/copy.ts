/** What COPY and ADD do beyond files of the context: archives, other images, and what has no place. */
import { mkdir, mkdtemp } from "node:fs/promises";
import { join, posix } from "node:path";
import { MwError } from "../core/errors.ts";
import { unpackArchive } from "../image/archive.ts";
import type { Image } from "../image/image.ts";
import type { Sandbox, TreeReport } from "../sandbox/sandbox.ts";
import { pathMatcher } from "./dockerignore.ts";
import type { BuildEnvironment } from "./stage.ts";

type Build = Pick<BuildEnvironment, "backend" | "images" | "temporary" | "progress" | "signal">;

interface Addition {
  /** Host path of the archive, and its name for people. */
  readonly path: string;
  readonly name: string;
  readonly destination: string;
  /** For everything in it; null: as in the archive. */
  readonly owner: string | null;
  readonly where: string;
}

/** As Docker does: unpacked into the destination, owners and modes as in the archive. Directories that are there stay as they are. */
export async function addArchive(build: Build, sandbox: Sandbox, { path, name, destination, owner, where }: Addition): Promise<void> {
  const parent = await mkdtemp(join(build.temporary, "archive-"));
  await mkdir(join(parent, "content"));
  for (const { path: entry, reason } of await unpackArchive(path, join(parent, "content"), `${where}: ${name}`)) build.progress(`${where}: ${name}: ${entry} was left out: ${reason}`);
  const image = await build.images.commit(null, parent, { env: {}, workdir: "/", user: "", entrypoint: [], cmd: [], labels: {} }, `${where}: ${name}`);
  // From machine to machine: the destination may lead through the image's links.
  await inMachine(build, image, async ({ files }) => {
    copied(build, where, await files.copyTo(sandbox.files, "/content", destination, { ...(owner === null ? { keepOwners: true } : { owner }), signal: build.signal }));
  });
}

/** Devices and pipes are left out and said; what the image has no place for fails the build. */
export function copied(build: Build, where: string, { refused }: TreeReport): void {
  const blocked = refused.find(({ reason }) => reason.endsWith("in the way"));
  if (blocked !== undefined) throw new MwError("invalid_image", `${where}: ${blocked.path} cannot be copied: ${blocked.reason}`, { fix: "Take it out of the sources, or change what the image has there in an earlier step." });
  for (const { path, reason } of refused) build.progress(`${where}: ${path} was left out: ${reason}`);
}

/** A machine of another image, to copy from. */
export async function inMachine(build: Build, image: Image, work: (origin: Sandbox) => Promise<void>): Promise<void> {
  const origin = await build.backend.create({ root: await build.images.rootFilesystem(image), network: "none", labels: { purpose: "build" } });
  try {
    await work(origin);
  } finally {
    await origin.kill();
  }
}

/** Paths inside a machine that match a pattern of COPY --from. */
export async function expandInside(sandbox: Sandbox, source: string): Promise<string[]> {
  const absolute = posix.join("/", source);
  if (!/[*?[]/.test(absolute)) return (await sandbox.files.stat(absolute)) === null ? [] : [absolute];
  let found = ["/"];
  for (const segment of absolute.split("/").filter((part) => part !== "")) {
    const matches = pathMatcher(segment);
    const next: string[] = [];
    for (const parent of found) {
      if ((await sandbox.files.stat(parent))?.type !== "directory") continue;
      for (const { path } of await sandbox.files.list(parent)) {
        const name = posix.basename(Buffer.from(path).toString());
        if (matches(name)) next.push(posix.join(parent, name));
      }
    }
    found = next;
  }
  return found;
}
