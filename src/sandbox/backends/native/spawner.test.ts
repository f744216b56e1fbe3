/** Real machines, made by the real spawner. They need root; the ordinary user's are in spawner-user.test.ts. */
import { spawn as spawnProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { basename, join } from "node:path";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type BareMachine, makeBareMachine, PROGRAMS, shell } from "../../../../test/support/native/bare-machine.ts";
import { Spawner, type SpawnerOptions } from "./spawner.ts";
import type { MachineEnded } from "./spawner-protocol.ts";

let bare: BareMachine;
let base: string;
let options: SpawnerOptions;
let spawner: Spawner | null = null;

const MiB = 1024 * 1024;
const create = (extra: Partial<Parameters<Spawner["create"]>[0]> & { id: string }) => get().create({ layers: [bare.root], ...extra });
const sh = (id: string, script: string): Promise<string> => shell(get().initSocket(id), script);

function get(): Spawner {
  if (!spawner) throw new Error("no spawner");
  return spawner;
}

beforeAll(() => {
  if (process.getuid?.() !== 0) throw new Error("These tests need root; the ordinary user's are in spawner-user.test.ts");
  bare = makeBareMachine();
});

afterAll(() => rmSync(join(bare.root, ".."), { recursive: true, force: true }));

async function start(extra: Partial<SpawnerOptions> = {}): Promise<Spawner> {
  base ??= mkdtempSync(join(tmpdir(), "mw-spawner-"));
  options = {
    program: PROGRAMS.spawn,
    init: bare.init,
    dataDirectory: join(base, "data"),
    runDirectory: `/run/manyworlds/${basename(base).slice(-6).toLowerCase().replaceAll(/[^a-z0-9]/g, "x")}`,
    log: () => undefined,
    ...extra,
  };
  spawner = await Spawner.start(options);
  return spawner;
}

afterEach(async () => {
  await spawner?.close();
  spawner = null;
});

/** What the spawner that lives has made beforehand for its next machines: its own until it ends, no trace of a machine. */
function spare(name: string): boolean {
  return spawner !== null && alive(spawner.hello.pid) && new RegExp(`^\\.?sbx-${spawner.hello.epoch}-\\d+$`).test(name) && existsSync(join(options.runDirectory, `.${name.replace(/^\./, "")}`));
}

/** Waits until everything is made that a spawner makes beforehand. */
async function prepared(): Promise<void> {
  const made = (): number => readdirSync(options.runDirectory).filter((name) => spare(name) && existsSync(join(options.runDirectory, name, "record"))).length;
  await until(() => made() === 16, "the spawner has made everything beforehand");
}

/** Everything that could be left: processes, control groups, files, mounts. */
function traces(): { processes: string[]; groups: string[]; files: string[]; mounts: string[] } {
  const name = basename(options.runDirectory);
  // Orphans that are dead wait for the host's first process; they have no program any more.
  const processes = readdirSync("/proc").filter((pid) => /^\d+$/.test(pid) && alive(Number(pid)) && ownGroup(pid).includes(`manyworlds-${name}`) && !spare(/\/(sbx-[0-9-]+)/.exec(ownGroup(pid))?.[1] ?? ""));
  const roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"];
  const groups = roots.map((root) => join(root, `manyworlds-${name}`)).filter((path) => existsSync(path));
  const inner = groups.flatMap((group) => readdirSync(group, { withFileTypes: true }).filter((entry) => entry.isDirectory() && !spare(entry.name)).map((entry) => join(group, entry.name)));
  const files = existsSync(options.runDirectory) ? readdirSync(options.runDirectory).filter((name) => !spare(name)) : [];
  const mounts = readFileSync("/proc/self/mountinfo", "utf8").split("\n").filter((line) => line.includes("manyworlds"));
  return { processes, groups: inner, files, mounts };
}

const NOTHING = { processes: [], groups: [], files: [], mounts: [] };

