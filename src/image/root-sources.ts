/** Roots as they are: a directory, or an archive of one. They have no configuration beyond the usual search path. */
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { basename } from "node:path";
import { MwError } from "../core/errors.ts";
import { EMPTY_CONFIG } from "./records.ts";
import { needed, type Source, type SourceContext } from "./source.ts";
import { readHostTree, treeFingerprint } from "./unpacker.ts";

export const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
export const ROOT_CONFIG = { ...EMPTY_CONFIG, env: { PATH: DEFAULT_PATH } };

export function directorySource(path: string, context: SourceContext | null): Source {
  const name = `dir:${path}`;
  return {
    name,
    label: name,
    fingerprint: async () => {
      await mustBeRoot(path);
      return treeFingerprint(path);
    },
    load: async ({ progress, signal }) => {
      await mustBeRoot(path);
      progress(`copying ${path}`);
      return { layers: [await needed(context).layers.build(() => readHostTree(path), { name, signal })], config: ROOT_CONFIG };
    },
  };
}

export function tarSource(path: string, context: SourceContext | null): Source {
  const name = `tar:${path}`;
  return {
    name,
    label: name,
    fingerprint: () => fileFingerprint(path),
    load: async ({ progress, signal }) => {
      await mustBeKind(path, "file");
      progress(`unpacking ${path}`);
      const open = async (): Promise<ReturnType<typeof createReadStream>> => createReadStream(path);
      return {
        layers: [await needed(context).layers.unpack(open, { diffId: null, digest: null, whiteouts: false }, { name: basename(path), signal })],
        config: ROOT_CONFIG,
      };
    },
  };
}

async function mustBeRoot(path: string): Promise<void> {
  if (path === "/") throw new MwError("invalid_image", "dir:/ would copy this machine with its secrets", { fix: "use the image `host`" });
  await mustBeKind(path, "directory");
}

/** Changes whenever the file may have. */
export async function fileFingerprint(path: string): Promise<string> {
  await mustBeKind(path, "file");
  const { dev, ino, size, mtimeNs, ctimeNs } = await stat(path, { bigint: true });
  return [dev, ino, size, mtimeNs, ctimeNs].join(":");
}

export async function mustBeKind(path: string, kind: "file" | "directory"): Promise<void> {
  const stats = await stat(path).catch((error: NodeJS.ErrnoException) => {
    throw new MwError("invalid_image", `cannot open ${path}: ${error.code === "ENOENT" ? "there is no such file" : (error.code ?? error.message)}`, { fix: "check the path", cause: error });
  });
  if (kind === "directory" ? !stats.isDirectory() : !stats.isFile()) throw new MwError("invalid_image", `${path} is not a ${kind}`, { fix: kind === "directory" ? "for an archive, write tar:PATH" : "for a directory, write dir:PATH" });
}
