import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type InitMachine, NATIVE, startInitMachine } from "../../../../test/support/init-machine.ts";
import type { FileEvent } from "../../sandbox.ts";
import { NativeFiles } from "./files.ts";

let machine: InitMachine;
let files: NativeFiles;
/** A directory that is the same inside and outside: the test machine shares the host's files. */
let home: string;
beforeAll(async () => {
  machine = await startInitMachine();
  files = new NativeFiles((user) => machine.start([join(NATIVE, "files")], { user, env: {}, openStdin: true, maxOutputBytes: Number.MAX_SAFE_INTEGER }));
});
afterAll(async () => {
  await machine.stop();
});
beforeEach(() => {
  // In memory where possible: the deep trees take long on disks.
  home = fs.mkdtempSync(join(fs.existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "mw-files-"));
});
afterEach(() => {
  // A test that failed half-way may have left immutable files.
  execFileSync("sh", ["-c", `rm -rf ${home} 2> /dev/null || { chattr -R -f -i -a ${home}; rm -rf ${home}; }`]);
});

const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString();

/** Path, type, mode, content or target of everything below a directory, for comparisons. */
function snapshot(root: string): string[] {
  return execFileSync("find", [root, "-mindepth", "1", "-printf", "%P %y %m %l %T@\\n"])
    .toString("latin1")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.replace(/(\.\d{6})\d*$/, "$1"))
    .sort();
}

describe("files", () => {
  test("are written whole, replaced, and read back", async () => {
    const path = join(home, "deep/er/file");
    await files.write(path, "hello", { mode: 0o750, owner: "1000:1001" });
    expect(text(await files.read(path))).toBe("hello");
    expect(await files.stat(path)).toMatchObject({ type: "file", mode: 0o750, uid: 1000, gid: 1001, size: 5 });
    const large = Buffer.alloc(3_000_000, "xyz");
    await files.write(path, large);
    expect(Buffer.from(await files.read(path)).equals(large)).toBe(true);
    expect(fs.statSync(path).mode & 0o7777).toBe(0o750);
    await files.write(path, "");
    expect(await files.read(path)).toHaveLength(0);
    expect(fs.readdirSync(join(home, "deep/er"))).toEqual(["file"]);
    await files.write(join(home, "n"), "x", { owner: "nobody" });
    expect(fs.statSync(join(home, "n")).uid).toBe(65534);
  });

  test("replace a link and never follow it", async () => {
    fs.writeFileSync(join(home, "victim"), "safe");
    fs.symlinkSync("victim", join(home, "link"));
    await files.write(join(home, "link"), "mine");
    expect(fs.readFileSync(join(home, "victim"), "utf8")).toBe("safe");
    expect(fs.lstatSync(join(home, "link")).isFile()).toBe(true);
  });

  test("that are none are refused without blocking", async () => {
    execFileSync("mkfifo", [join(home, "fifo")]);
    await expect(files.read(join(home, "fifo"))).rejects.toMatchObject({ code: "invalid_input" });
    await expect(files.read("/dev/zero")).rejects.toMatchObject({ code: "invalid_input" });
    await expect(files.read(home)).rejects.toMatchObject({ code: "conflict" });
    await expect(files.read(join(home, "none"))).rejects.toMatchObject({ code: "not_found" });
    await expect(files.write(home, "x")).rejects.toMatchObject({ code: "conflict" });
    await expect(files.write("relative", "x")).rejects.toMatchObject({ code: "invalid_input" });
    fs.writeFileSync(join(home, "big"), Buffer.alloc(2000));
    await expect(files.read(join(home, "big"), { maxBytes: 1999 })).rejects.toMatchObject({ code: "limit_exceeded" });
    expect(await files.read(join(home, "big"), { maxBytes: 2000 })).toHaveLength(2000);
    fs.chmodSync(join(home, "big"), 0o600);
    fs.chmodSync(home, 0o755);
    await expect(files.read(join(home, "big"), { user: "nobody" })).rejects.toMatchObject({ code: "invalid_input" });
  });

  test("are listed and looked at as bytes, links not followed", async () => {
    const odd = Buffer.concat([Buffer.from(home), Buffer.from([0x2f, 0xff, 0xfe, 0x0a])]);
    await files.write(odd, "odd");
    fs.symlinkSync("/nowhere", join(home, "link"));
    fs.mkdirSync(join(home, "dir"));
    const list = await files.list(home);
    expect(list.map(({ path, type }) => `${Buffer.from(path).toString("hex")} ${type}`).sort()).toEqual(
      ["fffe0a file", `${Buffer.from("link").toString("hex")} symlink`, `${Buffer.from("dir").toString("hex")} directory`].sort(),
    );
    expect(await files.stat(join(home, "link"))).toMatchObject({ type: "symlink", target: Buffer.from("/nowhere") });
    expect(await files.stat(join(home, "absent"))).toBeNull();
    expect(await files.stat(join(home, "link/below"))).toBeNull();
    expect(text(await files.read(odd))).toBe("odd");
  });

  test("are moved, and directories made with their parents", async () => {
    await files.mkdir(join(home, "a/b/c"), { mode: 0o700, owner: "5:6" });
    expect(fs.statSync(join(home, "a/b/c"))).toMatchObject({ uid: 5, gid: 6 });
    expect(fs.statSync(join(home, "a/b/c")).mode & 0o777).toBe(0o700);
    await files.mkdir(join(home, "a/b/c"));
    await files.write(join(home, "a/f"), "x");
    await expect(files.mkdir(join(home, "a/f"))).rejects.toMatchObject({ code: "conflict" });
    await files.move(join(home, "a/f"), join(home, "new/place"));
    expect(fs.readFileSync(join(home, "new/place"), "utf8")).toBe("x");
    await expect(files.move(join(home, "none"), join(home, "x"))).rejects.toMatchObject({ code: "not_found" });
  });

  test("are removed whatever they are: deep, wide, immutable, linked elsewhere", async () => {
    fs.mkdirSync(join(home, "victim"));
    fs.writeFileSync(join(home, "victim/file"), "safe");
    const build = "import os,sys\nos.chdir(sys.argv[1])\nos.mkdir('t'); os.chdir('t'); os.symlink('../victim','link')\nfor i in range(3000): open('f%d'%i,'w')\nfor i in range(10000):\n os.mkdir('d'*9); os.chdir('d'*9)\nopen('end','w')";
    execFileSync("python3", ["-c", build, home]);
    fs.mkdirSync(join(home, "t/stuck"));
    fs.writeFileSync(join(home, "t/stuck/file"), "x");
    // As the agent could: needs a file system that knows the flags.
    const flags = execFileSync("sh", ["-c", `chattr +i ${home}/t/stuck/file && chattr +a ${home}/t/stuck && echo set || echo unsupported`], { stdio: ["ignore", "pipe", "ignore"] });
    if (!flags.toString().includes("set")) process.stderr.write("note: this file system has no immutable flag; removal of such files was not tested\n");
    await files.remove(join(home, "t"));
    expect(fs.readdirSync(home)).toEqual(["victim"]);
    expect(fs.readFileSync(join(home, "victim/file"), "utf8")).toBe("safe");
    await files.remove(join(home, "t"));
    await files.remove(join(home, "no/such/parent"));
    await files.remove(join(home, "victim/file"));
    expect(fs.readdirSync(join(home, "victim"))).toEqual([]);
  });
});

