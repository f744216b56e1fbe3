import { execFileSync, spawn } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { buildNative, NATIVE } from "../../../../test/support/init-machine.ts";
import { WorkspaceReader } from "./workspace.ts";

/** What the spawner does: a listening socket as descriptor 3, the upper as 5, the layers as arguments. */
const LAUNCHER = `
import os, socket, sys
path, program, upper, *lowers = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(4)
a, b = os.dup(listener.fileno()), os.open(upper, os.O_RDONLY)
os.dup2(a, 13); os.dup2(b, 15)
os.dup2(13, 3); os.dup2(15, 5)
print("ready", flush=True)
os.closerange(6, 64)
os.execv(program, ["tree", *lowers])
`;

let home: string;
let readers: WorkspaceReader[];
beforeAll(buildNative);
beforeEach(() => {
  home = fs.mkdtempSync(join(fs.existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "mw-tree-"));
  for (const name of ["top", "bottom", "upper", "work", "merged"]) fs.mkdirSync(join(home, name));
  readers = [];
});
afterEach(() => {
  for (const reader of readers) reader.close();
  execFileSync("rm", ["-rf", home]);
});

/** Runs a script in a mounted overlay of the two layers: what an agent does to a machine. */
function agent(script: string, lower = "top:bottom", upper = "upper"): void {
  const options = `lowerdir=${lower.split(":").map((name) => join(home, name)).join(":")},upperdir=${join(home, upper)},workdir=${join(home, "work")},redirect_dir=nofollow,index=off,metacopy=off`;
  execFileSync("unshare", ["-m", "sh", "-ec", `mount -t overlay overlay -o ${options} ${home}/merged; cd ${home}/merged; ${script}`]);
}

async function read(upper = "upper", lowers = ["top", "bottom"]): Promise<WorkspaceReader> {
  const socket = join(home, `sock${readers.length}`);
  const child = spawn("python3", ["-c", LAUNCHER, socket, join(NATIVE, "tree"), join(home, upper), ...lowers.map((name) => join(home, name))], { stdio: ["ignore", "pipe", "inherit"] });
  await new Promise((resolve) => child.stdout.once("data", resolve));
  const reader = await WorkspaceReader.connect(socket);
  readers.push(reader);
  return reader;
}

async function changes(reader: WorkspaceReader): Promise<string[]> {
  return (await reader.changes()).map(({ path, kind, type, target }) => `${kind} ${type} ${Buffer.from(path).toString()}${target ? ` -> ${Buffer.from(target).toString()}` : ""}`).sort();
}

