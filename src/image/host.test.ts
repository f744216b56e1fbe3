import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { expect, it, onTestFinished } from "vitest";
import { python, temporaryDirectory } from "../../test/support/image-tools.ts";
import type { RootFilesystem } from "../sandbox/sandbox.ts";
import { etcEvents } from "./host-etc.ts";

function overlay(layers: readonly string[], index: number, target: string): string {
  return `mkdir -p "$0/u${index}" "$0/w${index}" && mount -t overlay none -o "lowerdir=${layers.join(":")},upperdir=$0/u${index},workdir=$0/w${index}" "$0/m${target}"`;
}

/** Mounts the root as a machine would on the host `of`, and runs the script in it, in a chroot. */
function inRoot(of: Host, root: RootFilesystem, script: string): string {
  const at = mkdtempSync(join(tmpdir(), "mw-host-"));
  const mounts = [`mount -t tmpfs none "$0" && mkdir "$0/m"`, overlay(root.layers, 0, ""), ...root.parts.map((part, index) => overlay(part.layers, index + 1, part.target))];
  try {
    return of.run("unshare", "-m", "sh", "-c", `${mounts.join(" && ")} && exec chroot "$0/m" /bin/sh -c "$1"`, at, script);
  } finally {
    rmSync(at, { recursive: true });
  }
}

interface Host {
  /** Rejects what does not end with 0. */
  run(program: string, ...args: readonly string[]): string;
}

/**
 * This host with what else is given, made by a shell: a mount namespace, in which `/opt` is empty and, as `/usr` where that is no overlay itself, can be written without a trace. Other tests make
 * the image `host` of this host at the same time, and a change would give it another digest.
 */
async function hostWith(script: string): Promise<Host> {
  const at = temporaryDirectory();
  const usr = OVERLAID ? "true" : `mkdir "$0/u" "$0/w" && mount -t overlay none -o "lowerdir=/usr,upperdir=$0/u,workdir=$0/w" /usr`;
  const holder = spawn("unshare", ["-m", "sh", "-c", `mount -t tmpfs none "$0" && ${usr} && mount -t tmpfs -o mode=755 none /opt && ${script} && echo ready && exec cat`, at], { stdio: ["pipe", "pipe", "inherit"] });
  onTestFinished(() => void holder.stdin.end());
  const [said] = (await once(holder.stdout, "data")) as [Buffer];
  expect(said.toString()).toBe("ready\n");
  return {
    run: (program, ...args) => {
      const result = spawnSync("nsenter", ["-t", String(holder.pid), "-m", program, ...args], { encoding: "utf8", env: { PATH: process.env["PATH"] ?? "", HOME: "/" } });
      if (result.status !== 0) throw new Error(result.stderr);
      return result.stdout;
    },
  };
}

const OVERLAID = statfsSync("/usr").type === 0x79_4c_76_30;

/** Resolves the image `host` twice over the data directory that is its argument. */
const RESOLVE = `
  import { openImageStore } from ${JSON.stringify(pathToFileURL(resolve("dist/image/index.js")).href)};
  const store = await openImageStore({ home: process.argv[1] });
  const image = await store.resolve("host");
  process.stdout.write(JSON.stringify({ digests: [image.digest, (await store.resolve("host")).digest], root: await store.rootFilesystem(image) }));`;

