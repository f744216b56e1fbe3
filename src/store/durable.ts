/** Files that are there whole or not at all. */
import type { WriteStream } from "node:fs";
import { open, rename } from "node:fs/promises";

/** What a completed write survives: the death of any process, or also a power cut. */
export type Durability = "process" | "power";

/** Writes a small file beside its place and moves it there, so that nobody ever reads a part of it. */
export async function writeDurably(path: string, content: string | Uint8Array, durability: Durability): Promise<void> {
  const temporary = `${path}.new`;
  const file = await open(temporary, "w", 0o644);
  try {
    await file.writeFile(content);
    if (durability === "power") await file.sync();
  } finally {
    await file.close();
  }
  await rename(temporary, path);
}

/** Makes a created or renamed entry survive a power cut. */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}

/** Before a file that was not written whole is removed: one that is still being opened would be made again by that. */
export async function closed(file: WriteStream): Promise<void> {
  file.destroy();
  if (!file.closed) await new Promise<void>((resolve) => file.once("close", resolve));
}
