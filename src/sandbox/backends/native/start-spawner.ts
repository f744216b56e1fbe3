/** Starts the spawner of a data directory with the compiled system call filter, the capability mask and the paths of the other programs. */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { capabilityMask, loadCapabilitySets } from "./capabilities.ts";
import { nativePrograms, syscallNumbers } from "./programs.ts";
import { runDirectory } from "./run-directory.ts";
import { compileSeccomp, loadSeccompProfile } from "./seccomp.ts";
import { Spawner } from "./spawner.ts";

export async function startSpawner(home: string, options: { readonly graceMs?: number; readonly log?: (line: string) => void }): Promise<Spawner> {
  const programs = nativePrograms();
  const slirp = findProgram("slirp4netns");
  // The spawner has read the filter before it says hello.
  const directory = mkdtempSync(join(tmpdir(), "mw-filter-"));
  try {
    const seccompFile = join(directory, "filter");
    writeFileSync(seccompFile, compiledFilter());
    return await Spawner.start({
      program: programs.spawn,
      init: programs.init,
      ...(programs.files === null ? {} : { files: programs.files }),
      ...(programs.tree === null ? {} : { tree: programs.tree }),
      ...(slirp === null ? {} : { slirp }),
      dataDirectory: home,
      runDirectory: runDirectory(home),
      seccompFile,
      capabilities: capabilityMask(loadCapabilitySets()),
      ...options,
    });
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

let filter: Uint8Array | null = null;

/** Compiled once per process. */
function compiledFilter(): Uint8Array {
  filter ??= compileSeccomp(loadSeccompProfile(), { arch: process.arch === "arm64" ? "arm64" : "x64", syscalls: syscallNumbers() });
  return filter;
}

/** Absolute path of a program on PATH or where administrators' programs are. */
export function findProgram(name: string): string | null {
  const directories = [...(process.env["PATH"] ?? "").split(delimiter), "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
  return directories.map((directory) => join(directory, name)).find((path) => existsSync(path)) ?? null;
}
