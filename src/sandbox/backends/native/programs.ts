/** Where the native programs are: `dist-native/` of this package, beside `dist/` and `src/`. */
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { delimiter, join } from "node:path";
import { z } from "zod";
import { MwError } from "../../../core/errors.ts";

// This file is four levels below the package, in src/ as in dist/.
const DIRECTORY = fileURLToPath(new URL("../../../../dist-native/", import.meta.url));
const PROGRAMS = ["spawn", "init", "files", "tree", "oci"] as const;
type Program = (typeof PROGRAMS)[number];

export function missingPrograms(): readonly string[] {
  return ["spawn", "init", "oci", "syscalls.json"].filter((name) => !existsSync(join(DIRECTORY, name)));
}

/** Absolute paths of all programs; `environment` when one is not built. */
export function nativePrograms(): { readonly spawn: string; readonly init: string; readonly files: string | null; readonly tree: string | null; readonly oci: string } {
  const missing = missingPrograms();
  if (missing.length > 0) {
    throw new MwError("environment", `Sandboxes need native programs that are not built: ${missing.join(", ")} in ${DIRECTORY}`, { fix: "Run `npm run build`; it names what it needs." });
  }
  const path = (name: Program): string => join(DIRECTORY, name);
  const helper = (name: Program): string | null => (existsSync(path(name)) ? path(name) : null);
  return { spawn: path("spawn"), init: path("init"), files: helper("files"), tree: helper("tree"), oci: path("oci") };
}

/** System call numbers of this machine's architecture, written by the build from the compiler's headers. */
export function syscallNumbers(): Readonly<Record<string, number>> {
  return z.record(z.string(), z.int().nonnegative()).parse(JSON.parse(readFileSync(join(DIRECTORY, "syscalls.json"), "utf8")));
}

/** Absolute path of a program on PATH or where administrators' programs are. */
export function findProgram(name: string): string | null {
  const directories = [...(process.env["PATH"] ?? "").split(delimiter), "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
  return directories.map((directory) => join(directory, name)).find((path) => existsSync(path)) ?? null;
}