it("shows this machine's programs and none of its secrets, homes or data", async () => {
  // A data directory in the middle of what shows through must not.
  const home = `/opt/mw-host-test-${process.pid}`;
  const secret = `${OVERLAID ? "/opt" : "/usr/local"}/mw-test-secret-${process.pid}`;
  const host = await hostWith(`mkdir -p ${home}/runs && echo private > ${home}/runs/private && echo secret > ${secret} && chmod 600 ${secret}`);
  expect(host.run("cat", secret)).toBe("secret\n");
  const { digests, root } = JSON.parse(host.run(process.execPath, "--input-type=module", "-e", RESOLVE, home)) as { digests: string[]; root: RootFilesystem };
  expect(digests[0]).toMatch(/^host:[0-9a-f]{64}$/);
  expect(digests[1]).toBe(digests[0]);
  const output = inRoot(
    host,
    root,
    `set -e
    python3 -c 'print("python works")'; touch /usr/bin/new /etc/new && echo "writable"
    useradd -m somebody && id somebody >/dev/null && echo "useradd works"
    test ! -e ${secret} && test ! -e ${home} && ls /root /home/* 2>/dev/null | grep -v :; ls -A /tmp /srv /mnt /run
    cut -d: -f2 /etc/shadow | sort -u; stat -c '%a %U:%G' /etc/shadow /tmp /root`,
  );
  expect(output).toContain("python works\nwritable\nuseradd works\n");
  expect(output).toMatch(/640 root:shadow\n1777 root:root\n700 root:root/);
  // Every file that the machine sees was readable for everybody on the host, and none holds a private key.
  const found = inRoot(
    host,
    root,
    `python3 - <<'PY'
import os, re, stat
skip = re.compile(rb'^/(proc|sys|dev)(/|$)')
made = {b'/etc/shadow', b'/etc/gshadow'}
for base, dirs, files in os.walk(b'/'):
    dirs[:] = [d for d in dirs if not skip.match(os.path.join(base, d))]
    for name in files:
        path = os.path.join(base, name)
        s = os.lstat(path)
        if not stat.S_ISREG(s.st_mode):
            if not stat.S_ISLNK(s.st_mode): print('special', path)
            continue
        if not s.st_mode & 0o005 and path not in made: print('closed', path)
        if base.startswith(b'/etc') and re.search(rb'PRIVATE KEY-----', open(path, 'rb').read()): print('key', path)
PY`,
  );
  expect(found).toBe("");
  // Nothing of the host's own password hashes.
  const hashes = python(`print([l.split(':')[1] for l in open('/etc/shadow') if len(l.split(':')[1]) > 3][:1] or '')`).trim();
  expect(hashes === "" || !output.includes(hashes)).toBe(true);
});

it("copies of /etc what everybody may read and what is no secret", async () => {
  const etc = temporaryDirectory();
  chmodSync(etc, 0o755);
  const write = (path: string, text: string, mode = 0o644): void => {
    mkdirSync(join(etc, path, ".."), { recursive: true });
    writeFileSync(join(etc, path), text);
    chmodSync(join(etc, path), mode);
  };
  write("passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n+nis\n");
  write("group", "root:x:0:\nshadow:x:42:\n");
  write("shadow", "root:$y$hash:1::::::\n", 0o644);
  write("plain.conf", "a=1");
  write("closed.conf", "a=1", 0o640);
  write("open-key.pem", "-----BEGIN RSA PRIVATE KEY-----\nx");
  write("proxy.conf", 'Acquire::http::Proxy "http://me:pass@proxy:1";');
  write("ssh/ssh_host_ed25519_key", "x");
  write("app/.env", "TOKEN=1");
  write("closeddir/file", "x");
  chmodSync(join(etc, "closeddir"), 0o750);
  execFileSync("ln", [join(etc, "open-key.pem"), join(etc, "zz-hard-link")]);
  execFileSync("mkfifo", [join(etc, "pipe")]);
  const files = new Map<string, string>();
  let last = "";
  for await (const event of etcEvents(etc)) {
    if (event.type === "entry") files.set((last = event.entry.path.toString()), "");
    else files.set(last, files.get(last) + Buffer.from(event.bytes).toString());
  }
  expect([...files.keys()].sort()).toEqual(["etc", "etc/app", "etc/group", "etc/gshadow", "etc/hostname", "etc/machine-id", "etc/passwd", "etc/plain.conf", "etc/shadow", "etc/sudoers.d"]);
  expect(files.get("etc/shadow")).toBe("root:*:19000:0:99999:7:::\nalice:*:19000:0:99999:7:::\n");
  expect(files.get("etc/plain.conf")).toBe("a=1");
});