function ownGroup(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cgroup`, "utf8");
  } catch {
    return "";
  }
}

async function until(condition: () => boolean | Promise<boolean>, what: string, timeoutMs = 60_000): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`Timed out waiting until ${what}`);
    await sleep(10);
  }
}

function nextEnd(id: string): Promise<MachineEnded> {
  return new Promise((resolve) => {
    const stop = get().onEnded((ended) => {
      if (ended.id !== id) return;
      stop();
      resolve(ended);
    });
  });
}

/** Empty for what is dead, waited for or not. */
function programOf(pid: number): string {
  try {
    return readlinkSync(`/proc/${pid}/exe`);
  } catch {
    return "";
  }
}

const alive = (pid: number): boolean => programOf(pid) !== "";

/** Those of this spawner. */
function slirps(): number[] {
  const children = readFileSync(`/proc/${get().hello.pid}/task/${get().hello.pid}/children`, "utf8").trim().split(" ").map(Number);
  return children.filter((pid) => programOf(pid).endsWith("slirp4netns"));
}

function outsideAddresses(): string[] {
  return Object.values(networkInterfaces()).flatMap((list) => (list ?? []).filter((entry) => entry.family === "IPv4" && !entry.internal).map((entry) => entry.address));
}

describe("a machine", () => {
  test("is root over its own ids, files and processes, and over nothing else", async () => {
    await start();
    const created = await create({ id: "a", hostname: "box" });
    expect(created.uidBase).toBeGreaterThanOrEqual(1_000_000_000);
    const script = [
      "id -u; hostname; cat /proc/self/uid_map",
      "ls /proc | grep -c '^[0-9]'",
      "touch /f && chown 7:8 /f && stat -c '%u:%g' /f",
      "mount -t tmpfs x /tmp && echo MOUNTED; umount /dev && echo UNMOUNTED; mknod /n b 8 0 && echo MADE",
      "echo 1 > /proc/sys/kernel/panic && echo WROTE; hostname evil && echo RENAMED; echo x > /dev/.mw/init && echo WROTE",
      "cat /proc/self/status | head -60",
      "cat /proc/self/cgroup /proc/self/oom_score_adj",
    ].join("; ");
    const output = await sh("a", script);
    expect(output).toContain(`0\nbox\n         0 ${created.uidBase}      65536\n`);
    expect(output).toContain("7:8");
    expect(output).not.toMatch(/MOUNTED|UNMOUNTED|MADE|WROTE|RENAMED/);
    expect(output).toMatch(/CapBnd:\s+00000000a80425fb/);
    expect(output).toMatch(/NoNewPrivs:\s+1/);
    expect(output).not.toContain("manyworlds");
    expect(output).toMatch(/^500$/m);
    expect(readFileSync(`/proc/${get().hello.pid}/oom_score_adj`, "utf8")).not.toBe("500\n");
    await get().kill("a");
    expect(traces()).toEqual(NOTHING);
  });

  test("has neighbours that it cannot see, with ids of their own", async () => {
    await start();
    const [one, two] = await Promise.all([create({ id: "a" }), create({ id: "b" })]);
    expect(Math.abs(one.uidBase - two.uidBase)).toBeGreaterThanOrEqual(65536);
    await sh("a", "echo secret > /secret; echo secret > /dev/shm/secret; echo secret > /tmp/secret");
    expect(await sh("b", "ls / /tmp /dev/shm")).not.toContain("secret");
    expect(readdirSync(bare.root)).not.toContain("secret");
  });

  test("cannot be left by its root, neither by climbing nor with a mount namespace of its own", async () => {
    await start();
    for (const profile of ["userns", "namespaces"] as const) {
      await create({ id: profile, profile });
      const output = await sh(profile, "/bin/escape");
      expect(output).toContain("tried");
      expect(output).not.toContain("ESCAPED");
      // The attempts must have been possible at all: no filter is loaded here.
      expect(output.match(/own namespace/g)).toHaveLength(4);
    }
  });

  test("listens on low ports", async () => {
    await start();
    await create({ id: "a" });
    expect(await sh("a", "echo hello | nc -l -p 80 & until nc 127.0.0.1 80 </dev/null; do sleep 0.1; done")).toContain("hello");
  });

  test("in the namespaces profile has no user namespace, and /proc is closed", async () => {
    await start();
    const created = await create({ id: "a", profile: "namespaces" });
    expect(created.uidBase).toBe(0);
    const output = await sh("a", "cat /proc/self/uid_map; echo 1 > /proc/sys/kernel/panic && echo WROTE; head -c 1 /proc/kcore | wc -c; touch /f && echo TOUCHED; head -c 1 /proc/keys | wc -c");
    expect(output).toContain("4294967295");
    expect(output).toContain("TOUCHED");
    expect(output).not.toContain("WROTE");
    expect(output.match(/^0$/gm)).toHaveLength(2);
  });

  test("refuses what does not make sense, and leaves nothing of it", async () => {
    await start();
    await expect(create({ id: "../x" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "a", layers: [] })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "a", layers: ["/nowhere/at/all"] })).rejects.toMatchObject({ code: "not_found", message: expect.stringContaining("/nowhere/at/all") });
    await expect(create({ id: "a", workspace: "none" })).rejects.toMatchObject({ code: "not_found" });
    await expect(create({ id: "a", parts: [{ target: "/usr/../etc", layers: ["/usr"] }] })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(create({ id: "a", services: [{ port: 80, target: "relative" }] })).rejects.toMatchObject({ code: "invalid_input" });
    await create({ id: "a" });
    await expect(create({ id: "a" })).rejects.toMatchObject({ code: "conflict" });
    await expect(get().metrics("b")).rejects.toMatchObject({ code: "sandbox_gone" });
    await get().kill("a");
    await get().kill("a");
    expect(traces()).toEqual(NOTHING);
  });
});

describe("limits", () => {
  test("disk: a full scratch is ENOSPC, counted, and not the host's", async () => {
    await start();
    await create({ id: "a", diskBytes: 8 * MiB });
    expect(await sh("a", "dd if=/dev/zero of=/big bs=1M count=64")).toContain("No space left");
    const metrics = await get().metrics("a");
    expect(metrics.limits.disk_full).toBe(1);
    expect(metrics.diskBytes).toBeGreaterThan(7 * MiB);
    expect(metrics.diskBytes).toBeLessThanOrEqual(8 * MiB);
  });

  test("memory: files do not count, processes do", async () => {
    await start();
    await create({ id: "a", memoryBytes: 32 * MiB, diskBytes: 128 * MiB });
    expect(await sh("a", "dd if=/dev/zero of=/big bs=1M count=100 && echo WRITTEN")).toContain("WRITTEN");
    await sleep(200);
    expect((await get().metrics("a")).limits.oom_killed).toBe(0);
    // A shell variable grows in the shell's own memory.
    expect(await sh("a", "tail -c 100000000 /dev/zero; echo status $?")).toContain("status 137");
    expect((await get().metrics("a")).limits.oom_killed).toBeGreaterThan(0);
    expect(await sh("a", "echo ALIVE")).toContain("ALIVE");
  });

  test("processes: a fork bomb is held and counted", async () => {
    await start();
    await create({ id: "a", pids: 20 });
    const output = await sh("a", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do sleep 1000 </dev/null >/dev/null 2>&1 & done; echo done");
    expect(output).toMatch(/can't fork|Resource temporarily/i);
    const ended = nextEnd("a");
    await get().kill("a");
    expect((await ended).limits.pids).toBeGreaterThan(0);
    expect(traces()).toEqual(NOTHING);
  });

  test("cpu: a quota holds", async () => {
    await start();
    await create({ id: "a", cpus: 0.2 });
    void sh("a", "while true; do :; done").catch(() => undefined);
    const started = performance.now();
    const used = async (): Promise<number> => Number((await get().metrics("a")).cpuMs);
    await until(async () => (await used()) > 300, "it has used some time");
    expect(await used()).toBeLessThan(0.2 * (performance.now() - started) + 300);
  });
});

describe("the end of a machine", () => {
  test("a frozen machine stands still, thaws, and can be killed frozen", async () => {
    await start();
    await create({ id: "a" });
    void sh("a", "while true; do echo x >> /ticks; sleep 0.01; done").catch(() => undefined);
    const ticks = async (): Promise<number> => Number((await get().metrics("a")).cpuMs);
    await until(async () => (await ticks()) > 0, "it ticks");
    await get().freeze("a");
    const before = await ticks();
    await sleep(150);
    expect(await ticks()).toBe(before);
    await get().thaw("a");
    await until(async () => (await ticks()) > before, "it ticks again");
    await get().freeze("a");
    await get().kill("a");
    expect(traces()).toEqual(NOTHING);
  });

  test("a lease that is not renewed ends it; a renewed one does not", async () => {
    await start();
    await create({ id: "short", ttlMs: 60_000 });
    await create({ id: "long", ttlMs: 3000 });
    expect(await get().renew(["long", "nobody"], 600_000)).toEqual(["nobody"]);
    const ended = nextEnd("short");
    expect(await get().renew(["short"], 150)).toEqual([]);
    expect((await ended).reason).toBe("expired");
    await sleep(3000);
    expect((await get().list()).running).toEqual(["long"]);
  });

  test("an init that ends is reported as died", async () => {
    await start();
    const { pid } = await create({ id: "a" });
    const ended = nextEnd("a");
    process.kill(pid, "SIGKILL");
    expect((await ended).reason).toBe("died");
    expect(traces()).toEqual(NOTHING);
  });

  test("those made beforehand that were killed are given to nobody", async () => {
    await start();
    await prepared();
    const records = readdirSync(options.runDirectory).filter(spare).map((name) => readFileSync(join(options.runDirectory, name, "record"), "utf8"));
    const pids = records.map((record) => Number(record.split(" ")[0]));
    expect(pids).toHaveLength(16);
    for (const pid of pids) process.kill(pid, "SIGKILL");
    await until(() => pids.every((pid) => !alive(pid)), "they are gone");
    // Some are made now, one after the other, with others beside them.
    const ids = Array.from({ length: 20 }, (_, i) => `m${i}`);
    await Promise.all(ids.map((id) => create({ id, hostname: id })));
    expect(await Promise.all(ids.map((id) => sh(id, "hostname")))).toEqual(ids.map((id) => `${id}\n`));
    await Promise.all(ids.map((id) => get().kill(id)));
    await prepared();
    expect(traces()).toEqual(NOTHING);
  });

  test("200 machines leave nothing, neither in the spawner", async () => {
    await start();
    const open = (): number => readdirSync(`/proc/${get().hello.pid}/fd`).length;
    await create({ id: "warm" });
    await get().kill("warm");
    await prepared();
    const before = open();
    const mounts = (): string[] =>
      readFileSync(`/proc/${get().hello.pid}/mountinfo`, "utf8")
        .split("\n")
        .filter((line) => line.includes(options.runDirectory) && !spare(/\/([^/ ]+)\/s /.exec(line)?.[1] ?? ""));
    expect(mounts()).toEqual([]);
    for (let i = 0; i < 200; i++) {
      await create({ id: `m${i}`, memoryBytes: 64 * MiB, services: [{ port: 8080, target: "/tmp/none" }] });
      await get().kill(`m${i}`);
    }
    await prepared();
    expect(open()).toBe(before);
    expect(mounts()).toEqual([]);
    expect(traces()).toEqual(NOTHING);
    await get().close();
    expect(traces()).toEqual(NOTHING);
    expect(existsSync(options.runDirectory)).toBe(false);
  });
});

test("a host without descriptors refuses machines, loses none, and makes some again when there are", async () => {
  await start();
  await get().close();
  const program = join(base, "few-files");
  writeFileSync(program, `#!/bin/sh\nulimit -n 1024\nexec ${PROGRAMS.spawn} "$@"\n`, { mode: 0o755 });
  await start({ program });
  const made: string[] = [];
  const codes = new Set<string>();
  // What waits ready-made is given up with a failed creation, so the first failure need not be the last creation.
  for (let i = 0, failures = 0; failures < 20; i++) {
    expect(i).toBeLessThan(500);
    try {
      await create({ id: `m${i}` });
      made.push(`m${i}`);
      failures = 0;
    } catch (error) {
      codes.add((error as { readonly code: string }).code);
      failures++;
    }
  }
  expect([...codes]).toEqual(["host_exhausted"]);
  expect(made.length).toBeGreaterThan(100);
  for (const id of made.slice(0, 10)) await get().kill(id);
  for (let i = 0; i < 5; i++) await create({ id: `again${i}` });
  expect(await sh("again4", "echo ok")).toBe("ok\n");
  expect(await sh(made.at(-1) ?? "", "echo ok")).toBe("ok\n");
});

