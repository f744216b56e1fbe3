/** A small image for tests: busybox, a few users, and the attacker's toolbox of `probe.c`. Built once per process into a directory of its own. */
import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { RootFilesystem } from "../../src/sandbox/sandbox.ts";

const PASSWD = [
  "root:x:0:0:root:/root:/bin/sh",
  "daemon:x:1:1:daemon:/:/bin/false",
  "agent:x:1000:1000:agent:/home/agent:/bin/sh",
  "other:x:1001:1001:other:/home/other:/bin/sh",
  "nobody:x:65534:65534:nobody:/:/bin/false",
];
const GROUP = ["root:x:0:", "daemon:x:1:", "agent:x:1000:", "other:x:1001:", "shared:x:2000:agent", "nogroup:x:65534:"];

export interface TestRoot {
  readonly directory: string;
  readonly root: RootFilesystem;
  remove(): void;
}

/** Makes the image below `parent`, a directory that the caller may write and that everybody may search. */
export function makeTestRoot(parent: string = tmpdir()): TestRoot {
  const directory = mkdtempSync(join(parent, "mw-rootfs-"));
  chmodSync(directory, 0o755);
  for (const name of ["bin", "dev", "etc", "home/agent", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "usr/lib", "var/tmp", "etc/dir"]) {
    mkdirSync(join(directory, name), { recursive: true });
  }
  chmodSync(join(directory, "tmp"), 0o1777);
  chmodSync(join(directory, "root"), 0o700);
  const busybox = ["/bin/busybox", "/usr/bin/busybox"].find((path) => existsSync(path));
  if (busybox === undefined) throw new Error("The test image needs busybox (Debian: apt-get install busybox-static).");
  copyFileSync(busybox, join(directory, "bin/busybox"));
  chmodSync(join(directory, "bin/busybox"), 0o755);
  for (const applet of execFileSync(busybox, ["--list"], { encoding: "utf8" }).trim().split("\n")) {
    if (applet !== "busybox") symlinkSync("busybox", join(directory, "bin", applet));
  }
  copyFileSync(probeProgram(), join(directory, "bin/probe"));
  chmodSync(join(directory, "bin/probe"), 0o755);
  for (const name of SMALL_PROGRAMS) {
    copyFileSync(join(dirname(probeProgram()), name), join(directory, "bin", name));
    chmodSync(join(directory, "bin", name), 0o755);
  }
  writeFileSync(join(directory, "etc/passwd"), `${PASSWD.join("\n")}\n`);
  writeFileSync(join(directory, "etc/group"), `${GROUP.join("\n")}\n`);
  writeFileSync(join(directory, "etc/marker"), "image\n");
  writeFileSync(join(directory, "etc/dir/old"), "old\n");
  if (process.getuid?.() === 0) execFileSync("chown", ["-R", "1000:1000", join(directory, "home/agent")]);
  const root: RootFilesystem = {
    digest: `sha256:test-${process.pid}`,
    layers: [directory],
    parts: [],
    env: { PATH: "/bin:/usr/bin", IMAGE_SAYS: "hello" },
    workdir: "/",
    user: "",
    entrypoint: [],
    cmd: [],
  };
  return { directory, root, remove: () => rmSync(directory, { recursive: true, force: true }) };
}

/** Smaller than anything with a C library. */
const SMALL_PROGRAMS = ["eater", "filler"] as const;
let probe: string | null = null;

/** Compiled once per process, statically, so that it runs in any image. Gone with the test run. */
function probeProgram(): string {
  if (probe !== null) return probe;
  const directory = mkdtempSync(join(process.env["MW_HOME"] ?? tmpdir(), "mw-probe-"));
  const target = join(directory, "probe");
  const source = fileURLToPath(new URL("./probe.c", import.meta.url));
  execFileSync("gcc", ["-static", "-O2", "-D_GNU_SOURCE", source, "-o", target], { stdio: ["ignore", "inherit", "inherit"] });
  for (const name of SMALL_PROGRAMS) {
    execFileSync("gcc", ["-static", "-nostdlib", "-O2", fileURLToPath(new URL(`./${name}.c`, import.meta.url)), "-o", join(directory, name)], { stdio: ["ignore", "inherit", "inherit"] });
  }
  probe = target;
  return target;
}
