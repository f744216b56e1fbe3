/** A root file system of one static program and an init that gives out shells: what the spawner's own tests run, so that they depend on no other part. */
import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, symlinkSync } from "node:fs";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const ROOT = join(import.meta.dirname, "../../..");
const APPLETS = ["sh", "cat", "ls", "id", "mount", "ps", "ip", "sleep", "dd", "rm", "mkdir", "touch", "chown", "stat", "nc", "wget", "head", "tail", "df", "wc", "ln", "hostname", "ping", "tr", "yes", "umount", "mknod", "chroot", "unshare", "nslookup", "su"];

export const PROGRAMS = {
  spawn: join(ROOT, "dist-native/spawn"),
  files: join(ROOT, "dist-native/files"),
  tree: join(ROOT, "dist-native/tree"),
};

export interface BareMachine {
  /** Directory to use as the only layer. */
  readonly root: string;
  readonly init: string;
}

/** Made below a directory that an ordinary user can read too. */
export function makeBareMachine(): BareMachine {
  const busybox = ["/bin/busybox", "/usr/bin/busybox"].find((path) => existsSync(path));
  if (busybox === undefined) throw new Error("These tests need a static busybox: apt-get install busybox-static");
  const base = mkdtempSync(join(tmpdir(), "mw-bare-"));
  chmodSync(base, 0o755);
  const root = join(base, "root");
  for (const directory of ["bin", "tmp", "root", "etc"]) mkdirSync(join(root, directory), { recursive: true });
  chmodSync(join(root, "tmp"), 0o1777);
  copyFileSync(busybox, join(root, "bin/busybox"));
  for (const applet of APPLETS) symlinkSync("busybox", join(root, "bin", applet));
  const init = join(base, "probe-init");
  execFileSync("gcc", ["-static", "-O2", "-o", init, join(import.meta.dirname, "probe-init.c")]);
  execFileSync("gcc", ["-static", "-O2", "-w", "-o", join(root, "bin/escape"), join(import.meta.dirname, "escape.c")]);
  return { root, init };
}

/** Runs shell lines in a machine and returns everything that they print. */
export function shell(socketPath: string, script: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = createConnection({ path: socketPath, allowHalfOpen: true });
    let output = "";
    socket.setEncoding("utf8");
    socket.on("data", (text: string) => {
      output += text;
    });
    socket.on("error", reject);
    socket.on("close", () => resolve(output));
    socket.on("end", () => socket.destroy());
    socket.write(`${script}\nexit\n`);
  });
}