describe("sealed workspaces", () => {
  test("hold the files and start the next machine, under other ids", async () => {
    await start();
    const first = await create({ id: "a" });
    await sh("a", "mkdir /work; echo one > /work/f; chown 7:8 /work/f; rm /etc -r; ls -ln /work");
    expect((await get().seal("a")).bytes).toBeGreaterThan(0);
    expect(traces().processes).toEqual([]);
    expect((await get().list()).sealed).toEqual(["a"]);
    const second = await create({ id: "b", workspace: "a" });
    expect(second.uidBase).not.toBe(first.uidBase);
    expect(await sh("b", "cat /work/f; stat -c '%u:%g' /work/f; ls /; echo two > /work/f; cat /work/f")).toMatch(/one\n7:8\n[^]*two/);
    const third = create({ id: "c", workspace: "a" });
    await third;
    expect(await sh("c", "cat /work/f")).toBe("one\n");
    await get().releaseWorkspace("a");
    await expect(get().releaseWorkspace("a")).rejects.toMatchObject({ code: "sandbox_gone" });
    expect(await sh("b", "cat /work/f")).toBe("two\n");
    await get().seal("b");
    await create({ id: "d", workspace: "b" });
    expect(await sh("d", "cat /work/f")).toBe("two\n");
    for (const id of ["c", "d"]) await get().kill(id);
    await get().releaseWorkspace("b");
    expect(traces()).toEqual(NOTHING);
  });

  test("with a link on the way to a part's place do not show the host's files there", async () => {
    await start();
    mkdirSync(join(base, "secret", "inside"), { recursive: true });
    writeFileSync(join(base, "secret", "inside", "marker"), "the host's\n");
    await create({ id: "a" });
    await sh("a", `ln -s ${join(base, "secret")} /deep`);
    await get().seal("a");
    await create({ id: "b", workspace: "a", parts: [{ target: "/deep/inside", layers: [join(bare.root, "bin")] }] });
    const seen = await sh("b", "ls /deep/inside");
    expect(seen).toContain("busybox");
    expect(seen).not.toContain("marker");
    await get().kill("b");
    await get().releaseWorkspace("a");
  });
});

