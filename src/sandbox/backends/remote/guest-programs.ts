/** What of ours runs in a machine of somebody else's: init and the file helper, static programs of this host's architecture. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { MwError } from "../../../core/errors.ts";
import { TarEncoder } from "../../../image/tar-write.ts";
import { directoryEntry, fileEntry } from "../../../image/tree.ts";
import { nativePrograms } from "../native/programs.ts";

/** In the machine. */
export const GUEST_DIRECTORY = "/.manyworlds";
export const GUEST_INIT = `${GUEST_DIRECTORY}/init`;
export const GUEST_FILES = `${GUEST_DIRECTORY}/files`;

export interface GuestPrograms {
  readonly init: Buffer;
  readonly files: Buffer;
  /** Of both. */
  readonly digest: string;
  /** An archive that holds them, below `guest/`, where they are in a machine. */
  readonly archive: Buffer;
}

export const ARCHIVE_DIRECTORY = "guest";

export function guestPrograms(): GuestPrograms {
  const paths = nativePrograms();
  if (paths.files === null) throw new MwError("environment", "The native program files is not built", { fix: "Run `npm run build`." });
  const [init, files] = [readFileSync(paths.init), readFileSync(paths.files)];
  const digest = createHash("sha256").update(init).update(files).digest("hex");
  return { init, files, digest, archive: archiveOf(init, files) };
}

function archiveOf(init: Buffer, files: Buffer): Buffer {
  const tar = new TarEncoder();
  const parts: Uint8Array[] = [];
  const directory = `${ARCHIVE_DIRECTORY}${GUEST_DIRECTORY}`;
  for (const path of [ARCHIVE_DIRECTORY, directory]) parts.push(...tar.encode({ type: "entry", entry: directoryEntry(path, 0o755) }));
  for (const [name, bytes] of [["init", init], ["files", files]] as const) {
    parts.push(...tar.encode({ type: "entry", entry: fileEntry(`${directory}/${name}`, 0o755, bytes.length) }));
    parts.push(...tar.encode({ type: "data", offset: 0, bytes }));
  }
  parts.push(...tar.end());
  return Buffer.concat(parts);
}
