/**
 * `pip install -e` of newer setuptools leaves a .pth file that runs a finder. The finder is code of the agent's; what it says (where the packages are) is kept as a
 * .pth file of plain paths, which Python appends to its search path and which run nothing.
 */
import { posix } from "node:path";

export interface EditableInstall {
  /** The .pth file to write. */
  readonly path: string;
  /** Directories that hold the packages, one a line. */
  readonly content: string;
}

const FINDER_BYTES = 256 * 1024;

/** Null for a .pth file of another kind, and for a finder that maps names to directories of other names. */
export async function editableInstall(path: string, content: Uint8Array | null, read: (path: Uint8Array, maxBytes: number) => Promise<Uint8Array | null>): Promise<EditableInstall | null> {
  const text = content === null ? "" : Buffer.from(content).toString("utf8");
  const finder = /^import (__editable___\w+_finder); \1\.install\(\)\s*$/.exec(text)?.[1];
  if (finder === undefined) return null;
  const source = await read(Buffer.from(posix.join(posix.dirname(path), `${finder}.py`)), FINDER_BYTES);
  const mapping = /^MAPPING\b[^=\n]*=\s*\{([^}\n]*)\}/m.exec(Buffer.from(source ?? []).toString("utf8"))?.[1];
  if (mapping === undefined) return null;
  const directories = new Set<string>();
  for (const [, name = "", place = ""] of mapping.matchAll(/'([^'\\]+)'\s*:\s*'([^'\\]+)'/g)) {
    if (!place.startsWith("/") || posix.basename(place).replace(/\.py$/, "") !== name) return null;
    directories.add(posix.dirname(place));
  }
  return directories.size === 0 ? null : { path, content: `${[...directories].join("\n")}\n` };
}
