import { spawn } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { describeTree, inOverlay, python, run, temporaryDirectory } from "../../test/support/image-tools.ts";
import { LIMITS } from "../core/limits.ts";
import { EMPTY_CONFIG } from "./records.ts";
import { openImageStore } from "./store.ts";
import { mortal } from "../../test/support/mortal.ts";

/** A root with everything that is easily lost. */
function difficultRoot(): string {
  const root = join(temporaryDirectory(), "root");
  mkdirSync(join(root, "bin"), { recursive: true });
  mkdirSync(join(root, "e"));
  mkdirSync(join(root, "sp ace"));
  writeFileSync(join(root, ".env"), "A=1");
  writeFileSync(join(root, "bin/run"), "#!/bin/sh\n");
  chmodSync(join(root, "bin/run"), 0o4755);
  writeFileSync(join(root, "sp ace/ü 北.txt"), "x");
  writeFileSync(join(root, "empty"), "");
  writeFileSync(join(root, "big"), Buffer.alloc(3 << 20, "0123456789abcdef"));
  symlinkSync("bin/run", join(root, "l"));
  symlinkSync("/nowhere/at all", join(root, "dangling"));
  python(
    `
import os, sys
os.chdir(sys.argv[1])
open(b'\\xff\\xfe not utf8', 'w').write('bytes')
os.link('.env', 'sp ace/hard')
os.mkfifo('fifo', 0o640)
f = open('sparse', 'wb'); f.truncate(64 << 20); f.seek(40 << 20); f.write(b'middle'); f.close()
os.mkdir('closed', 0o000)
open('.wh.keep', 'w').write('literal')
os.chown('bin/run', 1234, 3000000000); os.chmod('bin/run', 0o6755)
os.mknod('null', 0o20666, os.makedev(1, 3))
os.setxattr('.env', 'user.note', b'\\x00\\xffbinary')
os.setxattr('big', 'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))
os.utime('empty', ns=(1, 1234567890123456789)); os.utime('e', ns=(1, 987654321))
os.utime('l', ns=(5, 5000000007), follow_symlinks=False)
`,
    root,
  );
  return root;
}

describe("roots", () => {
  it("keeps everything of a directory: bytes, modes, owners, links, holes, attributes, nanoseconds", async () => {
    const root = difficultRoot();
    const store = await openImageStore({ home: temporaryDirectory() });
    const image = await store.resolve(`dir:${root}`);
    const [layer = ""] = (await store.rootFilesystem(image)).layers;
    expect(describeTree(layer)).toBe(describeTree(root));
    expect(Number(run("du", "-k", join(layer, "sparse")).split("\t")[0])).toBeLessThan(1024);
    expect(await store.resolve(`dir:${root}`)).toEqual(image);
  });

  it.each([["uncompressed", []], ["gzip", ["gzip"]], ["zstd", ["zstd"]], ["xz", ["xz"]], ["bzip2", ["bzip2"]]])("keeps everything of an archive (%s) that GNU tar wrote", async (_name, compressor) => {
    const root = difficultRoot();
    const file = join(temporaryDirectory(), "root.tar");
    run("tar", "--xattrs", "--xattrs-include=*", "--format=posix", "--sparse", "-C", root, "-cf", file, ".");
    const [program] = compressor;
    if (program !== undefined) writeFileSync(file, Buffer.from(run("sh", "-c", `${program} -c "$0" | base64`, file), "base64"));
    const store = await openImageStore({ home: temporaryDirectory() });
    const [layer = ""] = (await store.rootFilesystem(await store.resolve(`tar:${file}`))).layers;
    expect(describeTree(layer)).toBe(describeTree(root));
  });

  it("reads what GNU tar writes in its own old format, sparse files among it", async () => {
    const root = temporaryDirectory();
    writeFileSync(join(root, "x".repeat(150)), "long");
    python("import sys; f = open(sys.argv[1] + '/sparse', 'wb'); [(f.seek(i << 20), f.write(b'part')) for i in range(0, 60, 2)]", root);
    const file = join(temporaryDirectory(), "root.tar");
    run("tar", "--format=gnu", "--sparse", "-C", root, "-cf", file, ".");
    const store = await openImageStore({ home: temporaryDirectory() });
    const [layer = ""] = (await store.rootFilesystem(await store.resolve(`tar:${file}`))).layers;
    for (const name of readdirSync(root)) expect(readFileSync(join(layer, name)).equals(readFileSync(join(root, name)))).toBe(true);
  });

  it("gives equal trees equal digests, and a changed tree another image", async () => {
    const root = difficultRoot();
    const copy = join(temporaryDirectory(), "copy");
    run("cp", "-a", root, copy);
    const store = await openImageStore({ home: temporaryDirectory() });
    const first = await store.resolve(`dir:${root}`);
    expect((await store.resolve(`dir:${copy}`)).digest).toBe(first.digest);
    writeFileSync(join(root, "bin/run"), "changed");
    expect((await store.resolve(`dir:${root}`)).digest).not.toBe(first.digest);
  });

  it("names what is missing or of the wrong kind", async () => {
    const store = await openImageStore({ home: temporaryDirectory() });
    await expect(store.resolve("dir:/no/such")).rejects.toMatchObject({ code: "invalid_image", message: expect.stringContaining("/no/such") });
    await expect(store.resolve("dir:/etc/passwd")).rejects.toMatchObject({ code: "invalid_image", message: expect.stringContaining("is not a directory") });
    await expect(store.resolve("tar:/etc")).rejects.toMatchObject({ code: "invalid_image" });
    await expect(store.resolve("dir:/")).rejects.toMatchObject({ fix: expect.stringContaining("host") });
  });
});