function sample(root: string): void {
  fs.mkdirSync(join(root, "bin"), { recursive: true });
  fs.mkdirSync(join(root, "e"));
  fs.mkdirSync(join(root, "sp ace"));
  fs.writeFileSync(join(root, ".env"), "A=1");
  fs.writeFileSync(join(root, "bin/run"), "#!/bin/sh\n");
  fs.chmodSync(join(root, "bin/run"), 0o755);
  fs.symlinkSync("bin/run", join(root, "l"));
  fs.writeFileSync(join(root, "sp ace/ü 北.txt"), "text");
  fs.writeFileSync(join(root, "empty"), "");
  fs.writeFileSync(Buffer.concat([Buffer.from(root), Buffer.from([0x2f, 0xff, 0xfe])]), "not UTF-8");
  fs.writeFileSync(join(root, "large"), Buffer.alloc(20 << 20, "0123456789abcdef"));
  fs.linkSync(join(root, "large"), join(root, "large-too"));
  fs.utimesSync(join(root, "bin"), 1e9, 1e9);
  fs.utimesSync(join(root, ".env"), 1.5e9, 1234567890.25);
  fs.chmodSync(join(root, "e"), 0o711);
}

const names = (root: string): string[] => execFileSync("find", [root, "-printf", "%P\\n"]).toString().split("\n").filter(Boolean).sort();

