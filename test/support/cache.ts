/** What tests download or build once and keep between runs. */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const CACHE = fileURLToPath(new URL("../../node_modules/.cache", import.meta.url));

/**
 * A directory of the cache, made once: by one process at a time, while the others wait for it. A maker that died leaves its lock behind for an hour;
 * one that failed tries twice more: registries of packages break off now and then.
 */
export async function cached(name: string, make: (directory: string) => Promise<void>): Promise<string> {
  const path = join(CACHE, name);
  await mkdir(CACHE, { recursive: true });
  for (;;) {
    if (existsSync(path)) return path;
    try {
      await mkdir(`${path}.lock`);
      break;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      const made = await stat(`${path}.lock`).catch(() => null);
      if (made !== null && Date.now() - made.mtimeMs > 3_600_000) await rm(`${path}.lock`, { recursive: true, force: true });
      await sleep(1000);
    }
  }
  try {
    if (existsSync(path)) return path;
    for (let left = 3; ; ) {
      const draft = await mkdtemp(`${path}.`);
      try {
        await make(draft);
        await rename(draft, path);
        return path;
      } catch (error) {
        await rm(draft, { recursive: true, force: true });
        if (--left === 0) throw error;
        await sleep(5_000);
      }
    }
  } finally {
    await rm(`${path}.lock`, { recursive: true, force: true });
  }
}
