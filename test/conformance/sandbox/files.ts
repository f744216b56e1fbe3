/** Files both ways: byte-, mode- and link-identical, names of any bytes, and no way out through what is moved. */
import { chmodSync, existsSync, lstatSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { fixture, sh, sleep, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

export function fileSuite(options: ConformanceOptions): void {
  const { machine, shared, backend } = fixture(options);
  const fresh = (): string => mkdtempSync(join(options.scratch(), "files-"));

  test("write and read: bytes, modes, parents, overwriting", async () => {
    const sandbox = await machine();
    const bytes = Buffer.from(Array.from({ length: 3_000_001 }, (_, i) => (i * 31) & 255));
    await sandbox.files.write("/new/dir/f", bytes, { mode: 0o640 });
    expect(Buffer.from(await sandbox.files.read("/new/dir/f")).equals(bytes)).toBe(true);
    expect((await sh(sandbox, "stat -c '%a %s %u' /new/dir/f")).out).toBe("640 3000001 0\n");
    await sandbox.files.write("/new/dir/f", "");
    expect((await sandbox.files.read("/new/dir/f")).length).toBe(0);
    await sandbox.files.write("/plain", "x");
    expect((await sandbox.files.stat("/plain"))?.mode).toBe(0o644);
  });

  test("owners by name and by number", async (context) => {
    const sandbox = await machine();
    if (!backend().capabilities.users) {
      await expect(sandbox.files.write("/o", "x", { owner: "agent" })).rejects.toMatchObject({ code: "unsupported" });
      void context.annotate("no users besides root here: asserted as refused");
      return;
    }
    await sandbox.files.write("/o/a", "x", { owner: "agent" });
    await sandbox.files.write("/o/b", "x", { owner: "1234:77" });
    expect((await sh(sandbox, "stat -c '%u:%g' /o/a /o/b")).out).toBe("1000:1000\n1234:77\n");
    expect(await sandbox.files.stat("/o/b")).toMatchObject({ uid: 1234, gid: 77 });
  });

  test("reading: a cap, a missing file, a directory, an endless device, a FIFO that nobody writes", async () => {
    const sandbox = await machine();
    await sh(sandbox, "mkfifo /fifo; head -c 1000 /dev/zero > /thousand");
    await expect(sandbox.files.read("/thousand", { maxBytes: 999 })).rejects.toMatchObject({ code: "limit_exceeded" });
    expect((await sandbox.files.read("/thousand", { maxBytes: 1000 })).length).toBe(1000);
    await expect(sandbox.files.read("/missing")).rejects.toMatchObject({ code: "not_found" });
    await expect(sandbox.files.read("/etc/marker/below")).rejects.toMatchObject({ code: expect.stringMatching(/not_found|conflict/) });
    for (const path of ["/etc", "/dev/zero", "/fifo"]) await expect(sandbox.files.read(path), path).rejects.toMatchObject({ code: expect.stringMatching(/invalid_input|conflict/) });
    await expect(sandbox.files.read("relative")).rejects.toMatchObject({ code: "invalid_input" });
    await expect(sandbox.files.read("/a\0b")).rejects.toMatchObject({ code: "invalid_input" });
  });

  test("writing replaces a link and never follows it", async () => {
    const sandbox = await machine();
    await sh(sandbox, "echo precious > /precious; ln -s /precious /link; ln -s /nowhere /dangling; mkfifo /fifo; ln /precious /hard");
    for (const path of ["/link", "/dangling", "/fifo", "/hard"]) {
      await sandbox.files.write(path, "new");
      expect(await sandbox.files.stat(path)).toMatchObject({ type: "file", size: 3 });
    }
    expect((await sh(sandbox, "cat /precious; ls /nowhere")).out).toBe("precious\n");
  });

  test("list and stat: types, sizes, targets, names of any bytes", async () => {
    const sandbox = await machine();
    await sh(sandbox, "mkdir -p /d/sub; cd /d; echo abc > f; chmod 4755 f; ln -s ../x l; mkfifo p; printf x > \"$(printf 'a\\377b')\"; printf x > \"$(printf 'new\\nline')\"; touch -d @1000000000 f");
    const entries = new Map((await sandbox.files.list("/d")).map((entry) => [Buffer.from(entry.path).toString("latin1"), entry]));
    const name = (path: string): string => path.slice(path.lastIndexOf("/") + 1);
    expect([...entries.keys()].map(name).toSorted()).toEqual(["a\xffb", "f", "l", "new\nline", "p", "sub"]);
    const byName = new Map([...entries].map(([path, entry]) => [name(path), entry]));
    expect(byName.get("f")).toMatchObject({ type: "file", mode: 0o4755, size: 4, mtimeNs: 1_000_000_000_000_000_000n, target: null });
    expect(byName.get("p")?.type).toBe("fifo");
    expect(byName.get("sub")?.type).toBe("directory");
    expect(text(byName.get("l")?.target ?? new Uint8Array())).toBe("../x");
    const odd = Buffer.from("/d/a\xffb", "latin1");
    expect(text(await sandbox.files.read(odd))).toBe("x");
    await sandbox.files.remove(odd);
    expect(await sandbox.files.stat(odd)).toBeNull();
    expect(await sandbox.files.stat("/d/l")).toMatchObject({ type: "symlink" });
    expect(await sandbox.files.stat("/nothing/here")).toBeNull();
    await expect(sandbox.files.list("/nothing")).rejects.toMatchObject({ code: "not_found" });
  });

  test("contents in pieces, both ways; what breaks off leaves nothing", async () => {
    const sandbox = await machine();
    const piece = Buffer.alloc(300_000, 7);
    await sandbox.files.write("/pieces", (async function* () {
      for (let at = 0; at < 20; at++) yield piece;
    })());
    let bytes = 0;
    for await (const part of sandbox.files.readStream("/pieces")) bytes += part.length;
    expect(bytes).toBe(20 * piece.length);
    for await (const part of sandbox.files.readStream("/dev/.mw/files")) {
      expect(part.length).toBeGreaterThan(0);
      break;
    }
    const broken = sandbox.files.write("/broken", (async function* () {
      yield piece;
      throw new Error("the sender broke off");
    })());
    await expect(broken).rejects.toThrow(/broke off/);
    expect(await sandbox.files.stat("/broken")).toBeNull();
    await expect(sandbox.files.readStream("/nothing")[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: "not_found" });
  });

  test("mkdir, move, remove", async () => {
    const sandbox = await machine();
    await sandbox.files.mkdir("/a/b/c", { mode: 0o700 });
    expect((await sandbox.files.stat("/a/b/c"))?.mode).toBe(0o700);
    await sandbox.files.write("/a/b/c/f", "1");
    await sandbox.files.move("/a/b", "/z");
    expect(text(await sandbox.files.read("/z/c/f"))).toBe("1");
    await sh(sandbox, "mkdir /keep; echo k > /keep/k; ln -s /keep /z/c/link");
    await sandbox.files.remove("/z");
    await sandbox.files.remove("/z");
    expect((await sh(sandbox, "ls /; cat /keep/k")).out).not.toContain("z\n");
    expect((await sh(sandbox, "cat /keep/k")).out).toBe("k\n");
    await sandbox.files.remove("/etc/dir");
    expect((await sh(sandbox, "ls /etc/dir")).code).not.toBe(0);
    await expect(sandbox.files.move("/nothing", "/x")).rejects.toMatchObject({ code: "not_found" });
  });

  test("removing a tree 2,100 levels deep, and one without permissions", async () => {
    const sandbox = await machine();
    await sh(sandbox, "mkdir /deep; cd /deep; i=0; while [ $i -lt 2100 ]; do mkdir d && cd d || break; i=$((i+1)); done; mkdir -p /locked/in; touch /locked/in/f; chmod 0 /locked/in /locked; chattr +i /locked 2>/dev/null");
    await sandbox.files.remove("/deep");
    await sandbox.files.remove("/locked");
    expect((await sh(sandbox, "ls -d /deep /locked")).out).toBe("");
  });

  test("a tree goes up and comes back identical, merged into what is there", async () => {
    const sandbox = await machine();
    const from = fresh();
    mkdirSync(join(from, "bin"));
    mkdirSync(join(from, "e"));
    mkdirSync(join(from, "sp ace"));
    writeFileSync(join(from, ".env"), "SECRET=1\n");
    writeFileSync(join(from, "bin/run"), "#!/bin/sh\necho ran\n");
    chmodSync(join(from, "bin/run"), 0o755);
    writeFileSync(join(from, "sp ace/ü 北.txt"), "text");
    writeFileSync(join(from, "empty"), "");
    writeFileSync(join(from, "big"), Buffer.alloc(20 << 20, 7));
    writeFileSync(Buffer.from(`${from}/odd\xff\nname`, "latin1"), "odd");
    symlinkSync("bin/run", join(from, "l"));
    symlinkSync("/etc/marker", join(from, "absolute"));
    chmodSync(join(from, "e"), 0o711);
    await sh(sandbox, "mkdir -p /t/bin; echo there > /t/bin/other");
    const up = await sandbox.files.upload(from, "/t");
    expect(up.refused).toEqual([]);
    expect((await sh(sandbox, "cd /t; ./l; cat bin/other; stat -c %a e bin/run; wc -c < big; cat '.env'; readlink l; readlink absolute; ls -A | wc -l")).out.replace(/ /g, "")).toBe("ran\nthere\n711\n755\n20971520\nSECRET=1\nbin/run\n/etc/marker\n9\n");
    const to = join(fresh(), "out");
    const down = await sandbox.files.download("/t", to);
    // The absolute link points outside the tree: it may be refused, but then it is named.
    expect(down.refused.every(({ path }) => path.includes("absolute"))).toBe(true);
    expect(readFileSync(join(to, "big")).equals(Buffer.alloc(20 << 20, 7))).toBe(true);
    expect(readFileSync(join(to, "sp ace/ü 北.txt"), "utf8")).toBe("text");
    expect(readFileSync(Buffer.from(`${to}/odd\xff\nname`, "latin1"), "utf8")).toBe("odd");
    expect(statSync(join(to, "bin/run")).mode & 0o777).toBe(0o755);
    expect(readlinkSync(join(to, "l"))).toBe("bin/run");
    expect(readdirSync(join(to, "e"))).toEqual([]);
    expect(readFileSync(join(to, "bin/other"), "utf8")).toBe("there\n");
  });

  test("single files, excludes, owners, missing sources", async () => {
    const sandbox = await machine();
    const from = fresh();
    writeFileSync(join(from, "one"), "1");
    mkdirSync(join(from, "node_modules/x"), { recursive: true });
    writeFileSync(join(from, "node_modules/x/y"), "y");
    writeFileSync(join(from, "a.log"), "log");
    await sandbox.files.upload(join(from, "one"), "/opt/renamed");
    expect(text(await sandbox.files.read("/opt/renamed"))).toBe("1");
    await sandbox.files.upload(from, "/t", { exclude: ["node_modules", "*.log"] });
    expect((await sh(sandbox, "cd /t; find . | sort")).out).toBe(".\n./one\n");
    await expect(sandbox.files.upload(join(from, "nothing"), "/t")).rejects.toMatchObject({ code: expect.stringMatching(/not_found|invalid_input/) });
    await expect(sandbox.files.download("/nothing", join(from, "out"))).rejects.toMatchObject({ code: "not_found" });
    await expect(sandbox.files.upload(from, "/t2", { maxBytes: 2 })).rejects.toMatchObject({ code: "limit_exceeded" });
    await sandbox.files.download("/opt/renamed", join(from, "single"));
    expect(readFileSync(join(from, "single"), "utf8")).toBe("1");
    await expect(sandbox.files.download("/opt/renamed", join(from, "single"))).rejects.toMatchObject({ code: "conflict" });
  });

  test("an upload through links that the machine planted stays in the machine", async () => {
    const sandbox = await machine();
    const from = fresh();
    mkdirSync(join(from, "sub"));
    writeFileSync(join(from, "sub/f"), "payload");
    await sh(sandbox, "mkdir -p /t /elsewhere; ln -s /elsewhere /t/sub");
    await sandbox.files.upload(from, "/t").catch(() => null);
    // Whatever is done with the link, it is the machine's own tree that changes.
    expect(existsSync("/elsewhere")).toBe(false);
  });

  test("what a machine offers for download cannot write outside the target", async () => {
    const sandbox = await machine();
    const base = fresh();
    const outside = join(base, "outside");
    mkdirSync(outside);
    await sh(sandbox, `mkdir -p /out/real; cd /out
      ln -s ${outside} d; ln -s .. a; ln -s / root; ln -s real ok; ln -s ../../../../../../../.. up; ln -s real/../.. sly
      echo x > real/f; mkfifo fifo; ln -s a/b/evil chain; echo dot > ..evil; mkdir "$(printf 'nl\\n')"; echo hard > h1; ln h1 h2`);
    const report = await sandbox.files.download("/out", join(base, "t"));
    expect(readdirSync(outside)).toEqual([]);
    expect(readdirSync(base).toSorted()).toEqual(["outside", "t"]);
    const refused = report.refused.map(({ path }) => path.replace(/^\/?(out\/)?/, ""));
    for (const name of ["d", "a", "root", "up", "sly", "fifo"]) expect(refused).toContain(name);
    for (const { reason } of report.refused) expect(reason.length).toBeGreaterThan(3);
    expect(readlinkSync(join(base, "t/ok"))).toBe("real");
    expect(readFileSync(join(base, "t/real/f"), "utf8")).toBe("x\n");
    expect(readFileSync(join(base, "t/..evil"), "utf8")).toBe("dot\n");
    expect(readFileSync(join(base, "t/h2"), "utf8")).toBe("hard\n");
    for (const name of ["d", "a", "root", "up", "fifo"]) expect(lstatSync(join(base, "t", name), { throwIfNoEntry: false })).toBeUndefined();
  });

  test("setuid bits and devices do not reach the host", async () => {
    const sandbox = await machine();
    await sh(sandbox, "mkdir /out; cp /bin/busybox /out/su; chmod 6755 /out/su");
    const to = join(fresh(), "t");
    await sandbox.files.download("/out", to);
    expect(statSync(join(to, "su")).mode & 0o7000).toBe(0);
  });

  test("a download over the limit fails loudly and leaves nothing half-made unnoticed", async () => {
    const sandbox = await machine();
    await sh(sandbox, "mkdir /out; head -c 5000000 /dev/zero > /out/big");
    await expect(sandbox.files.download("/out", join(fresh(), "t"), { maxBytes: 1_000_000 })).rejects.toMatchObject({ code: "limit_exceeded" });
    expect((await sh(sandbox, "echo fine")).out).toBe("fine\n");
  });

  test("straight from one machine to another", async () => {
    const [from, to] = [await machine(), await machine()];
    await sh(from, "mkdir -p /w/e; cd /w; echo a > a; chmod 751 a; ln -s /anywhere l; printf x > \"$(printf 'o\\377')\"; head -c 3000000 /dev/urandom > big; sha256sum big > sum");
    const report = await from.files.copyTo(to.files, "/w", "/copy");
    expect(report.refused).toEqual([]);
    expect((await sh(to, "cd /copy; stat -c %a a; readlink l; sha256sum -c sum; ls -d e; ls | wc -l")).out.replace(/ /g, "")).toBe("751\n/anywhere\nbig:OK\ne\n6\n");
  });

  test("a watcher sees what happens, and ends", async () => {
    const sandbox = await machine();
    await sandbox.files.mkdir("/w/sub");
    const controller = new AbortController();
    const seen: string[] = [];
    const watching = (async () => {
      for await (const event of sandbox.files.watch("/w", { recursive: true, signal: controller.signal })) {
        seen.push(`${event.kind} ${text(event.path)}`);
        if (seen.some((line) => line.startsWith("removed"))) break;
      }
    })();
    await until("it watches", async () => (await sh(sandbox, ": > /w/probe-$$; sleep 0.1"), seen.length > 0));
    await sh(sandbox, "echo 1 > /w/sub/f; sleep 0.1; echo 2 >> /w/sub/f; sleep 0.1; rm /w/sub/f");
    await Promise.race([watching, sleep(60_000)]);
    controller.abort();
    await watching.catch(() => null);
    for (const kind of ["created", "modified", "removed"]) expect(seen.find((line) => line.startsWith(kind) && line.endsWith("sub/f")), kind).toBeDefined();
  });

  test("the machine cannot fool file access by swapping directories for links meanwhile", async () => {
    const sandbox = await shared();
    const race = await sandbox.exec({ command: "mkdir -p /race/d; echo in > /race/d/f; while :; do mv /race/d /race/e; ln -s /etc /race/d; rm /race/d; mv /race/e /race/d; done" });
    for (let i = 0; i < 30; i++) await sandbox.files.write(`/race/d/f${i}`, "data").catch(() => null);
    await race.kill("SIGKILL");
    await race.exit;
    expect(existsSync("/etc/f0")).toBe(false);
  });
}
