/** Starts the spawner of a data directory with the compiled system call filter, the capability mask and the paths of the other programs, or takes one over that lost its controller. */
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import { findCriu } from "./criu/program.ts";
import { capabilityMask, loadCapabilitySets } from "./capabilities.ts";
import { findProgram, nativePrograms, syscallNumbers } from "./programs.ts";
import { runDirectory } from "./run-directory.ts";
import { compileSeccomp, loadSeccompProfile } from "./seccomp.ts";
import { NOTE_VERSION } from "./machine-note.ts";
import { Spawner, type SpawnerOptions } from "./spawner.ts";

interface StartOptions {
  readonly graceMs?: number;
  readonly log?: (line: string) => void;
}

/** How long the lock of a spawner that has ended is waited for, and how often it is tried. */
const LOCK_MS = 5_000;
const LOCK_TRY_MS = 20;

/** `previous`: pid of a spawner that has ended a moment ago, as far as can be told from outside. */
export async function startSpawner(home: string, options: StartOptions, previous: number | null = null): Promise<Spawner> {
  // The spawner has read the filter before it says hello.
  const directory = mkdtempSync(join(tmpdir(), "mw-filter-"));
  try {
    const seccompFile = join(directory, "filter");
    writeFileSync(seccompFile, compiledFilter());
    const complete = { ...spawnerOptions(home, options), seccompFile };
    for (let waited = 0; ; waited += LOCK_TRY_MS) {
      try {
        return await Spawner.start(complete);
      } catch (error) {
        if (!(error instanceof MwError) || error.code !== "busy" || previous === null || error.facts["pid"] !== previous || waited > LOCK_MS) throw error;
        await new Promise((resolve) => setTimeout(resolve, LOCK_TRY_MS));
      }
    }
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Machines that lost their controller, with their spawner; null when there are none that can be taken over. Rejects `busy` when their controller lives. */
export async function takeOverSpawner(home: string, options: StartOptions & { readonly graceMs: number }): Promise<{ readonly spawner: Spawner | null; readonly ended: number | null }> {
  return Spawner.takeOver({ ...spawnerOptions(home, options), graceMs: options.graceMs });
}

function spawnerOptions(home: string, options: StartOptions): Omit<SpawnerOptions, "seccompFile"> {
  const programs = nativePrograms();
  const slirp = findProgram("slirp4netns");
  const criu = findCriu();
  const made = {
    program: programs.spawn,
    init: programs.init,
    ...(programs.files === null ? {} : { files: programs.files }),
    ...(programs.tree === null ? {} : { tree: programs.tree }),
    ...(slirp === null ? {} : { slirp }),
    ...("path" in criu ? { criu: criu.path } : {}),
    capabilities: capabilityMask(loadCapabilitySets()),
  };
  return {
    ...made,
    dataDirectory: home,
    runDirectory: runDirectory(home),
    ...((options.graceMs ?? 0) > 0 ? { version: versionOf(made) } : {}),
    ...options,
  };
}

/** The same for controllers whose machines are the same to the last byte: others do not take each other's over. */
function versionOf({ capabilities, slirp = "", criu = "", ...programs }: Pick<SpawnerOptions, "program" | "init" | "files" | "tree" | "slirp" | "criu"> & { readonly capabilities: bigint }): string {
  const hash = createHash("sha256").update(`${NOTE_VERSION} ${capabilities} ${slirp} ${criu}`).update(compiledFilter());
  for (const path of Object.values(programs)) hash.update(readFileSync(path));
  return hash.digest("hex").slice(0, 32);
}

let filter: Uint8Array | null = null;

/** Compiled once per process. */
export function compiledFilter(): Uint8Array {
  filter ??= compileSeccomp(loadSeccompProfile(), { arch: process.arch === "arm64" ? "arm64" : "x64", syscalls: syscallNumbers() });
  return filter;
}