describe("trees", () => {
  test("arrive and come back byte-, mode-, time- and link-identical, merged into what is there", async () => {
    sample(join(home, "from"));
    fs.mkdirSync(join(home, "to/bin"), { recursive: true });
    fs.writeFileSync(join(home, "to/bin/kept"), "kept");
    fs.writeFileSync(join(home, "to/.env"), "old");
    const up = await files.upload(join(home, "from"), join(home, "to"), { owner: "7:8" });
    expect(up).toMatchObject({ entries: 11, bytes: (20 << 20) + 3 + 10 + 4 + 9, refused: [] });
    expect(fs.readFileSync(join(home, "to/bin/kept"), "utf8")).toBe("kept");
    expect(fs.lstatSync(join(home, "to/l"))).toMatchObject({ uid: 7, gid: 8 });
    expect(fs.statSync(join(home, "to/large")).ino).toBe(fs.statSync(join(home, "to/large-too")).ino);
    fs.rmSync(join(home, "to/bin/kept"));
    fs.utimesSync(join(home, "to/bin"), 1e9, 1e9);
    expect(snapshot(join(home, "to"))).toEqual(snapshot(join(home, "from")));
    const down = await files.download(join(home, "to"), join(home, "back"));
    expect(down).toMatchObject({ entries: 11, refused: [] });
    expect(snapshot(join(home, "back"))).toEqual(snapshot(join(home, "from")));
    execFileSync("diff", ["-r", "--no-dereference", join(home, "from"), join(home, "back")]);
  });

  test("copy from machine to machine", async () => {
    sample(join(home, "from"));
    expect(await files.copyTo(files, join(home, "from"), join(home, "copy"))).toMatchObject({ entries: 11, refused: [] });
    expect(snapshot(join(home, "copy"))).toEqual(snapshot(join(home, "from")));
  });

  test("of a single file work both ways", async () => {
    fs.writeFileSync(join(home, "one"), "single");
    await files.upload(join(home, "one"), join(home, "new/dir/two"));
    expect(fs.readFileSync(join(home, "new/dir/two"), "utf8")).toBe("single");
    await files.download(join(home, "new/dir/two"), join(home, "three"));
    expect(fs.readFileSync(join(home, "three"), "utf8")).toBe("single");
    fs.mkdirSync(join(home, "full"));
    await expect(files.upload(join(home, "one"), join(home, "full"))).rejects.toMatchObject({ code: "conflict" });
  });

  test("leave out what is excluded, in both directions alike", async () => {
    for (const path of ["keep.txt", "node_modules/x/y", "a/node_modules/z", "a/b/c.log", "c.log", "a/only/here", "b/only/here"]) {
      fs.mkdirSync(join(home, "from", path, ".."), { recursive: true });
      fs.writeFileSync(join(home, "from", path), "");
    }
    const exclude = ["node_modules", "a/**/*.log", "b/only/*"];
    await files.upload(join(home, "from"), join(home, "up"), { exclude });
    await files.download(join(home, "from"), join(home, "down"), { exclude });
    expect(names(join(home, "up"))).toEqual(["a", "a/b", "a/only", "a/only/here", "b", "b/only", "c.log", "keep.txt"]);
    expect(names(join(home, "down"))).toEqual(names(join(home, "up")));
  });

  test("never lead an upload through a link of the machine", async () => {
    sample(join(home, "from"));
    fs.mkdirSync(join(home, "outside"));
    fs.mkdirSync(join(home, "to"));
    fs.symlinkSync("../outside", join(home, "to/bin"));
    fs.symlinkSync("../outside/env", join(home, "to/.env"));
    fs.mkdirSync(join(home, "to/empty"));
    const report = await files.upload(join(home, "from"), join(home, "to"));
    expect(fs.readdirSync(join(home, "outside"))).toEqual([]);
    expect(fs.readFileSync(join(home, "to/.env"), "utf8")).toBe("A=1");
    expect(report.refused.map(({ path }) => path).sort()).toEqual(["bin", "bin/run", "empty"]);
  });

  test("tell what cannot be downloaded", async () => {
    fs.mkdirSync(join(home, "from"));
    execFileSync("sh", ["-c", "mkfifo fifo; mknod null c 1 3; ln -s /etc/passwd abs; ln -s .. up; ln -s d/../ok ok-link; mkdir d; echo x > ok; ln -s d/back esc; ln -s .. d/back; ln -s d/back/.. esc2"], { cwd: join(home, "from") });
    const report = await files.download(join(home, "from"), join(home, "to"));
    expect(report.refused.map(({ path }) => path).sort()).toEqual(["abs", "esc2", "fifo", "null", "up"]);
    expect(fs.readdirSync(join(home, "to")).sort()).toEqual(["d", "esc", "ok", "ok-link"]);
    await expect(files.download(join(home, "from"), join(home, "to"))).rejects.toMatchObject({ code: "conflict" });
    await expect(files.download(join(home, "absent"), join(home, "to2"))).rejects.toMatchObject({ code: "not_found" });
    expect(fs.existsSync(join(home, "to2"))).toBe(false);
  });

  test("that are too deep or too large fail loudly or are told", async () => {
    const build = "import os,sys\nos.chdir(sys.argv[1])\nos.mkdir('t'); os.chdir('t'); open('ok','w').write('1234')\nfor i in range(10000):\n os.mkdir('d'); os.chdir('d')";
    execFileSync("python3", ["-c", build, home]);
    const report = await files.download(join(home, "t"), join(home, "to"));
    expect(report.refused).toHaveLength(1);
    expect(report.refused[0]?.reason).toMatch(/deep/);
    expect(fs.readFileSync(join(home, "to/ok"), "utf8")).toBe("1234");
    await expect(files.download(join(home, "t"), join(home, "to3"), { maxBytes: 3 })).rejects.toMatchObject({ code: "limit_exceeded" });
    expect(fs.existsSync(join(home, "to3"))).toBe(false);
    fs.writeFileSync(join(home, "five"), "12345");
    await expect(files.upload(join(home, "five"), join(home, "to5"), { maxBytes: 3 })).rejects.toMatchObject({ code: "limit_exceeded" });
    await files.remove(join(home, "t"));
    await files.remove(join(home, "to"));
  });

  test("cut short by an abort or a kill fail loudly and leave no half tree", async () => {
    fs.mkdirSync(join(home, "from"));
    fs.writeFileSync(join(home, "from/large"), Buffer.alloc(200 << 20));
    const aborter = new AbortController();
    const running = files.download(join(home, "from"), join(home, "to"), { signal: aborter.signal });
    setTimeout(() => aborter.abort(new Error("enough")), 30);
    await expect(running).rejects.toThrow("enough");
    expect(fs.existsSync(join(home, "to"))).toBe(false);
    const killed = files.download(join(home, "from"), join(home, "to"));
    const killing = setInterval(() => void machine.connection.killAll(), 10);
    await expect(killed).rejects.toMatchObject({ code: "sandbox_failed" });
    clearInterval(killing);
    expect(fs.existsSync(join(home, "to"))).toBe(false);
    await expect(files.upload(join(home, "absent"), join(home, "x"))).rejects.toMatchObject({ code: "not_found" });
  });
});

