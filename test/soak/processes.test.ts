/**
 * Machines kept, copied and paused with their processes, by a CRIU that is built here from Debian's source. What runs inside goes on as if nothing had happened, in the source
 * and in every copy; whatever fails, the source goes on.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { openImageStore } from "../../src/image/index.ts";
import { openNativeBackend, type Exec, type ForkResult, type NativeBackend, type RootFilesystem, type Sandbox, type SandboxSpec } from "../../src/sandbox/index.ts";
import { sh, until } from "../conformance/sandbox/fixture.ts";
import { killing } from "../support/helper-kills.ts";
import { leftoversAfter } from "../support/leftovers.ts";

const BUILD = fileURLToPath(new URL("../../scripts/build-criu.mjs", import.meta.url));
const KINDS = readFileSync(new URL("./processes-kinds.py", import.meta.url), "utf8");

let base = "";
let home = "";
let backend: NativeBackend;
let root: RootFilesystem;
const made: Sandbox[] = [];

beforeAll(async () => {
  const built = spawnSync(process.execPath, [BUILD], { encoding: "utf8" });
  expect(built.status, built.stderr).toBe(0);
  process.env["MW_CRIU"] = built.stdout.trim();
  base = mkdtempSync(join(tmpdir(), "mw-processes-"));
  home = join(base, "home");
  mkdirSync(home);
  const images = await openImageStore({ home, aliases: {}, cwd: base, env: process.env });
  root = await images.rootFilesystem(await images.resolve("host"));
  backend = await openNativeBackend({ home });
  expect(backend.capabilities.missing["memorySnapshot"]).toBe("");
  expect(backend.capabilities.memorySnapshot).toBe(true);
}, 1_800_000);
afterEach(async () => {
  await Promise.all(made.splice(0).map((sandbox) => sandbox.kill()));
  for (const { id } of await backend.snapshots.list()) await backend.snapshots.remove(id);
});
afterAll(async () => {
  await backend.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

async function machine(spec: Partial<SandboxSpec> = {}): Promise<Sandbox> {
  const sandbox = await backend.create({ root, checkpointable: true, memoryBytes: 512 << 20, ...spec });
  made.push(sandbox);
  return sandbox;
}

function children(results: readonly ForkResult[]): readonly Sandbox[] {
  return results.map((result) => {
    if (!result.ok) throw result.error;
    made.push(result.sandbox);
    return result.sandbox;
  });
}

/** A program that answers lines, asked one after the other over one attachment. */
class Session {
  readonly exec: Exec;
  readonly #output: AsyncIterator<{ readonly data: Uint8Array }>;
  #heard = "";

  constructor(exec: Exec) {
    this.exec = exec;
    this.#output = exec.output[Symbol.asyncIterator]();
  }

  static async open(sandbox: Sandbox, command: readonly string[] = ["/bin/bash"], more: { readonly user?: string } = {}): Promise<Session> {
    return new Session(await sandbox.exec({ command, openStdin: true, ...more }));
  }

  static async attach(sandbox: Sandbox, { exec }: Session): Promise<Session> {
    return new Session(await sandbox.attach(exec.id));
  }

  /** What comes up to `end`, without it. */
  async hear(end: string): Promise<string> {
    for (;;) {
      const at = this.#heard.indexOf(end);
      if (at >= 0) {
        const before = this.#heard.slice(0, at);
        this.#heard = this.#heard.slice(at + end.length);
        return before;
      }
      const next = await this.#output.next();
      if (next.done === true) throw new Error(`It ended after ${JSON.stringify(this.#heard)}`);
      this.#heard += Buffer.from(next.value.data).toString();
    }
  }

  async ask(line: string): Promise<string> {
    await this.exec.writeStdin(`${line}; echo "<over>"\n`);
    return (await this.hear("<over>\n")).trimEnd();
  }
}