describe("services", () => {
  const servers: Server[] = [];
  afterEach(() => {
    for (const server of servers.splice(0)) server.close();
  });

  function target(name: string, onConnection: Parameters<typeof createServer>[1]): Promise<string> {
    const path = join(base, name);
    return new Promise((resolve) => {
      const server = createServer({ allowHalfOpen: true }, onConnection);
      servers.push(server);
      server.listen(path, () => resolve(path));
    });
  }

  test("carry bytes both ways, name the machine, and keep half-closed directions open", async () => {
    await start();
    const seen: string[] = [];
    const path = await target("echo.sock", (socket) => {
      let text = "";
      socket.setEncoding("utf8");
      socket.on("data", (chunk: string) => {
        text += chunk;
      });
      socket.on("error", () => undefined);
      socket.on("end", () => {
        seen.push(text.slice(0, text.indexOf("\n")));
        socket.end(`got ${text.length - text.indexOf("\n") - 1}\n`);
      });
    });
    await create({ id: "a", services: [{ port: 8080, target: path }, { port: 81, target: path }] });
    expect(await sh("a", "head -c 3000000 /dev/zero | nc 127.0.0.1 8080; echo x | nc 127.0.0.1 81")).toBe("got 3000000\ngot 2\n");
    expect(seen).toEqual(["MW1 a 8080", "MW1 a 81"]);
  });

  test("a slow reader inside holds the sender back, and a machine's end closes its connections", async () => {
    await start();
    let sent = 0;
    const state = { closed: false };
    const path = await target("flood.sock", (socket) => {
      const chunk = Buffer.alloc(65536, 120);
      const pump = (): void => {
        while (!state.closed && socket.write(chunk)) sent += chunk.length;
      };
      socket.on("drain", pump);
      socket.on("error", () => undefined);
      socket.on("close", () => {
        state.closed = true;
      });
      socket.resume();
      pump();
    });
    await create({ id: "a", services: [{ port: 8080, target: path }] });
    void sh("a", "nc 127.0.0.1 8080 | sleep 100").catch(() => undefined);
    await until(() => sent > 0, "bytes flow");
    let before = -1;
    await until(async () => {
      const same = before === sent;
      before = sent;
      await sleep(500);
      return same && before === sent;
    }, "the buffers are full");
    expect(sent).toBeLessThan(32 * MiB);
    await get().kill("a");
    await until(() => state.closed, "the connection is closed");
    expect(traces()).toEqual(NOTHING);
  });

  test("machines that hold all the connections they get leave neighbours theirs, and files to make machines with", async () => {
    const program = join(base ??= mkdtempSync(join(tmpdir(), "mw-spawner-")), "few-files");
    writeFileSync(program, `#!/bin/sh\nulimit -n 1024\nexec ${PROGRAMS.spawn} "$@"\n`, { mode: 0o755 });
    await start({ program });
    const held = new Map<string, number>();
    const path = await target("held.sock", (socket) => {
      socket.on("error", () => undefined);
      socket.once("data", (line: Buffer) => {
        const machine = line.toString().split(" ")[1] ?? "";
        held.set(machine, (held.get(machine) ?? 0) + 1);
        if (machine === "neighbour") socket.end("served\n");
      });
    });
    const services = [{ port: 8080, target: path }];
    const greedy = ["a", "b", "c", "d"];
    for (const id of greedy) {
      await create({ id, services });
      void sh(id, "i=0; while [ $i -lt 300 ]; do sleep 1000 | nc 127.0.0.1 8080 & i=$((i+1)); done; touch /asked; wait").catch(() => undefined);
    }
    for (const id of greedy) await sh(id, "while ! test -e /asked; do sleep 0.1; done");
    await until(() => greedy.every((id) => (held.get(id) ?? 0) >= 16), "each has what it is assured of");
    await create({ id: "neighbour", services });
    for (let round = 0; round < 20; round++) expect(await sh("neighbour", "echo x | nc 127.0.0.1 8080")).toBe("served\n");
    const all = greedy.reduce((sum, id) => sum + (held.get(id) ?? 0), 0);
    expect(all).toBeLessThanOrEqual(128 + 4 * 16);
  });

  test("a target that is not there is a reset, not a hang", async () => {
    await start();
    await create({ id: "a", services: [{ port: 8080, target: "/tmp/nobody-listens-here" }] });
    expect(await sh("a", "echo x | nc 127.0.0.1 8080; echo over")).toContain("over");
  });
});