describe("layers made here", () => {
  it("commits an overlay upper exactly: whiteouts, opaque directories, a literal .wh. name", async () => {
    const home = temporaryDirectory();
    const base = join(temporaryDirectory(), "base");
    mkdirSync(join(base, "d"), { recursive: true });
    writeFileSync(join(base, "d/old"), "old");
    writeFileSync(join(base, "gone"), "gone");
    mkdirSync(join(base, "swapped"));
    writeFileSync(join(base, "swapped/old"), "old");
    const store = await openImageStore({ home });
    const image = await store.resolve(`dir:${base}`);
    const upper = join(home, "upper");
    inOverlay((await store.rootFilesystem(image)).layers, `rm -r d && mkdir d && touch d/new d/.wh.keep && rm gone && rm -r swapped && ln -s d swapped && cp -a ../u '${upper}'`);
    const built = await store.commit(image, upper, { ...EMPTY_CONFIG, workdir: "/d" }, "test");
    expect(existsSync(upper)).toBe(false);
    const root = await store.rootFilesystem(built);
    expect(root.workdir).toBe("/d");
    expect(root.layers).toHaveLength(2);
    expect(inOverlay(root.layers, "find . | sort")).toBe(".\n./d\n./d/.wh.keep\n./d/new\n./swapped\n");
    expect(await store.find(built.digest)).toEqual(built);
  });

  it("changes only the configuration without a layer, and tags", async () => {
    const store = await openImageStore({ home: temporaryDirectory() });
    const empty = join(temporaryDirectory(), "empty");
    mkdirSync(empty);
    const image = await store.commit(null, empty, EMPTY_CONFIG, "scratch");
    const other = await store.commit(image, null, { ...EMPTY_CONFIG, cmd: ["x"] }, "other");
    expect(other.layers).toEqual(image.layers);
    expect(other.digest).not.toBe(image.digest);
    await store.tag(other, "mine");
    expect((await store.resolve("docker.io/library/mine:latest")).digest).toBe(other.digest);
    await store.remove("mine:latest");
    expect(await store.find("mine")).toBeNull();
    await expect(store.remove("mine")).rejects.toMatchObject({ code: "not_found" });
  });
});

