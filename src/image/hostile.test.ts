/** Archives that try to write outside their root, or to make something else than what they say. Nothing outside may change, whatever they hold. */
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { describeTree, rawTar, temporaryDirectory, type RawEntry } from "../../test/support/image-tools.ts";
import type { MwError } from "../core/errors.ts";
import { openImageStore, type LocalImageStore } from "./store.ts";

interface Attempt {
  readonly store: LocalImageStore;
  readonly outside: string;
  readonly home: string;
  readonly error: MwError | null;
  /** The layer, when the archive was taken. */
  readonly layer: string;
}

async function attempt(entries: (outside: string) => readonly RawEntry[] | Buffer): Promise<Attempt> {
  const base = temporaryDirectory();
  const outside = join(base, "outside");
  const home = join(base, "home");
  mkdirSync(outside);
  writeFileSync(join(outside, "victim"), "untouched");
  const made = entries(outside);
  writeFileSync(join(base, "a.tar"), Buffer.isBuffer(made) ? made : rawTar(made));
  const store = await openImageStore({ home });
  let error: MwError | null = null;
  let layer = "";
  try {
    const image = await store.resolve(`tar:${join(base, "a.tar")}`);
    layer = (await store.rootFilesystem(image)).layers[0] ?? "";
  } catch (thrown) {
    error = thrown as MwError;
  }
  const kept = { images: (await store.list()).length, layers: readdirSync(join(home, "images/layers")).length, halfMade: readdirSync(join(home, "images/tmp")).length };
  expect(kept).toEqual(error === null ? { images: 1, layers: 1, halfMade: 0 } : { images: 0, layers: 0, halfMade: 0 });
  expect(error?.code ?? "invalid_image").toMatch(/^(invalid_image|limit_exceeded|environment)$/);
  expect(readdirSync(outside)).toEqual(["victim"]);
  expect(readFileSync(join(outside, "victim"), "utf8")).toBe("untouched");
  expect(statSync(join(outside, "victim")).nlink).toBe(1);
  expect(existsSync("/evil")).toBe(false);
  expect(readdirSync(base).sort()).toEqual(["a.tar", "home", "outside"]);
  return { store, outside, home, error, layer };
}

describe("archives that reach outside", () => {
  const fine: RawEntry = { name: "fine", body: "ok" };

  it.each<[string, (outside: string) => readonly RawEntry[], string]>([
    ["a name with ..", () => [fine, { name: "../evil", body: "x" }], "../evil"],
    ["a name with .. in the middle", () => [fine, { name: "a/../../evil", body: "x" }], "a/../../evil"],
    ["a file below a link to an absolute place", (outside) => [fine, { name: "d", type: "2", target: outside }, { name: "d/evil", body: "x" }], "d/evil"],
    ["a file below a link to the parent", () => [fine, { name: "a", type: "2", target: ".." }, { name: "a/b/evil", body: "x" }], "a/b/evil"],
    ["a directory below a link", (outside) => [{ name: "d", type: "2", target: outside }, { name: "d/evil", type: "5" }], "d/evil"],
    ["a hard link to a name with ..", () => [{ name: "l", type: "1", target: "../outside/victim" }], "l"],
    ["a hard link through a link", (outside) => [{ name: "d", type: "2", target: outside }, { name: "l", type: "1", target: "d/victim" }], "l"],
    ["a hard link to an absolute place", (outside) => [{ name: "l", type: "1", target: join(outside, "victim") }], "l"],
    ["a symbolic link below a link", (outside) => [{ name: "d", type: "2", target: outside }, { name: "d/l", type: "2", target: "x" }], "d/l"],
    ["a device that the overlay takes for a whiteout", () => [{ name: "dev", type: "3", major: 0, minor: 0 }], "dev"],
    ["a name with an overlong part", () => [{ name: "x".repeat(300), body: "x" }], "x".repeat(20)],
    ["a path 10,000 deep", () => [{ name: `${"a/".repeat(10_000)}f`, body: "x" }], "a/a/a/a"],
    ["an unknown kind of entry", () => [{ name: "odd", type: "Z", body: "x" }], "odd"],
  ])("refuses %s and names the entry", async (_what, entries, named) => {
    const { error } = await attempt(entries);
    expect(error?.code).toBe("invalid_image");
    expect(error?.message).toContain(named.slice(0, 20));
  });

  it("puts absolute names below the root", async () => {
    const { layer, error } = await attempt(() => [{ name: "/evil", body: "x" }, { name: "//abs/./evil", body: "y" }]);
    expect(error).toBeNull();
    expect(readFileSync(join(layer, "evil"), "utf8")).toBe("x");
    expect(readFileSync(join(layer, "abs/evil"), "utf8")).toBe("y");
  });

  it("lets the last of several entries for a path win, without following the earlier ones", async () => {
    const { layer, outside } = await attempt((place) => [
      { name: "x", type: "5", mode: 0o755 },
      { name: "x/child", body: "c" },
      { name: "x", type: "2", target: join(place, "victim") },
      { name: "x", body: "last", mode: 0o600 },
    ]);
    expect(readFileSync(join(layer, "x"), "utf8")).toBe("last");
    expect(statSync(join(layer, "x")).mode & 0o777).toBe(0o600);
    expect(readFileSync(join(outside, "victim"), "utf8")).toBe("untouched");
  });

  it("writes over a hard-linked name without touching the other name", async () => {
    const { layer } = await attempt(() => [{ name: "a", body: "first" }, { name: "b", type: "1", target: "a" }, { name: "b", body: "second" }]);
    expect([readFileSync(join(layer, "a"), "utf8"), readFileSync(join(layer, "b"), "utf8")]).toEqual(["first", "second"]);
  });

  it("keeps relative links, fifos and deep paths that are allowed", async () => {
    const deep = `${"d/".repeat(2000)}f`;
    const { layer, store } = await attempt(() => [{ name: "f", body: "1" }, { name: "sub/l", type: "2", target: "../f" }, { name: "p", type: "6" }, { name: deep, body: "deep" }]);
    expect(readFileSync(join(layer, "sub/l"), "utf8")).toBe("1");
    expect(statSync(join(layer, "p")).isFIFO()).toBe(true);
    // It can be taken away again, too.
    for (const { image } of await store.list()) await store.remove(image.digest);
    const other = await openImageStore({ home: join(layer, "../../../../") });
    await other.collect();
    expect(existsSync(layer)).toBe(true);
  });

  it("drops attributes that speak to the overlay", async () => {
    const { layer } = await attempt(() => [
      pax("SCHILY.xattr.trusted.overlay.redirect", "/etc"),
      { name: "d", type: "5", mode: 0o755 },
      pax("SCHILY.xattr.user.overlay.opaque", "y"),
      { name: "e", type: "5", mode: 0o755 },
      pax("SCHILY.xattr.user.mine", "kept"),
      { name: "f", body: "" },
    ]);
    expect(describeTree(layer)).not.toContain("overlay");
    expect(describeTree(layer)).toContain("('user.mine', b'kept')");
  });
});

