/** Real machines for tests of harnesses: the small test image, with the host's bash in it or without, on the native backend with a data directory of its own. */
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { openNativeBackend } from "../../src/sandbox/index.ts";
import type { Sandbox, SandboxBackend, SandboxSpec } from "../../src/sandbox/sandbox.ts";
import { makeTestRoot } from "./rootfs.ts";

export interface Machines {
  readonly backend: SandboxBackend;
  /** A fresh machine that works in /work. Killed with all others by `close`. */
  make(shell: "bash" | "sh", spec?: Partial<SandboxSpec>): Promise<Sandbox>;
  close(): Promise<void>;
}

export async function openMachines(): Promise<Machines> {
  const home = mkdtempSync(join(tmpdir(), "mw-harness-home-"));
  const plain = makeTestRoot();
  const withBash = makeTestRoot();
  addProgram(withBash.directory, "/bin/bash");
  const backend = await openNativeBackend({ home });
  return {
    backend,
    make: async (shell, spec = {}) => await backend.create({ root: shell === "bash" ? { ...withBash.root, digest: `${withBash.root.digest}-bash` } : plain.root, workdir: "/work", ...spec }),
    close: async () => {
      await backend.close();
      plain.remove();
      withBash.remove();
      rmSync(home, { recursive: true, force: true });
    },
  };
}

/** Copies a program of the host with the libraries that it loads. */
function addProgram(root: string, path: string): void {
  const loaded = execFileSync("ldd", [path], { encoding: "utf8" }).matchAll(/(\/\S+) \(0x/g);
  for (const file of [path, ...[...loaded].map((match) => match[1] ?? "")]) {
    mkdirSync(dirname(join(root, file)), { recursive: true });
    copyFileSync(file, join(root, file));
  }
}