describe("what runs goes on", () => {
  test("a session keeps its variables and its attachment, in the source and in machines from the snapshot", async () => {
    const source = await machine({ hostname: "source" });
    const session = await Session.open(source);
    expect(await session.ask("V=secret; cd /tmp; echo on disk > f; echo $V")).toBe("secret");
    const { snapshot, method } = await source.snapshot({ memory: true, name: "session" });
    expect([method, snapshot.memory]).toEqual(["dumped", true]);
    expect(snapshot.bytes).toBeGreaterThan(100_000);
    expect(await session.ask("echo $V $(pwd); V=changed; echo changed > f")).toBe("secret /tmp");
    for (const name of ["one", "two"]) {
      const restored = await machine({ snapshot: "session", hostname: name });
      const other = await Session.attach(restored, session);
      expect(await other.hear("<over>\n")).toBe("secret\n");
      expect(await other.ask("echo $V $(pwd) $(cat f) $(hostname)")).toBe(`secret /tmp on disk ${name}`);
      expect(await other.ask("echo $$")).toBe(await session.ask("echo $$"));
      await other.exec.kill("SIGTERM");
      await other.exec.closeStdin();
      expect((await other.exec.exit).ended).toBe("exited");
    }
    expect(await session.ask("echo $V $(cat f)")).toBe("changed changed");
    const files = await machine({ snapshot: "session", snapshotFilesOnly: true });
    expect((await sh(files, "cat /tmp/f; ps -e -o comm= | grep -c bash")).out).toBe("on disk\n0\n");
  });

  test.each(["while :; do /bin/true; done", "exec python3 -c 'import subprocess\nwhile True: subprocess.run([\"/bin/true\"])'"])("a program that starts others without end is kept whenever it is asked for: %s", async (command) => {
    const sandbox = await machine();
    await sandbox.exec({ command });
    for (let round = 0; round < 30; round++) {
      const { snapshot, method } = await sandbox.snapshot({ memory: true });
      expect(method).toBe("dumped");
      await backend.snapshots.remove(snapshot.id);
    }
    await sandbox.pause({ memory: true });
    await sandbox.resume();
    expect((await sh(sandbox, "echo here")).out).toBe("here\n");
  });

  test("children have the processes and names, ids, randomness and services of their own", async () => {
    const callers: string[] = [];
    const path = join(base, "service.sock");
    const server = createServer((socket) => {
      let heard = "";
      socket.on("data", (data) => {
        heard += data.toString();
        // The preface says who is asking, whatever the caller says after it.
        const caller = /^MW1 (\S+).*\nx\n/.exec(heard)?.[1];
        if (caller === undefined) return;
        callers.push(caller);
        socket.end("answer\n");
      });
      socket.on("error", () => undefined);
    });
    await new Promise<void>((resolve) => server.listen(path, resolve));
    try {
      const services = [{ port: 7000, target: path }];
      const source = await machine({ hostname: "source", services });
      const session = await Session.open(source);
      await session.ask("exec 3<> /dev/tcp/127.0.0.1/7000; V=1; call() { exec 4<> /dev/tcp/127.0.0.1/7000; echo x >&4; cat <&4; }");
      const kids = children(await source.fork(4, { memory: true }));
      const sessions = await Promise.all(kids.map(async (kid) => Session.attach(kid, session)));
      for (const kid of sessions) await kid.hear("<over>\n");
      const look = "echo $V $(hostname) $(head -c 8 /dev/urandom | od -An -tx1 | tr -d ' ')";
      const seen = await Promise.all(sessions.map(async (kid) => (await kid.ask(look)).split(" ")));
      expect(seen.map(([variable, host]) => [variable, host])).toEqual(kids.map(({ id }) => ["1", id]));
      // Randomness comes last.
      expect(new Set(seen.map((row) => row.at(-1))).size).toBe(4);
      const ids = await Promise.all(kids.map(async (kid) => (await sh(kid, "cat /etc/hostname /etc/machine-id")).out.trim().split("\n")));
      expect(ids.map(([name]) => name)).toEqual(kids.map(({ id }) => id));
      expect(new Set(ids.map(([, id]) => id)).size).toBe(4);
      for (const kid of sessions) expect(await kid.ask("call")).toBe("answer");
      expect([...callers].sort()).toEqual(kids.map(({ id }) => id).sort());
      // The connection that was open leads to nobody in a child, and still to the service in the source.
      expect(await sessions[0]?.ask("echo x >&3; timeout 5 cat <&3 2>&1")).not.toContain("answer");
      expect(await session.ask("echo x >&3; cat <&3")).toBe("answer");
      expect(callers.at(-1)).toBe(source.id);
    } finally {
      server.close();
    }
  });

  test("sockets, pipes, terminals, threads, timers, files without a name, shared memory, other users' processes, orphans", async () => {
    const source = await machine();
    await source.files.write("/tmp/kinds.py", KINDS);
    const session = await Session.open(source, ["/usr/bin/python3", "/tmp/kinds.py"]);
    await session.hear("ready\n");
    const terminal = new Session(await source.exec({ command: ["/bin/bash", "--norc", "-i"], pty: { columns: 90, rows: 30 } }));
    await terminal.exec.writeStdin("PS1=; V=tty; echo set\n");
    await terminal.hear("\nset\r\n");
    const user = await Session.open(source, ["/bin/bash"], { user: "65534:65534" });
    await user.ask("V=nobody");
    // Their sessions' leaders are gone: of a shell that ended, and of a daemon.
    await sh(source, "(nohup sh -c 'while :; do date +%s%N > /tmp/orphan; sleep 0.01; done' > /dev/null 2>&1 &)");
    await sh(source, "setsid sh -c '(while :; do date +%s%N > /tmp/daemon; sleep 0.01; done) > /dev/null 2>&1 < /dev/null &'");
    const { snapshot } = await source.snapshot({ memory: true });
    const restored = await machine({ snapshot: snapshot.id });
    for (const of of [source, restored]) {
      const kinds = of === source ? session : await Session.attach(of, session);
      if (of === restored) await kinds.hear("ready\n");
      await kinds.exec.writeStdin("check\n");
      expect(JSON.parse(await kinds.hear("\n"))).toEqual({ tcp: "over", listener: "accepted", pipe: "piped", pair: "paired", memfd: "memfd", gone: "no name", shm: "shared", thread: true, timer: true, epoll: true });
      const screen = of === source ? terminal : await Session.attach(of, terminal);
      await screen.exec.writeStdin("echo $V $(stty size)-\n");
      await screen.hear("tty 30 90-\r\n");
      const other = of === source ? user : await Session.attach(of, user);
      if (of === restored) await other.hear("<over>\n");
      expect(await other.ask("echo $V $(id -u)")).toBe("nobody 65534");
      for (const name of ["orphan", "daemon"]) {
        const before = (await sh(of, `cat /tmp/${name}`)).out;
        await until(`the ${name} goes on`, async () => (await sh(of, `cat /tmp/${name}`)).out !== before);
      }
    }
  });

  test("pauses keep the processes, and whoever is attached stays so", async () => {
    const sandbox = await machine();
    const session = await Session.open(sandbox);
    await session.ask("V=kept; echo shared > /dev/shm/f");
    for (let i = 0; i < 3; i++) {
      await sandbox.pause({ memory: true });
      expect(sandbox.state).toBe("paused");
      const asked = session.ask("echo $V $(cat /dev/shm/f)");
      await sandbox.resume();
      expect(await asked).toBe("kept shared");
      expect((await sh(sandbox, "echo $0")).code).toBe(0);
    }
    await sandbox.pause({ memory: true });
    await sandbox.kill();
    expect((await session.exec.exit).ended).toBe("lost");
    expect(await backend.snapshots.list()).toEqual([]);
  });

  test("an archive holds them, for another data directory", async () => {
    const source = await machine();
    const session = await Session.open(source);
    await session.ask("V=travelled");
    const { snapshot } = await source.snapshot({ memory: true });
    const file = join(base, "snapshot.mws");
    await backend.snapshots.export(snapshot.id, file);
    const elsewhere = join(base, "elsewhere");
    mkdirSync(elsewhere);
    const other = await openNativeBackend({ home: elsewhere });
    try {
      await other.snapshots.import(file, { name: "imported" });
      const restored = await other.create({ root, snapshot: "imported" });
      const attached = await Session.attach(restored, session);
      await attached.hear("<over>\n");
      expect(await attached.ask("echo $V")).toBe("travelled");
    } finally {
      await other.close();
    }
    expect(await leftoversAfter(elsewhere)).toEqual([]);
  });
});