describe("the collector", () => {
  it("takes what no name and no living process uses, and nothing else", async () => {
    const home = temporaryDirectory();
    const [kept, dropped] = [difficultRoot(), difficultRoot()];
    writeFileSync(join(dropped, "more"), "different");
    // Other processes made these and are gone.
    for (const root of [kept, dropped]) resolveInChild(home, `dir:${root}`);
    const store = await openImageStore({ home });
    await store.remove(`dir:${dropped}`);
    expect(await store.collect()).toBeGreaterThan(3 << 20);
    expect(readdirSync(join(home, "images/layers"))).toHaveLength(1);
    const image = await store.resolve(`dir:${kept}`);
    await store.remove(image.digest);
    // This process uses it: another one's collector must leave it alone.
    collectInChild(home);
    expect(existsSync(`${store.layers.path(image.layers[0]?.digest ?? "")}/big`)).toBe(true);
  });

  it("removes what killed processes left half-made, and the work is done again", async () => {
    const root = difficultRoot();
    python("import sys\nfor i in range(1500): open(f'{sys.argv[1]}/f{i}', 'w').write('x' * 10000)", root);
    const home = await halfMade(root);
    const store = await openImageStore({ home });
    const image = await store.resolve(`dir:${root}`);
    await store.collect();
    expect(readdirSync(join(home, "images/tmp"))).toEqual([]);
    const [layer = ""] = (await store.rootFilesystem(image)).layers;
    expect(describeTree(layer)).toBe(describeTree(root));
  });

  it("shares the work of callers in one process and in several", async () => {
    const home = temporaryDirectory();
    const root = difficultRoot();
    const store = await openImageStore({ home });
    const messages: string[] = [];
    const options = { progress: (message: string) => void messages.push(message) };
    const children = [1, 2].map(() => new Promise((resolve) => mortal(spawn(process.execPath, childArguments(home, `dir:${root}`), { stdio: "ignore" })).once("exit", resolve)));
    const images = await Promise.all([1, 2, 3, 4].map(() => store.resolve(`dir:${root}`, options)));
    expect(new Set(images.map(({ digest }) => digest)).size).toBe(1);
    expect(messages.filter((message) => message.startsWith("copying")).length).toBeLessThanOrEqual(1);
    expect(await Promise.all(children)).toEqual([0, 0]);
    expect(readdirSync(join(home, "images/layers"))).toHaveLength(1);
  });

  it("stops when every caller has gone away, and leaves nothing", async () => {
    const home = temporaryDirectory();
    const store = await openImageStore({ home });
    const controller = new AbortController();
    const work = store.resolve(`dir:${difficultRoot()}`, { signal: controller.signal, progress: () => controller.abort(new Error("enough")) });
    await expect(work).rejects.toThrow("enough");
    while (readdirSync(join(home, "images/tmp")).length > 0) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(await store.list()).toEqual([]);
  });
});

describe("names", () => {
  it("follows aliases, names circles, and lets configuration win over tables", async () => {
    const root = temporaryDirectory();
    const store = await openImageStore({ home: temporaryDirectory(), aliases: { "python:3.12-slim": `dir:${root}`, a: "b", b: "a" } });
    expect((await store.resolve("docker.io/library/python:3.12-slim")).source).toBe(`dir:${root}`);
    await expect(store.resolve("a")).rejects.toMatchObject({ message: expect.stringContaining("circle") });
    await store.aliases.set("node:22", "python:3.12-slim");
    expect((await store.resolve("node:22")).source).toBe(`dir:${root}`);
    expect(await store.aliases.list()).toContainEqual({ name: "debian:12", image: "mmdebstrap:bookworm", origin: "shipped" });
    await expect(store.aliases.set("dir:/x", "host")).rejects.toMatchObject({ code: "usage" });
  });

  it("refuses damaged records instead of guessing", async () => {
    const home = temporaryDirectory();
    const root = temporaryDirectory();
    const store = await openImageStore({ home });
    await store.resolve(`dir:${root}`);
    const [file = ""] = readdirSync(join(home, "images/images"));
    writeFileSync(join(home, "images/images", file), "{");
    await expect(store.list()).rejects.toMatchObject({ code: "corrupt", message: expect.stringContaining(file) });
  });

  it("has no more layers than the kernel stacks", () => {
    // 500 is the kernel's limit; a machine adds some of its own.
    expect(LIMITS.imageLayers).toBeLessThan(400);
  });
});

/** A data directory whose maker of this tree's image was killed in the middle of it; one that was done before is none. */
async function halfMade(root: string): Promise<string> {
  for (;;) {
    const home = temporaryDirectory();
    const entries = (directory: string): string[] => (existsSync(join(home, directory)) ? readdirSync(join(home, directory)) : []);
    const child = mortal(spawn(process.execPath, childArguments(home, `dir:${root}`), { stdio: "ignore" }));
    const ended = new Promise((resolve) => child.once("exit", resolve));
    const begun = (): boolean => entries("images/tmp").some((name) => existsSync(join(home, "images/tmp", name, "fs/bin")));
    while (child.exitCode === null && !begun()) await new Promise((resolve) => setTimeout(resolve, 2));
    child.kill("SIGKILL");
    await ended;
    if (entries("images/layers").length === 0) return home;
  }
}

function childArguments(home: string, reference: string): string[] {
  const module = new URL("../../dist/image/store.js", import.meta.url).href;
  const code = reference === "" ? "await s.collect()" : `await s.resolve(${JSON.stringify(reference)})`;
  return ["--input-type=module", "-e", `const { openImageStore } = await import(${JSON.stringify(module)}); const s = await openImageStore({ home: ${JSON.stringify(home)} }); ${code};`];
}

const resolveInChild = (home: string, reference: string): string => run(process.execPath, ...childArguments(home, reference));
const collectInChild = (home: string): string => run(process.execPath, ...childArguments(home, ""));