describe("a public network", () => {
  const slirp = ["/usr/bin/slirp4netns", "/usr/local/bin/slirp4netns"].find((path) => existsSync(path));

  test("is up when creation is answered, reaches the host's addresses but not its loopback, and ends with the machine", async () => {
    expect(slirp, "apt-get install slirp4netns").toBeDefined();
    await start({ slirp: slirp ?? "" });
    expect(get().hello.publicNetwork).toBe(true);
    const server = createServer((socket) => socket.on("error", () => undefined).end("hello from outside\n"));
    const port = await new Promise<number>((resolve) => server.listen(0, "0.0.0.0", () => resolve((server.address() as AddressInfo).port)));
    try {
      await create({ id: "a", network: "public" });
      const output = await sh("a", `ip addr show tap0; cat /etc/resolv.conf; nc -w 2 10.0.2.2 ${port} </dev/null || echo LOOPBACK-REFUSED`);
      expect(output).toContain("inet 10.0.2.100/24");
      expect(output).toContain("nameserver 10.0.2.3");
      expect(output).not.toContain("hello from outside");
      for (const address of outsideAddresses()) expect(await sh("a", `nc -w 60 ${address} ${port} </dev/null`)).toBe("hello from outside\n");
      expect(slirps()).toHaveLength(1);
      await get().kill("a");
      expect(slirps()).toEqual([]);
      expect(traces().files).toEqual(["resolv.conf"]);
    } finally {
      server.close();
    }
  });

  test("that breaks ends the machine, which was promised one", async () => {
    await start({ slirp: slirp ?? "" });
    await create({ id: "a", network: "public" });
    const ended = nextEnd("a");
    expect(slirps()).toHaveLength(1);
    for (const pid of slirps()) process.kill(pid, "SIGKILL");
    expect((await ended).reason).toBe("lost");
  });

  test("starts whatever a workspace has for its resolver's configuration", async () => {
    await start({ slirp: slirp ?? "" });
    for (const [index, made] of ["ln -s /dev/null /etc/resolv.conf", "ln -s /dev/.mw/init /etc/resolv.conf", "ln -s /proc/1/comm /etc/resolv.conf", "mkdir /etc/resolv.conf", "ln -s resolv.conf /etc/resolv.conf", "mv /etc /gone; touch /etc"].entries()) {
      await create({ id: `a${index}` });
      await sh(`a${index}`, `rm -rf /etc/resolv.conf; ${made}`);
      await get().seal(`a${index}`);
      await create({ id: `b${index}`, workspace: `a${index}`, network: "public" });
      expect(await sh(`b${index}`, "echo ALIVE > /dev/null; echo ALIVE"), made).toBe("ALIVE\n");
      await get().kill(`b${index}`);
      await get().releaseWorkspace(`a${index}`);
    }
  });

  test("is carried by a process that has given up the host's files and root's power", async () => {
    await start({ slirp: slirp ?? "" });
    await create({ id: "a", network: "public" });
    const [pid] = slirps();
    const status = readFileSync(`/proc/${pid}/status`, "utf8");
    expect(BigInt(`0x${/^CapEff:\s*(\w+)/m.exec(status)?.[1]}`) & ~0x400n).toBe(0n);
    expect(status).toMatch(/^Seccomp:\s*2$/m);
    expect(existsSync(`/proc/${pid}/root/usr`)).toBe(false);
  });

  test("is refused without slirp4netns, with the command that installs it", async () => {
    await start();
    expect(get().hello.missing["public"]).toContain("apt-get install slirp4netns");
    await expect(create({ id: "a", network: "public" })).rejects.toMatchObject({ code: "unsupported" });
  });

  test("none: there is only loopback", async () => {
    await start({ slirp: slirp ?? "" });
    await create({ id: "a" });
    expect(await sh("a", "ip link | grep -c mtu; nc -w 1 10.0.2.2 80 </dev/null || echo UNREACHABLE")).toMatch(/^1\n[^]*UNREACHABLE/);
  });
});