describe("what fails leaves the source as it was", () => {
  test("what cannot be met is refused with its reason, and nothing stands still", async () => {
    const plain = await machine({ checkpointable: false });
    for (const refused of [plain.snapshot({ memory: true }), plain.fork(1, { memory: true }), plain.pause({ memory: true })]) await expect(refused).rejects.toMatchObject({ code: "unsupported", message: expect.stringContaining("checkpointable") });
    const sandbox = await machine();
    const session = await Session.open(sandbox);
    await sandbox.freeze();
    await expect(sandbox.snapshot({ memory: true })).rejects.toMatchObject({ code: "conflict" });
    await sandbox.thaw();
    // A file system's events have no form that could be kept while the file has no name any more.
    await session.ask("V=here");
    await sh(sandbox, "echo x > /tmp/a; ln /tmp/a /tmp/b");
    const holder = await Session.open(sandbox, ["/usr/bin/python3", "-c", "import os,sys; f=open('/tmp/a'); os.unlink('/tmp/a'); print('<over>', flush=True); sys.stdin.read()"]);
    await holder.hear("<over>\n");
    await expect(sandbox.snapshot({ memory: true })).rejects.toMatchObject({ code: "unsupported", message: expect.stringMatching(/cannot be kept: .*CRIU failed: .*link/) });
    expect(await session.ask("echo $V")).toBe("here");
    expect(await backend.snapshots.list()).toEqual([]);
  });

  test("CRIU is killed at any moment of keeping: the source goes on, nothing is listed", async () => {
    let sandbox = await machine();
    let session = await Session.open(sandbox);
    await session.ask("V=alive");
    let [killed, survived] = [0, 0];
    for (let afterMs = 0; afterMs < 60; afterMs += 3) {
      const { killed: hit, result: taken } = await killing(home, "criu", afterMs, () => sandbox.snapshot({ memory: true }));
      if (hit) {
        killed++;
        if (taken.status === "rejected") expect(taken.reason).toMatchObject({ code: "sandbox_failed", message: expect.stringContaining("killed") });
      } else if (taken.status === "rejected") throw taken.reason;
      if (taken.status === "fulfilled") await backend.snapshots.remove(taken.value.snapshot.id);
      expect(await backend.snapshots.list()).toEqual([]);
      // Where it was killed in the moment in which it runs its code in a process, that process ends: which is told, as of any other. All others go on.
      const goesOn = await session.ask("echo $V").catch(() => null);
      if (goesOn === null) {
        await Promise.race([session.exec.exit, sandbox.ended]);
        await sandbox.kill();
        sandbox = await machine();
        session = await Session.open(sandbox);
        await session.ask("V=alive");
        continue;
      }
      expect(goesOn).toBe("alive");
      if (hit) survived++;
    }
    expect(killed).toBeGreaterThan(3);
    expect(survived).toBeGreaterThan(killed / 3);
    // And it can still be kept.
    expect((await sandbox.snapshot({ memory: true })).method).toBe("dumped");
  });

  test("CRIU is killed at any moment of restoring: the creation fails, and leaves nothing", async () => {
    const source = await machine();
    const session = await Session.open(source);
    await session.ask("V=1");
    const { snapshot } = await source.snapshot({ memory: true });
    let killed = 0;
    for (let afterMs = 0; afterMs < 60; afterMs += 2) {
      const { killed: hit, result: created } = await killing(home, "criu", afterMs, () => machine({ snapshot: snapshot.id }));
      if (hit && created.status === "rejected") {
        killed++;
        expect(created.reason).toMatchObject({ code: "sandbox_failed" });
      } else if (created.status === "rejected") throw created.reason;
      else await created.value.kill();
    }
    expect(killed).toBeGreaterThan(2);
    expect((await backend.list()).map(({ id }) => id)).toEqual([source.id]);
    expect(await session.ask("echo $V")).toBe("1");
    const restored = await machine({ snapshot: snapshot.id });
    expect((await sh(restored, "echo works")).out).toBe("works\n");
  });

  test("a full disk, and a machine that ends meanwhile", async () => {
    const small = join(base, "small");
    mkdirSync(small);
    expect(spawnSync("mount", ["-t", "tmpfs", "-o", "size=2m", "tmpfs", small]).status).toBe(0);
    const other = await openNativeBackend({ home: join(base, "beside"), snapshotsHome: small });
    try {
      const sandbox = await other.create({ root, checkpointable: true });
      const session = await Session.open(sandbox, ["/usr/bin/python3", "-c", "import os,sys\nx=os.urandom(8<<20)\nprint('<over>',flush=True)\nfor l in sys.stdin: print(len(x)); print('<over>', flush=True)"]);
      await session.hear("<over>\n");
      await expect(sandbox.snapshot({ memory: true })).rejects.toMatchObject({ code: "host_exhausted" });
      await expect(sandbox.pause({ memory: true })).rejects.toMatchObject({ code: "host_exhausted" });
      expect(await session.ask("")).toBe(String(8 << 20));
      expect(await other.snapshots.list()).toEqual([]);
      const dying = [sandbox.snapshot({ memory: true }), sandbox.kill()];
      await Promise.allSettled(dying);
      expect((await sandbox.ended).reason).toBe("killed");
    } finally {
      await other.close();
      expect(spawnSync("umount", [small]).status).toBe(0);
    }
    expect(await leftoversAfter(join(base, "beside"))).toEqual([]);
  });

  test("garbage for processes is refused, and leaves nothing", async () => {
    const source = await machine();
    const session = await Session.open(source);
    await session.ask("V=1");
    const { snapshot } = await source.snapshot({ memory: true });
    const directory = join(home, "snapshots/memory", snapshot.id);
    const names = readdirSync(directory).filter((name) => name.endsWith(".img"));
    expect(names.length).toBeGreaterThan(10);
    for (const name of names) {
      const path = join(directory, name);
      const whole = readFileSync(path);
      for (const broken of [Buffer.alloc(0), whole.subarray(0, 9), Buffer.from(whole.map((byte, at) => (at < 8 ? byte : byte ^ 0x5a))), null]) {
        if (broken === null) rmSync(path);
        else writeFileSync(path, broken);
        // Wrong bytes in some part may do no harm; what is made then is a machine.
        await machine({ snapshot: snapshot.id }).then(
          (restored) => restored.kill(),
          (error: unknown) => expect(error).toMatchObject({ code: broken?.length === whole.length ? "sandbox_failed" : "corrupt" }),
        );
      }
      writeFileSync(path, whole);
    }
    await (await machine({ snapshot: snapshot.id })).kill();
    expect(await session.ask("echo $V")).toBe("1");
    expect((await backend.list()).map(({ id }) => id)).toEqual([source.id]);
    expect(existsSync(directory)).toBe(true);
  });
});
