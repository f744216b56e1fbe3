/** What the benches start from: a root file system of one static busybox, and a backend on a data directory of its own. */
import { copyFileSync, mkdirSync, symlinkSync } from "node:fs";
import { delimiter, join } from "node:path";
import { existsSync } from "node:fs";
import type { RootFilesystem } from "../src/sandbox/sandbox.ts";

/** Fills `directory` with a minimal root whose `/bin/true`, `sh`, `sleep` and `dd` are busybox. */
export function busyboxRoot(directory: string): RootFilesystem {
  const busybox = (process.env["PATH"] ?? "").split(delimiter).map((path) => join(path, "busybox")).find((path) => existsSync(path));
  if (busybox === undefined) throw new Error("busybox is missing (Debian: apt-get install busybox-static)");
  for (const name of ["bin", "dev", "etc", "proc", "sys", "tmp"]) mkdirSync(join(directory, name), { recursive: true });
  copyFileSync(busybox, join(directory, "bin/busybox"));
  for (const name of ["true", "sh", "sleep", "dd", "cat"]) symlinkSync("busybox", join(directory, "bin", name));
  return { digest: `dir:${directory}`, layers: [directory], parts: [], env: { PATH: "/bin" }, workdir: "/", user: "", entrypoint: [], cmd: [] };
}
