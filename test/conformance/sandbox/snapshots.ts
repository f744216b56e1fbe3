/** Machines that are kept, copied and taken back: files exact through any chain of it, the source always goes on. */
import { appendFileSync, existsSync, mkdtempSync, readFileSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { join } from "node:path";
import { afterEach, expect } from "vitest";
import type { ForkResult, Sandbox } from "../../../src/sandbox/sandbox.ts";
import { fixture, sh, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

/** Makes one of everything that a file system can hold, over what the image has. */
const MAKE = (users: boolean, filecaps = true): string => `mkdir -p /w/empty /w/d; cd /w
  echo data > plain; chmod 4751 plain; ln plain hard; ln -s /nowhere sym; ln -s "$(printf 'l\\377')" odd-target; mkfifo -m 620 fifo; printf x > "$(printf 'odd\\377\\n name')"
  probe holes sparse; : > zero; chmod 1777 d; echo changed > /etc/marker; touch d/.wh.keep; mkdir -p a/b/c/d/e; echo deep > a/b/c/d/e/f
  probe setxattr plain user.note hello; cp /bin/busybox capped; ${filecaps ? "probe filecap capped 10" : ""}
  rm /etc/group; rm -r /etc/dir; mkdir /etc/dir; touch /etc/dir/new; rm -r /home/agent; ln -s /etc /home/agent; touch -d @1000000000 plain; touch -h -d @1000000001 sym
  ${users ? "chown 1000:2000 a/b; chown -h 1234:77 sym; chmod 2755 a/b" : ""}`;
/** But for what is each machine's own. */
const LOOK = `cd /w; find . /etc /home | grep -v -e /etc/machine-id -e /etc/host | LC_ALL=C sort | while IFS= read -r f; do stat -c '%N %a %u:%g %F %h' "$f"; [ -f "$f" ] && [ ! -L "$f" ] && md5sum < "$f"; done
  stat -c '%s %b' sparse; probe getxattr plain user.note; probe getxattr capped security.capability; [ plain -ef hard ] && echo same; ls | od -c`;

async function look(sandbox: Sandbox): Promise<string> {
  const { out, err, code } = await sh(sandbox, LOOK);
  expect(code, err).toBe(0);
  // To the nanosecond, which no program of the image shows.
  const times = (await sandbox.files.list("/w")).map(({ path, mtimeNs }) => `${text(path)} ${mtimeNs}`).sort();
  return `${out}${times.join("\n")}`;
}

function children(results: readonly ForkResult[]): readonly Sandbox[] {
  return results.map((result) => {
    if (!result.ok) throw result.error;
    return result.sandbox;
  });
}

export function snapshotSuite(options: ConformanceOptions): void {
  const { machine, backend, having } = fixture(options);
  const kept = having("snapshot", async () => {
    const sandbox = await machine();
    for (const asked of [() => sandbox.snapshot(), () => sandbox.fork(1), () => sandbox.pause(), () => machine({ snapshot: "any" })]) await expect(asked()).rejects.toMatchObject({ code: "unsupported" });
    expect(await backend().snapshots.list()).toEqual([]);
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });
  const servers: Server[] = [];
  afterEach(() => {
    for (const server of servers.splice(0)) server.close();
  });
  const users = (): boolean => backend().capabilities.users;

  kept("what is written is exact in a restored machine, in children, and after pauses, several times over", async () => {
    const one = await machine();
    await sh(one, MAKE(users()));
    const before = await look(one);
    expect(before).toContain("same");
    const { snapshot } = await one.snapshot({ name: "exact", labels: { a: "b" } });
    expect(snapshot).toMatchObject({ name: "exact", memory: false, sandbox: one.id, labels: { a: "b" }, pausedSandbox: null, imageDigest: options.root().digest });
    expect(snapshot.bytes).toBeGreaterThan(1_000_000);
    expect(await look(one)).toBe(before);
    const restored = await machine({ snapshot: "exact" });
    expect(await look(restored)).toBe(before);
    const [child] = children(await restored.fork(1));
    const [grandchild] = children(await (child ?? restored).fork(1));
    if (child === undefined || grandchild === undefined) throw new Error("no child");
    expect(await look(grandchild)).toBe(before);
    await grandchild.pause();
    await grandchild.resume();
    expect(await look(grandchild)).toBe(before);
    const again = await grandchild.snapshot();
    const last = await machine({ snapshot: again.snapshot.id });
    expect(await look(last)).toBe(before);
    await Promise.all([child.kill(), grandchild.kill()]);
    // What is sealed in the end is everything since the image, however often it was kept.
    const workspace = await last.seal();
    const paths = (await workspace.changes()).map((change) => text(change.path));
    for (const path of ["/w/plain", "/etc/dir/new", "/etc/group", "/w/a/b/c/d/e/f"]) expect(paths).toContain(path);
    const verified = await machine({ workspace });
    expect(await look(verified)).toBe(before);
    await verified.kill();
    await workspace.release();
    await backend().snapshots.remove("exact");
    await backend().snapshots.remove(again.snapshot.id);
  });

  kept("where nothing runs the machine is switched over its frozen layer, again and again, and nothing of it is lost", async () => {
    const sandbox = await machine();
    const made: string[] = [];
    for (let i = 0; i < 12; i++) {
      await sh(sandbox, `mkdir -p /work; echo ${i} >> /work/log; touch /work/f${i}; rm -f /work/f${i - 1}; [ $((${i} % 3)) = 0 ] && rm -rf /work/d && mkdir /work/d; mkdir -p /work/d; touch /work/d/n${i}`);
      const { method, snapshot } = await sandbox.snapshot();
      expect(method).toBe("switched");
      made.push(snapshot.id);
      expect((await sh(sandbox, "ls /work; ls /work/d | wc -l; wc -l < /work/log")).out).toBe(`d\nf${i}\nlog\n${(i % 3) + 1}\n${i + 1}\n`);
    }
    for (const i of [0, 5, 11]) {
      const old = await machine({ snapshot: made[i] ?? "" });
      expect((await sh(old, "ls /work; ls /work/d; wc -l < /work/log")).out).toBe(`d\nf${i}\nlog\n${Array.from({ length: (i % 3) + 1 }, (_, k) => `n${i - (i % 3) + k}\n`).sort().join("")}${i + 1}\n`);
    }
    expect((await backend().snapshots.get(made[11] ?? ""))?.layers).toBeLessThanOrEqual(9);
    expect((await sandbox.metrics()).cpuMs ?? 1).toBeGreaterThan(0);
    for (const id of made) await backend().snapshots.remove(id);
  });

  kept("forks of forks of forks without a snapshot between them", async () => {
    let current = await machine();
    const all: Sandbox[] = [];
    for (let i = 0; i < 8; i++) {
      await sh(current, `echo ${i} >> /log; touch /f${i}; rm -f /f${i - 2}`);
      const [next] = children(await current.fork(1));
      if (next === undefined) throw new Error("no child");
      all.push(next);
      current = next;
    }
    expect((await sh(current, "cat /log | tr -d '\\n'; ls / | grep '^f[0-9]'")).out).toBe("01234567f6\nf7\n");
    expect((await sh(all[2] ?? current, "cat /log | tr -d '\\n'")).out).toBe("0123");
    await Promise.all(all.map((sandbox) => sandbox.kill()));
    if (backend().capabilities.freeze) {
      // Others that hold a layer do not keep it from being forked.
      const busy = await machine();
      await busy.exec({ command: "sleep 1000" });
      let deep = busy;
      for (let i = 0; i < 6; i++) {
        const [next] = children(await deep.fork(1));
        if (next === undefined) throw new Error("no child");
        await sh(next, `echo ${i} >> /log`);
        deep = next;
      }
      expect((await sh(deep, "cat /log | tr -d '\\n'")).out).toBe("012345");
      await deep.kill();
    }
  });

  kept("H08: every pause keeps what was written until its last moment", async () => {
    const sandbox = await machine();
    for (let i = 1; i <= 5; i++) {
      await sh(sandbox, `mkdir -p /work; echo ${i} >> /work/log; touch /work/f${i}; rm -f /work/f${i - 1}`);
      // Not waited for: whatever it has written by then is kept, and nothing is torn.
      const writer = await sandbox.exec({ command: `i=0; while :; do i=$((i+1)); echo $i >> /work/late${i}; done` });
      await until("it writes", async () => Number((await sh(sandbox, `wc -l < /work/late${i} 2>/dev/null`)).out) > 0);
      await sandbox.pause();
      await sandbox.pause();
      expect(sandbox.state).toBe("paused");
      expect(["lost", "killed"]).toContain((await writer.exit).ended);
      await sandbox.resume();
      await sandbox.resume();
      expect(sandbox.state).toBe("running");
      expect((await sh(sandbox, "ls /work | grep ^f; wc -l < /work/log; ps | grep -c '[l]ate' || true")).out).toBe(`f${i}\n${i}\n0\n`);
      const late = (await sh(sandbox, `cat /work/late${i}`)).out.trimEnd().split("\n");
      expect(late).toEqual(late.map((_, index) => String(index + 1)));
    }
    expect((await backend().snapshots.list()).filter((snapshot) => snapshot.pausedSandbox === sandbox.id)).toEqual([]);
  });

  kept("H09: a directory that was deleted and made again brings nothing back", async () => {
    const one = await machine();
    await sh(one, "rm -r /etc/dir; mkdir /etc/dir; touch /etc/dir/new /etc/dir/.wh.keep");
    const [child] = children(await one.fork(1));
    expect((await sh(child ?? one, "ls -A /etc/dir")).out).toBe(".wh.keep\nnew\n");
    await sh(child ?? one, "rm -r /etc/dir; ln -s /home /etc/dir");
    const { snapshot } = await (child ?? one).snapshot();
    await child?.kill();
    const two = await machine({ snapshot: snapshot.id });
    expect((await sh(two, "readlink /etc/dir; rm /etc/dir; mkdir /etc/dir; ls -A /etc/dir | wc -l")).out).toBe("/home\n0\n");
    await two.pause();
    await two.resume();
    expect((await sh(two, "ls -A /etc/dir | wc -l")).out).toBe("0\n");
    await backend().snapshots.remove(snapshot.id);
  });

  kept("processes that hold the layer stand still for it, and go on; so do files in /dev/shm and exits that nobody has acknowledged", async (context) => {
    const sandbox = await machine();
    if (!backend().capabilities.freeze) {
      const running = await sandbox.exec({ command: "sleep 1000" });
      await expect(sandbox.snapshot()).rejects.toMatchObject({ code: "unsupported" });
      await running.kill("SIGKILL");
      await context.annotate("no freezer here: asserted as refused");
      return;
    }
    const writer = await sandbox.exec({ command: "i=0; while :; do i=$((i+1)); echo $i >> /log; done" });
    await until("it writes", async () => Number((await sh(sandbox, "wc -l < /log")).out) > 0);
    const taken = await sandbox.snapshot();
    expect(taken.method).toBe("copied");
    const before = Number((await sh(sandbox, "wc -l < /log")).out);
    await until("it goes on", async () => Number((await sh(sandbox, "wc -l < /log")).out) > before);
    const restored = await machine({ snapshot: taken.snapshot.id });
    const lines = (await sh(restored, "cat /log")).out.trimEnd().split("\n");
    expect(lines.length).toBeLessThanOrEqual(before);
    expect(lines).toEqual(lines.map((_, index) => String(index + 1)));
    await writer.kill("SIGKILL");
    await writer.exit;
    // Its exit is not acknowledged: it can still be asked for.
    expect((await sandbox.snapshot()).method).toBe("copied");
    expect((await (await sandbox.attach(writer.id)).exit).signal).toBe("SIGKILL");
    await writer.acknowledge();
    await sh(sandbox, "echo memory > /dev/shm/x");
    expect((await sandbox.snapshot()).method).toBe("copied");
    expect((await sh(sandbox, "cat /dev/shm/x; rm /dev/shm/x")).out).toBe("memory\n");
    expect((await sandbox.snapshot()).method).toBe("switched");
    for (const { id, sandbox: of } of await backend().snapshots.list()) if (of === sandbox.id) await backend().snapshots.remove(id);
  });

  kept("one that its owner has frozen is kept as it stands, and stays frozen", async (context) => {
    const sandbox = await machine();
    if (!backend().capabilities.freeze) {
      await context.annotate("no freezer here");
      return;
    }
    await sandbox.files.write("/f", "frozen");
    await sandbox.freeze();
    const { snapshot, method } = await sandbox.snapshot();
    expect(method).toBe("copied");
    const [child] = children(await sandbox.fork(1));
    expect((await sh(child ?? sandbox, "cat /f")).out).toBe("frozen");
    await child?.kill();
    const waiting = sandbox.run({ command: "cat /f" });
    let answered = false;
    void waiting.then(() => (answered = true), () => undefined);
    // Two hundred questions to the machinery are time enough for a machine that runs.
    for (let i = 0; i < 200; i++) await sandbox.metrics();
    expect(answered).toBe(false);
    await sandbox.thaw();
    expect(text((await waiting).stdout)).toBe("frozen");
    await sandbox.freeze();
    await sandbox.pause();
    await sandbox.resume();
    expect((await sh(sandbox, "cat /f")).out).toBe("frozen");
    await backend().snapshots.remove(snapshot.id);
  });

  kept("sixteen children: each is its own, and the listener says whose call it is", async () => {
    const target = join(options.scratch(), "who.sock");
    const server = createServer((socket) => {
      socket.on("error", () => undefined).once("data", (data: Buffer) => socket.end(`${data.toString().split(" ")[1]}\n`));
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(target, resolve));
    const parent = await machine({ services: [{ port: 80, target }], env: { WHO: "parent" }, labels: { of: "parent" } });
    await sh(parent, "echo shared > /shared; echo image-id > /etc/machine-id");
    const kids = children(await parent.fork(16, { child: (index) => (index === 0 ? { hostname: "first", env: { WHO: "child" }, labels: { of: "child" } } : {}) }));
    try {
      expect(new Set(kids.map((kid) => kid.id)).size).toBe(16);
      const said = await Promise.all(kids.map((kid, i) => sh(kid, `hostname; cat /etc/machine-id /shared; echo $WHO; echo ${i} > /shared; nc -w 60 127.0.0.1 80 < /dev/null; echo hello | nc -w 60 127.0.0.1 80`)));
      const ids = new Set<string>();
      for (const [i, { out }] of said.entries()) {
        const [host, id, shared, who, caller] = out.split("\n");
        expect(host).toBe(i === 0 ? "first" : kids[i]?.id);
        expect(id).toMatch(/^[0-9a-f]{32}$/);
        ids.add(id ?? "");
        expect([shared, who, caller]).toEqual(["shared", i === 0 ? "child" : "parent", kids[i]?.id]);
      }
      expect(ids.size).toBe(16);
      expect(kids[0]?.spec.labels).toEqual({ of: "child" });
      expect((await sh(parent, "cat /shared /etc/machine-id; echo hello | nc -w 60 127.0.0.1 80")).out).toBe(`shared\nimage-id\n${parent.id}\n`);
      expect(await Promise.all(kids.map(async (kid) => (await sh(kid, "cat /shared")).out))).toEqual(kids.map((_, i) => `${i}\n`));
      // A child outlives its parent.
      await parent.kill();
      expect((await sh(kids[1] ?? parent, "cat /shared")).out).toBe("1\n");
    } finally {
      await Promise.all(kids.map((kid) => kid.kill()));
    }
  });

  kept("a request that cannot be met fails before anything stands still", async () => {
    const sandbox = await machine();
    await expect(sandbox.fork(0)).rejects.toMatchObject({ code: "invalid_input" });
    await expect(sandbox.fork(2, { child: () => ({ hostname: "a b" }) })).rejects.toMatchObject({ code: "invalid_input" });
    for (const name of ["", "../x", "a/b", "-x", "x".repeat(200), "snap1m8n7wn9b7y54jffg8pb"]) await expect(sandbox.snapshot({ name })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(sandbox.snapshot({ memory: true })).rejects.toMatchObject({ code: "unsupported" });
    await expect(sandbox.fork(2, { memory: true })).rejects.toMatchObject({ code: "unsupported" });
    await expect(sandbox.pause({ memory: true })).rejects.toMatchObject({ code: "unsupported" });
    await expect(machine({ snapshot: "no-such" })).rejects.toMatchObject({ code: "not_found" });
    const { snapshot } = await sandbox.snapshot();
    await expect(machine({ snapshot: snapshot.id, root: { ...options.root(), digest: "sha256:another" } })).rejects.toMatchObject({ code: "invalid_input", message: expect.stringContaining("sha256:another") });
    await backend().snapshots.remove(snapshot.id);
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  kept("a paused sandbox has no machine, and can be killed", async () => {
    const sandbox = await machine({ labels: { state: "paused" } });
    const listening = await sandbox.exec({ command: "sleep 1000" });
    await sandbox.pause();
    expect((await backend().list()).find(({ id }) => id === sandbox.id)).toMatchObject({ state: "paused", labels: { state: "paused" } });
    expect(["lost", "killed"]).toContain((await listening.exit).ended);
    for (const refused of [sandbox.run({ command: "true" }), sandbox.files.read("/etc/marker"), sandbox.freeze(), sandbox.metrics(), sandbox.seal(), sandbox.snapshot(), sandbox.fork(1), sandbox.renew(5000)]) {
      await expect(refused).rejects.toMatchObject({ code: "sandbox_paused" });
    }
    const kept = (await backend().snapshots.list()).filter((snapshot) => snapshot.pausedSandbox === sandbox.id);
    expect(kept.length).toBe(1);
    await sandbox.kill();
    expect(await sandbox.ended).toMatchObject({ reason: "killed" });
    await expect(sandbox.resume()).rejects.toMatchObject({ code: "sandbox_gone" });
    expect((await backend().snapshots.list()).some(({ id }) => id === kept[0]?.id)).toBe(false);
  });

  kept("many things at once: what comes during a snapshot waits, kills included", async () => {
    const sandbox = await machine();
    const commands = Array.from({ length: 40 }, (_, i) => sh(sandbox, `echo ${i} >> /all`));
    const snapshots = Array.from({ length: 4 }, () => sandbox.snapshot());
    const results = await Promise.allSettled([...commands, ...snapshots]);
    const failed = results.filter((result) => result.status === "rejected");
    // Without a freezer a snapshot beside a command is refused; a command never fails.
    if (backend().capabilities.freeze) expect(failed).toEqual([]);
    expect(results.slice(0, 40).every((result) => result.status === "fulfilled")).toBe(true);
    expect((await sh(sandbox, "sort -n /all | uniq | wc -l")).out).toBe("40\n");
    const dying = [sandbox.snapshot(), sandbox.kill(), sandbox.fork(2), sandbox.pause()];
    await Promise.allSettled(dying);
    await sandbox.kill();
    expect(await sandbox.ended).toMatchObject({ reason: "killed" });
    const left = await backend().list();
    for (const { id } of left) await backend().get(id)?.kill();
    for (const { id } of await backend().snapshots.list()) await backend().snapshots.remove(id);
  });

  kept("snapshots are named, listed, renamed, removed; machines keep what they use", async () => {
    const { snapshots } = backend();
    const sandbox = await machine();
    await sandbox.files.write("/v", "1");
    const one = (await sandbox.snapshot({ name: "tag" })).snapshot;
    await sandbox.files.write("/v", "2");
    const two = (await sandbox.snapshot({ name: "tag" })).snapshot;
    expect((await snapshots.get("tag"))?.id).toBe(two.id);
    expect((await snapshots.get(one.id))?.name).toBeNull();
    expect((await snapshots.rename(one.id, "first")).name).toBe("first");
    const user = await machine({ snapshot: "first" });
    await snapshots.remove("first");
    await snapshots.remove("tag");
    await expect(snapshots.remove("tag")).rejects.toMatchObject({ code: "not_found" });
    expect(await snapshots.get(one.id)).toBeNull();
    expect(text(await user.files.read("/v"))).toBe("1");
    expect(text(await sandbox.files.read("/v"))).toBe("2");
    await sandbox.kill();
    await user.kill();
    await snapshots.collect();
    expect(await snapshots.collect()).toEqual({ layers: 0, bytes: 0 });
  });

  kept("an archive holds a snapshot whole, and another data directory takes it in", async () => {
    const one = await machine();
    // Who has no ids besides their own cannot give capabilities to files of the host.
    await sh(one, MAKE(users(), users()));
    await one.snapshot();
    await sh(one, "echo more > /w/more; rm /w/zero");
    const before = await look(one);
    const { snapshot } = await one.snapshot({ name: "travels" });
    const file = join(mkdtempSync(join(options.scratch(), "archive-")), "a.snap");
    await backend().snapshots.export("travels", file);
    await expect(backend().snapshots.export("travels", file)).rejects.toMatchObject({ code: "conflict" });
    // A sparse file stays one.
    expect(statSync(file).size).toBeLessThan(30_000_000);
    const elsewhere = await options.open();
    try {
      const taken = await elsewhere.snapshots.import(file, { name: "arrived" });
      expect(taken).toMatchObject({ id: snapshot.id, name: "arrived", layers: snapshot.layers });
      expect(await elsewhere.snapshots.import(file)).toMatchObject({ id: snapshot.id, name: "arrived" });
      const there = await elsewhere.create({ root: options.root(), snapshot: "arrived" });
      expect(await look(there)).toBe(before);
      // What is cut short, damaged, lengthened or something else is refused whole.
      const damage: readonly ((path: string) => void)[] = [
        (path) => truncateSync(path, statSync(path).size - 100),
        (path) => truncateSync(path, 10),
        (path) => appendFileSync(path, "more"),
        (path) => writeFileSync(path, "MANYWORLDS"),
        (path) => {
          const bytes = readFileSync(path);
          bytes.fill(0x55, bytes.length >> 1, (bytes.length >> 1) + 64);
          writeFileSync(path, bytes);
        },
      ];
      await elsewhere.snapshots.remove("arrived");
      for (const [index, spoil] of damage.entries()) {
        const broken = `${file}.${index}`;
        writeFileSync(broken, readFileSync(file));
        spoil(broken);
        await expect(elsewhere.snapshots.import(broken), `damage ${index}`).rejects.toMatchObject({ code: "corrupt" });
      }
      await expect(elsewhere.snapshots.import(`${file}.absent`)).rejects.toMatchObject({ code: "not_found" });
      expect(await elsewhere.snapshots.list()).toEqual([]);
      await there.kill();
      await elsewhere.snapshots.collect();
    } finally {
      await elsewhere.close();
    }
    expect(existsSync(file)).toBe(true);
    for (const { id } of await backend().snapshots.list()) await backend().snapshots.remove(id);
  });
}