describe("watching", () => {
  test("tells what happens below a directory, also in new ones", async () => {
    fs.mkdirSync(join(home, "sub"));
    const seen: string[] = [];
    const aborter = new AbortController();
    const watching = (async () => {
      for await (const event of files.watch(home, { recursive: true, signal: aborter.signal })) seen.push(`${event.kind} ${text(event.path).slice(home.length)}`);
    })();
    const until = async (what: string): Promise<void> => {
      for (let i = 0; i < 3000 && !seen.includes(what); i++) await sleep(20);
      expect(seen).toContain(what);
    };
    for (let i = 0; seen.length === 0; i++) {
      fs.writeFileSync(join(home, `probe-${i}`), "");
      await sleep(50);
    }
    fs.writeFileSync(join(home, "sub/a"), "1");
    await until("created /sub/a");
    await until("modified /sub/a");
    fs.mkdirSync(join(home, "new/deeper"), { recursive: true });
    await until("created /new/deeper");
    await sleep(50);
    fs.writeFileSync(join(home, "new/deeper/b"), "2");
    await until("created /new/deeper/b");
    fs.rmSync(join(home, "sub/a"));
    await until("removed /sub/a");
    aborter.abort(new Error("enough"));
    await expect(watching).rejects.toThrow("enough");
    await expect(files.watch(join(home, "absent"))[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: "not_found" });
  });

  test("ends when its reader leaves", async () => {
    let first: FileEvent | null = null;
    let written = 0;
    const writing = setInterval(() => fs.writeFileSync(join(home, `x${written++}`), ""), 50);
    for await (const event of files.watch(home)) {
      first = event;
      break;
    }
    clearInterval(writing);
    expect(first).toMatchObject({ kind: "created" });
    expect((await machine.run("pgrep -f dist-native/[f]iles")).code).toBe(1);
  });
});