describe("deaths", () => {
  test("the controller's end of file ends every machine and the spawner", async () => {
    await start();
    const pids = await Promise.all(["a", "b", "c"].map(async (id) => (await create({ id })).pid));
    await get().seal("c");
    await get().close();
    expect(pids.filter(alive)).toEqual([]);
    expect(traces()).toEqual(NOTHING);
    expect(existsSync(options.runDirectory)).toBe(false);
  });

  test("a controller that closes ends its machines, whatever grace they would have had without one", async () => {
    await start({ graceMs: 4000 });
    const { pid } = await create({ id: "a" });
    await get().close();
    expect(alive(pid)).toBe(false);
    expect(traces()).toEqual(NOTHING);
  });

  test("kill -9 of the spawner ends the machines; the next one sweeps and counts on", async () => {
    await start();
    const pids = await Promise.all(["a", "b"].map(async (id) => (await create({ id })).pid));
    await create({ id: "w" });
    await get().seal("w");
    const { epoch, pid } = get().hello;
    process.kill(pid, "SIGKILL");
    await get().exited;
    await expect(create({ id: "d" })).rejects.toMatchObject({ code: "sandbox_failed" });
    await until(() => pids.filter(alive).length === 0, "the machines are dead");
    await start();
    expect(get().hello.epoch).toBe(epoch + 1);
    expect(traces()).toEqual(NOTHING);
    await create({ id: "a" });
    expect(await sh("a", "echo ok")).toBe("ok\n");
  });

  test("machines that survive their spawner are swept", async () => {
    await start();
    const { pid } = await create({ id: "a" });
    // A stopped init cannot see the end of its lifeline.
    process.kill(pid, "SIGSTOP");
    process.kill(get().hello.pid, "SIGKILL");
    await get().exited;
    expect(alive(pid)).toBe(true);
    await start();
    expect(alive(pid)).toBe(false);
    expect(traces()).toEqual(NOTHING);
  });

  test("a killed spawner is over although what it left behind holds its stderr", async () => {
    const place = mkdtempSync(join(tmpdir(), "mw-holder-"));
    const program = join(place, "spawn");
    writeFileSync(program, `#!/bin/sh\nsleep 300 &\necho $! >${place}/pid\nexec ${PROGRAMS.spawn} "$@"\n`, { mode: 0o755 });
    await start({ program });
    const holder = Number(readFileSync(join(place, "pid"), "utf8"));
    try {
      process.kill(get().hello.pid, "SIGKILL");
      await get().exited;
      expect(alive(holder)).toBe(true);
    } finally {
      process.kill(holder, "SIGKILL");
      rmSync(place, { recursive: true, force: true });
    }
  });

  test("SIGTERM ends it in order", async () => {
    await start();
    await create({ id: "a" });
    process.kill(get().hello.pid, "SIGTERM");
    await get().exited;
    expect(traces()).toEqual(NOTHING);
  });

  test("a second spawner of the same data directory is told who is there", async () => {
    await start();
    const { pid } = get().hello;
    await expect(Spawner.start(options)).rejects.toMatchObject({ code: "busy", facts: { pid } });
    await create({ id: "a" });
  });

  test("garbage on its socket ends the connection and nothing worse", async () => {
    await start();
    for (const garbage of ["ffffffff0102", "0b00000001010000000100ffffff7f", "00000000", "0400000001000000"]) {
      const flags = ["--data", join(base, "other"), "--run", "/run/manyworlds/garbage", "--init", bare.init];
      const child = spawnProcess(PROGRAMS.spawn, flags, { stdio: ["ignore", "ignore", "pipe", "pipe"] });
      const channel = child.stdio[3] as Duplex;
      await once(channel, "data");
      channel.on("error", () => undefined).write(Buffer.from(garbage, "hex"));
      const [code] = await once(child, "exit");
      expect(code).toBe(0);
    }
  });
});
