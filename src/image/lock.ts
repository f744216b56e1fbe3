/**
 * Locks between processes without a lock daemon. A lock is a directory that holds one file named after its holder.
 *
 * Taking: a prepared directory is renamed onto the lock's path, which succeeds only when nothing or an empty directory is there. Taking over from a dead
 * holder: its file, and no other, is unlinked by name, which leaves an empty directory for whoever renames first. Releasing: the own file is unlinked. No step can
 * remove a living holder's claim, however processes interleave or die.
 */
import { mkdir, readdir, rename, rm, unlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { isDiskFull, MwError } from "../core/errors.ts";
import { systemRuntime } from "../core/runtime.ts";
import { Semaphore } from "../core/semaphore.ts";
import { holderLives, ownName } from "./holder.ts";

/** Within this process callers queue here; only the first polls the file system. */
const local = new Map<string, { readonly gate: Semaphore; users: number }>();

const POLL_MIN_MS = 5;
const POLL_MAX_MS = 250;

interface LockOptions {
  readonly signal?: AbortSignal | undefined;
  /** Told once, with the holder's pid, when somebody else has it. */
  readonly onWait?: (pid: string) => void;
  /** For work that makes room: a full disk has none for the lock, and then it is done without. Callers in this process still follow each other. */
  readonly evenWithoutRoom?: boolean;
}

/** Runs `work` while holding the lock at `path` (its parent directory exists). */
export async function withLock<T>(path: string, work: () => Promise<T>, options: LockOptions = {}): Promise<T> {
  const entry = local.get(path) ?? { gate: new Semaphore(1), users: 0 };
  local.set(path, entry);
  entry.users++;
  try {
    return await entry.gate.use(async () => {
      const name = await acquire(path, options).catch((error: unknown) => {
        if (options.evenWithoutRoom === true && isDiskFull(error)) return null;
        throw error;
      });
      try {
        return await work();
      } finally {
        if (name !== null) await unlink(join(path, name)).catch(() => undefined);
      }
    }, options.signal);
  } finally {
    if (--entry.users === 0) local.delete(path);
  }
}

async function acquire(path: string, options: LockOptions): Promise<string> {
  const name = ownName();
  const claim = join(dirname(path), name);
  try {
    await mkdir(claim);
    await writeFile(join(claim, name), "");
  } catch (error) {
    await rm(claim, { recursive: true, force: true });
    throw error;
  }
  let waited = false;
  for (let pause = POLL_MIN_MS; ; pause = Math.min(pause * 2, POLL_MAX_MS)) {
    try {
      await rename(claim, path);
      return name;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== "ENOTEMPTY" && code !== "EEXIST") {
        await rm(claim, { recursive: true, force: true });
        throw new MwError("environment", `cannot take the lock ${path}: ${code}`, { fix: "check that the data directory is writable", cause: error });
      }
    }
    const holders = await readdir(path).catch(() => []);
    for (const holder of holders) {
      if (!holderLives(holder)) await unlink(join(path, holder)).catch(() => undefined);
      else if (!waited) {
        waited = true;
        options.onWait?.(holder.split("-")[0] ?? "?");
      }
    }
    try {
      await systemRuntime.sleep(pause, options.signal);
    } catch (error) {
      await rm(claim, { recursive: true, force: true });
      throw error;
    }
  }
}
