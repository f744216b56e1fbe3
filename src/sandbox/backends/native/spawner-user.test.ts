/** The spawner as an ordinary user: started as one through setpriv, with and without subordinate ids (bound over /etc in a mount namespace of its own). */
import { spawnSync } from "node:child_process";
import { chmodSync, chownSync, cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { type BareMachine, makeBareMachine, PROGRAMS, shell } from "../../../../test/support/native/bare-machine.ts";
import { Spawner } from "./spawner.ts";

/** No account of the host; the files made below give it a name. */
const USER = 54_321;
const MiB = 1024 * 1024;

let bare: BareMachine;
let base: string;
let spawner: Spawner | null = null;

beforeAll(() => {
  if (process.getuid?.() !== 0) throw new Error("These tests need root to become somebody else");
  bare = makeBareMachine();
  base = mkdtempSync(join(tmpdir(), "mw-user-"));
  chownSync(base, USER, USER);
  // The checkout may lie where an ordinary user cannot look.
  cpSync(PROGRAMS.spawn, join(base, "spawn"));
  chmodSync(join(base, "spawn"), 0o755);
  writeFileSync(join(base, "passwd"), `${readFileSync("/etc/passwd", "utf8")}mwtester:x:${USER}:${USER}::/:/bin/sh\n`);
  writeFileSync(join(base, "subid"), "mwtester:700000:65536\n");
});

afterEach(async () => {
  await spawner?.close();
  spawner = null;
});

afterAll(() => {
  for (const path of [base, join(bare.root, "..")]) rmSync(path, { recursive: true, force: true });
});

async function start(before: string): Promise<Spawner> {
  const program = join(base, "start");
  writeFileSync(program, `#!/bin/sh\n${before} exec setpriv --reuid=${USER} --regid=${USER} --clear-groups ${join(base, "spawn")} "$@"\n`);
  chmodSync(program, 0o755);
  spawner = await Spawner.start({ program, init: bare.init, dataDirectory: join(base, "data"), runDirectory: join(base, "run"), slirp: "/usr/bin/slirp4netns", log: () => undefined });
  return spawner;
}

/** Runs the rest of the script in a mount namespace of its own, after these commands. */
function inOwnMounts(commands: readonly string[]): string {
  return `[ -n "$MW_INNER" ] || { export MW_INNER=1; exec unshare --mount "$0" "$@"; }\n${commands.join(" && ")} &&`;
}

function withSubordinateIds(): string {
  return inOwnMounts([["passwd", "passwd"], ["subid", "subuid"], ["subid", "subgid"]].map(([from, to]) => `mount --bind ${join(base, from ?? "")} /etc/${to}`));
}

test("without subordinate ids there is one user inside, and a machine works", async () => {
  const { hello } = await start("");
  expect(hello).toMatchObject({ privileged: false, users: false, userns: true });
  expect(hello.missing["users"]).toContain("usermod --add-subuids");
  await spawner?.create({ id: "a", layers: [bare.root], diskBytes: 16 * MiB });
  const output = await shell(join(base, "run/a/init.sock"), "id -u; echo x > /f && rm -r /root && mkdir /root && ls -a /root | wc -l; chown 5 /f || echo REFUSED; mount -t tmpfs x /tmp || echo HELD");
  expect(output).toMatch(/^0\n2\n[^]*REFUSED[^]*HELD/);
  expect(await shell(join(base, "run/a/init.sock"), "dd if=/dev/zero of=/big bs=1M count=64")).toContain("No space left");
  await spawner?.kill("a");
  // But for what the spawner, which lives, has made beforehand.
  expect(readdirSync(join(base, "run")).filter((name) => !name.startsWith(".sbx-1-"))).toEqual([]);
});

test("with subordinate ids there are many, and a sealed workspace keeps owners", async () => {
  const { hello } = await start(withSubordinateIds());
  expect(hello).toMatchObject({ privileged: false, users: true, userns: true });
  await spawner?.create({ id: "a", layers: [bare.root] });
  expect(await shell(join(base, "run/a/init.sock"), "echo x > /f; chown 7:8 /f; stat -c '%u:%g' /f; cat /proc/self/uid_map")).toMatch(/^7:8\n +0 +0 +1\n +1 +1 +65535\n/);
  await spawner?.seal("a");
  await spawner?.create({ id: "b", layers: [bare.root], workspace: "a" });
  expect(await shell(join(base, "run/b/init.sock"), "stat -c '%u:%g' /f; rm /f; ls /f")).toMatch(/^7:8\nls: /);
  await spawner?.close();
  expect(existsSync(join(base, "run"))).toBe(false);
});

test("a public network works without root where the tun device is everybody's, and says so where it is not", async () => {
  const device = join(base, "tun");
  spawnSync("mknod", [device, "c", "10", "200"]);
  chmodSync(device, 0o600);
  const { hello } = await start(inOwnMounts([`mount --bind ${device} /dev/net/tun`]));
  expect(hello.publicNetwork).toBe(false);
  expect(hello.missing["public"]).toContain("chmod 666 /dev/net/tun");
  await expect(spawner?.create({ id: "a", layers: [bare.root], network: "public" })).rejects.toMatchObject({ code: "unsupported" });
  await spawner?.close();

  chmodSync(device, 0o666);
  await start(inOwnMounts([`mount --bind ${device} /dev/net/tun`]));
  await spawner?.create({ id: "a", layers: [bare.root], network: "public" });
  const output = await shell(join(base, "run/a/init.sock"), "ip addr show tap0; cat /etc/resolv.conf");
  expect(output).toContain("inet 10.0.2.100/24");
  expect(output).toContain("nameserver 10.0.2.3");
});

test("parts make the host's root usable, whose mounts cannot be one overlay", async () => {
  await start("");
  await spawner?.create({ id: "a", layers: [bare.root], parts: [{ target: "/usr", layers: ["/usr"] }] });
  expect(await shell(join(base, "run/a/init.sock"), "ls /usr/bin/env; echo x > /usr/mine && cat /usr/mine; stat -c %a /usr")).toBe("/usr/bin/env\nx\n755\n");
});