describe("archives that are broken", () => {
  const whole = rawTar([{ name: "a", body: "x".repeat(2000) }, { name: "b", body: "y" }]);

  it("refuses one that ends in the middle of a file", async () => {
    expect((await attempt(() => whole.subarray(0, 1000))).error?.message).toContain("ends in the middle");
  });

  it("refuses a wrong checksum and random bytes", async () => {
    const damaged = Buffer.from(whole);
    damaged[3] = 0x41;
    expect((await attempt(() => damaged)).error?.message).toContain("checksum");
    expect((await attempt(() => Buffer.alloc(5000, 7))).error).not.toBeNull();
  });

  it("refuses a size that no layer has", async () => {
    expect((await attempt(() => [{ name: "big", size: 0o7777777777777 }])).error).not.toBeNull();
  });

  it("refuses a PAX record that lies about its length", async () => {
    for (const body of ["999 path=x\n", "5 pa", "0 a=b\n", "12 path=evil"]) expect((await attempt(() => [{ name: "pax", type: "x", body }, { name: "a" }])).error?.message).toContain("PAX");
  });

  it("refuses a gzip stream that is cut or damaged", async () => {
    const { gzipSync } = await import("node:zlib");
    const zipped = gzipSync(Buffer.concat([whole, Buffer.alloc(100_000)]));
    expect((await attempt(() => zipped.subarray(0, 60))).error).not.toBeNull();
    const damaged = Buffer.from(zipped);
    damaged.fill(0x55, damaged.length - 30, damaged.length - 20);
    expect((await attempt(() => damaged)).error).not.toBeNull();
  });

  it.each(["xz", "bzip2"])("reads %s through the host's program, refuses a stream that is cut or damaged, and says what is missing where there is no program", async (program) => {
    const packed = execFileSync(program, ["-c"], { input: Buffer.concat([whole, randomBytes(100_000)]) });
    expect((await attempt(() => packed)).error).toBeNull();
    expect((await attempt(() => packed.subarray(0, packed.length - 1000))).error).toMatchObject({ code: "invalid_image", message: expect.stringContaining("damaged") });
    const damaged = Buffer.from(packed);
    damaged.fill(0x55, 1000, 50_000);
    expect((await attempt(() => damaged)).error).toMatchObject({ code: "invalid_image", message: expect.stringContaining("damaged") });
    const path = process.env["PATH"];
    process.env["PATH"] = "/nowhere";
    try {
      expect((await attempt(() => packed)).error).toMatchObject({ code: "environment", message: expect.stringContaining(program), fix: expect.stringContaining("apt-get install") });
    } finally {
      process.env["PATH"] = path;
    }
  });
});

/** An extended header with one record. */
function pax(key: string, value: string): RawEntry {
  const rest = ` ${key}=${value}\n`;
  const length = rest.length + String(rest.length + 2).length;
  return { name: "pax", type: "x", body: `${length}${rest}` };
}