describe("a sealed workspace", () => {
  test("tells what was added, changed and removed, whichever layer had it", async () => {
    execFileSync("sh", ["-c", "cd bottom; mkdir -p d/e gone; echo 1 > d/low; echo 1 > gone/x; echo 1 > file; ln -s a link; mkdir keep; cd ../top; mkdir d; echo 2 > d/top; echo 2 > once"], { cwd: home });
    agent("echo new > d/new; echo changed > d/low; rm d/top; rm -r gone; rm file; mkdir file; echo x > file/in; ln -sf b link; chmod 700 keep; mkdir -p n/m; mkfifo n/fifo; touch d/e/t; rm d/e/t; rm once; echo back > once");
    expect(await changes(await read())).toEqual(
      [
        "added file /d/new", "changed file /d/low", "removed file /d/top", "removed directory /gone", "changed directory /file", "added file /file/in",
        "changed symlink /link -> b", "changed directory /keep", "added directory /n", "added directory /n/m", "added fifo /n/fifo", "changed file /once",
      ].sort(),
    );
  });

  test("tells of a replaced directory what the image loses with it", async () => {
    execFileSync("sh", ["-c", "mkdir -p bottom/d/sub top/d; echo 1 > bottom/d/a; echo 1 > bottom/d/b; echo 1 > bottom/d/sub/c; echo 1 > top/d/t"], { cwd: home });
    agent("rm -r d; mkdir d; echo mine > d/a");
    expect(await changes(await read())).toEqual(["changed directory /d", "changed file /d/a", "removed directory /d/sub", "removed file /d/b", "removed file /d/t"].sort());
  });

  test("shows the image again where paths are discarded", async () => {
    execFileSync("sh", ["-c", "mkdir -p bottom/bin bottom/lib/deep bottom/etc; echo image > bottom/bin/tool; chmod 4755 bottom/bin/tool; echo image > bottom/lib/deep/x; echo image > bottom/lib/other; echo image > bottom/etc/conf; echo image > bottom/etc/forged; touch -d @1000000000 bottom/etc/forged"], { cwd: home });
    agent("echo evil > bin/tool; rm -r lib; rm -r etc; mkdir etc; echo evil > etc/conf; echo evil. > etc/forged; touch -d @1000000000 etc/forged; mkdir -p own/deep; echo mine > own/deep/kept; echo x > own/gone");
    const reader = await read();
    await reader.discard(["/bin/tool", "/lib/deep/x", "/etc/conf", "/own/gone", "/own/not/there", "/nothing"]);
    // What is the image's again is no change; what only looks like it is one.
    expect((await changes(reader)).filter((line) => /tool|deep\/x|etc\//.test(line))).toEqual(["changed file /etc/forged"]);
    fs.rmSync(join(home, "work"), { recursive: true });
    fs.mkdirSync(join(home, "work"));
    agent("test \"$(cat bin/tool lib/deep/x etc/conf)\" = \"$(printf 'image\\nimage\\nimage')\"; test -u bin/tool; test ! -e lib/other; test -e own/deep/kept; test ! -e own/gone");
    await expect(reader.discard(["/own/../bin"])).rejects.toMatchObject({ code: "invalid_input" });
    await expect(reader.discard(["/"])).rejects.toMatchObject({ code: "invalid_input" });
  });

  test("reads its own regular files, following nothing", async () => {
    execFileSync("sh", ["-c", "echo image > bottom/image; echo image > bottom/gone; echo secret > secret"], { cwd: home });
    agent("mkdir d; echo own > d/own; ln -s /etc/passwd d/abs; ln -s ../../secret d/rel; ln -s d dl; mkfifo d/fifo; rm gone");
    const reader = await read();
    expect(Buffer.from((await reader.read("/d/own", 100)) ?? []).toString()).toBe("own\n");
    for (const path of ["/image", "/gone", "/none/at/all", "/d/own/below", "/dl/own"]) expect(await reader.read(path, 100)).toBeNull();
    for (const path of ["/d/abs", "/d/rel", "/d/fifo", "/d", "/d/../d/own"]) await expect(reader.read(path, 100)).rejects.toMatchObject({ code: "invalid_input" });
    await expect(reader.read("/d/own", 3)).rejects.toMatchObject({ code: "limit_exceeded" });
    expect(Buffer.from((await reader.read("d/own", 4)) ?? []).toString()).toBe("own\n");
    expect(await reader.usage()).toBeGreaterThan(0);
  });

  test("is exported exactly: owners, modes, times, attributes, links, holes, whiteouts", async () => {
    execFileSync("sh", ["-c", "mkdir -p bottom/d bottom/replaced; echo 1 > bottom/d/gone; echo 1 > bottom/d/gone2; echo 1 > bottom/replaced/x"], { cwd: home });
    agent(
      "rm d/gone d/gone2; rm -r replaced; mkdir replaced; truncate -s 50M hole; printf end >> hole; echo x > a; ln a b; mkdir -p sub/deep; ln a sub/deep/c; ln -s nowhere dangling; mkfifo fifo; " +
        "cp /bin/true suid; chown 12:34 suid; chmod 6755 suid; touch -d @1234567890.123456789 a; setfattr -n user.mark -v yes a 2>/dev/null || true; chown -h 5:6 dangling; chmod 1777 sub; touch -d @1111111111.5 sub; " +
        "python3 -c \"import os; os.setxattr('suid','security.capability',bytes.fromhex('0100000200200000000000000000000000000000'))\"",
    );
    const reader = await read();
    await reader.export(join(home, "export"));
    const list = (root: string): string[] => execFileSync("find", [".", "-printf", "%P %y %m %U %G %n %s %T@ %l\\n"], { cwd: join(home, root) })
        .toString()
        .split("\n")
        // The kernel keeps one more name of the whiteouts in its work directory.
        .map((line) => line.replace(/( c 0 0 0) \d+/, "$1"))
        .sort();
    expect(list("export")).toEqual(list("upper"));
    const attributes = "import os\nfor d,_,fs in os.walk('.'):\n  for f in [d]+[os.path.join(d,x) for x in fs]:\n    for a in sorted(os.listxattr(f,follow_symlinks=False)): print(f,a,os.getxattr(f,a,follow_symlinks=False).hex())";
    const xattrs = (root: string): string[] => execFileSync("python3", ["-c", attributes], { cwd: join(home, root) }).toString().split("\n").sort();
    expect(xattrs("export")).toEqual(xattrs("upper"));
    expect(xattrs("export").join()).toContain("security.capability");
    expect(xattrs("export").join()).toContain("overlay.opaque");
    expect(fs.statSync(join(home, "export/hole")).blocks).toBeLessThan(1000);
    expect(fs.statSync(join(home, "export/a")).ino).toBe(fs.statSync(join(home, "export/sub/deep/c")).ino);
    execFileSync("diff", ["-r", "--no-dereference", join(home, "upper/sub"), join(home, "export/sub")]);
    await expect(reader.export(join(home, "export"))).rejects.toMatchObject({ code: "conflict" });
    await expect(reader.export(join(home, "no/parent"))).rejects.toMatchObject({ code: "not_found" });
    // A second layer made of the first behaves as the machine did.
    fs.mkdirSync(join(home, "upper2"));
    agent("test ! -e d/gone; test ! -e replaced/x; test -u suid; test \"$(cat b)\" = x", "export:bottom", "upper2");
  });

  test("of hostile shape fails loudly rather than leave something out", async () => {
    execFileSync("python3", ["-c", "import os,sys\nos.chdir(sys.argv[1])\nfor i in range(3000):\n os.mkdir('d'); os.chdir('d')", join(home, "upper")]);
    await expect((await read()).changes()).rejects.toMatchObject({ code: "limit_exceeded" });
    const reader = await read();
    await expect(reader.export(join(home, "export"))).rejects.toMatchObject({ code: "limit_exceeded" });
    expect(fs.existsSync(join(home, "export"))).toBe(false);
    await reader.discard(["/d"]);
    expect(await reader.changes()).toEqual([]);
  });

  test("is let go when the client leaves", async () => {
    const reader = await read();
    const pending = reader.usage();
    reader.close();
    await expect(pending).rejects.toMatchObject({ code: "sandbox_gone" });
    await expect(reader.usage()).rejects.toMatchObject({ code: "sandbox_gone" });
  });
});
