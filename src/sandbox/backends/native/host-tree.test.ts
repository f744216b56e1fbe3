import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { LIMITS } from "../../../core/limits.ts";
import { FILE_TAG, FILES, KINDS, type Kind } from "./files-protocol.ts";
import { globMatcher } from "./glob.ts";
import { HostTreeWriter } from "./host-tree.ts";
import { decodeItem, encodeItem, Refusals, type TreeItem } from "./tree-items.ts";
import { escapes } from "./tree-paths.ts";
import { encodeFrame, FrameDecoder } from "./wire.ts";

let home: string;
let target: string;
beforeEach(() => {
  home = fs.mkdtempSync(join(tmpdir(), "mw-host-"));
  target = join(home, "target");
  fs.mkdirSync(join(home, "outside"));
  fs.writeFileSync(join(home, "outside/file"), "safe");
});
afterEach(() => fs.rmSync(home, { recursive: true, force: true }));

const entry = (kind: Kind, path: string, link?: string, mode = 0o644): TreeItem => ({
  type: "entry", path: Buffer.from(path, "latin1"), kind, mode, mtimeNs: 10n ** 18n, target: link === undefined ? null : Buffer.from(link, "latin1"),
});
const data = (text: string): TreeItem => ({ type: "data", data: Buffer.from(text) });

function write(items: readonly TreeItem[]): HostTreeWriter {
  const writer = new HostTreeWriter(target);
  for (const item of items) writer.take(item);
  writer.finish();
  return writer;
}

/** Nothing beside the target came into being or changed. */
function expectOutsideUntouched(): void {
  expect(fs.readdirSync(home).filter((name) => name !== "target")).toEqual(["outside"]);
  expect(fs.readdirSync(join(home, "outside"))).toEqual(["file"]);
  expect(fs.readFileSync(join(home, "outside/file"), "utf8")).toBe("safe");
}

/** Links below the target whose real path is not below it. */
function linksThatLeave(): string[] {
  if (!fs.lstatSync(target).isDirectory()) return [];
  return fs
    .readdirSync(target, { recursive: true, withFileTypes: true })
    .filter((found) => found.isSymbolicLink())
    .map((found) => fs.realpathSync(join(found.parentPath, found.name), { encoding: "utf8" }))
    .filter((real) => real !== target && !real.startsWith(`${target}/`));
}

describe("a tree from a machine", () => {
  test.each<[string, readonly TreeItem[]]>([
    ["a path with ..", [entry("file", "../evil"), data("x")]],
    ["a path with .. in the middle", [entry("directory", "a"), entry("file", "a/../../evil"), data("x")]],
    ["an absolute path", [entry("file", "/tmp/mw-host-evil"), data("x")]],
    ["an empty component", [entry("file", "a//b"), data("x")]],
    ["a path with NUL", [entry("file", "a\0b"), data("x")]],
    ["a second empty path", [entry("directory", "a"), entry("file", ""), data("x")]],
    ["a file below an absolute link", [entry("symlink", "d", "/tmp"), entry("file", "d/mw-host-evil"), data("x")]],
    ["a file below a link to the parent", [entry("symlink", "a", ".."), entry("directory", "a/b"), entry("file", "a/b/evil"), data("x")]],
    ["a name that was a directory, then a link, then a file", [entry("directory", "d"), entry("symlink", "d", "../outside"), entry("file", "d/file"), data("x"), entry("file", "d"), data("x")]],
    ["a name that was a link, then a file", [entry("symlink", "f", "../outside/file"), entry("file", "f"), data("evil")]],
    ["a hard link to the outside", [entry("hardlink", "h", "../outside/file"), data("evil")]],
    ["a hard link to a link", [entry("symlink", "s", "../outside/file"), entry("hardlink", "h", "s")]],
    ["devices, FIFOs and sockets", [entry("device", "null"), entry("fifo", "p"), entry("socket", "s")]],
    ["a file whose directory never came", [entry("file", "no/such"), data("x")]],
    ["a path without end", [entry("file", `${"d/".repeat(10_000)}x`), data("x")]],
    ["a name too long", [entry("file", "n".repeat(256)), data("x")]],
    ["a link to an absolute path", [entry("symlink", "l", "/etc/passwd")]],
    ["a link out through another link", [entry("directory", "d"), entry("symlink", "d/up", ".."), entry("symlink", "l", "d/up/../outside")]],
    ["links in a circle", [entry("symlink", "a", "b/.."), entry("symlink", "b", "a/..")]],
  ])("with %s: refused and told, nothing outside touched, the rest whole", (_name, items) => {
    const writer = write([entry("file", "good"), data("good"), ...items, entry("symlink", "good-link", "good")]);
    expect(writer.refusals.list.length).toBeGreaterThan(0);
    expect(fs.readFileSync(join(target, "good"), "utf8")).toBe("good");
    expect(fs.readlinkSync(join(target, "good-link"))).toBe("good");
    expectOutsideUntouched();
    expect(fs.existsSync("/tmp/mw-host-evil")).toBe(false);
  });

  test("keeps bytes, modes and times, and no set-id bit", () => {
    write([entry("directory", "d", undefined, 0o750), entry("file", "d/\xff", undefined, 0o6755), data("a"), data("b"), entry("hardlink", "h", "d/\xff"), entry("directory-end", "d")]);
    const path = Buffer.concat([Buffer.from(join(target, "d/")), Buffer.from([0xff])]);
    expect(fs.readFileSync(path, "utf8")).toBe("ab");
    expect(fs.statSync(path)).toMatchObject({ mode: 0o100755, nlink: 2, mtimeMs: 1e12 });
    expect(fs.statSync(join(target, "d"))).toMatchObject({ mode: 0o40750, mtimeMs: 1e12 });
  });

  test("over a limit, or into something that exists, is an error; a discarded one leaves nothing", () => {
    const writer = new HostTreeWriter(target, { maxBytes: 3, maxEntries: 2 });
    writer.take(entry("file", "a"));
    writer.take(data("abc"));
    expect(() => writer.take(data("d"))).toThrow(/larger than 3 bytes/);
    writer.take(entry("file", "b"));
    expect(() => writer.take(entry("file", "c"))).toThrow(/more than 2 entries/);
    expect(() => new HostTreeWriter(target)).toThrow(/exists already/);
    writer.discard();
    expect(fs.existsSync(target)).toBe(false);
    fs.symlinkSync("outside", target);
    expect(() => new HostTreeWriter(target)).toThrow(/exists already/);
  });

  test("of any shape never leaves its target", () => {
    const names = fc.constantFrom("a", "b", "..", ".", "", "outside", "a/b", "a/..", "b/../..");
    const path = fc.array(names, { minLength: 1, maxLength: 4 }).map((parts) => parts.join("/"));
    const item = fc.oneof(
      fc.tuple(fc.constantFrom(...KINDS), path, fc.oneof(path, path.map((text) => `/${text}`), fc.constant(join(tmpdir(), "x")))).map(([kind, at, to]) => entry(kind, at, to)),
      fc.constant(data("evil")),
    );
    fc.assert(
      fc.property(fc.array(item, { maxLength: 25 }), (items) => {
        const writer = new HostTreeWriter(target);
        const strayed: string[] = [];
        try {
          for (const each of items) writer.take(each);
          writer.finish();
          strayed.push(...linksThatLeave());
        } catch (error) {
          // Dangling links have no real path; the writer's own errors are typed.
          if (!(error instanceof Error) || !("code" in error) || !["ENOENT", "ELOOP", "ENOTDIR", "sandbox_failed"].includes(String(error.code))) throw error;
        } finally {
          writer.discard();
        }
        expect(strayed).toEqual([]);
        expectOutsideUntouched();
      }),
      { numRuns: 300 },
    );
  });
});

const match = (pattern: string, path: string): boolean => globMatcher([pattern])(path);

test("a hundred thousand links that are long to follow do not hold the controller up", () => {
  const target = `${"d/".repeat(2000)}x`;
  const links = new Map(Array.from({ length: 100_000 }, (_, index) => [`deep/${index}`, target]));
  const budget = { work: LIMITS.treeLinkWork };
  const started = performance.now();
  for (const [link, leads] of links) escapes(link, leads, links, budget);
  expect(performance.now() - started).toBeLessThan(20_000);
  expect(budget.work).toBeLessThan(0);
});

describe("parts", () => {
  test("links are resolved through other links", () => {
    const links = new Map([["d/up", ".."], ["x", "d"], ["loop", "loop"], ["abs", "/etc"]]);
    expect(escapes("l", "d/file", links)).toBe(false);
    expect(escapes("d/l", "../ok", links)).toBe(false);
    expect(escapes("l", "d/up/ok", links)).toBe(false);
    expect(escapes("l", "d/up/../x", links)).toBe(true);
    expect(escapes("l", "x/up/..", links)).toBe(true);
    expect(escapes("l", "none/../..", links)).toBe(true);
    expect(escapes("l", "loop", links)).toBe(true);
    expect(escapes("l", "abs/passwd", links)).toBe(true);
    expect(escapes("l", "/x", links)).toBe(true);
    // A budget bounds the work of all links of a tree together.
    const budget = { work: 1000 };
    expect(escapes("l", "d/file", links, budget)).toBe(false);
    expect(escapes("l", "x/".repeat(2000), links, budget)).toBe(true);
    expect(escapes("l", "d/file", links, budget)).toBe(true);
  });

  test("patterns", () => {
    expect(match("*.log", "a/b.log")).toBe(true);
    expect(match("*.log", "a/b.log2")).toBe(false);
    expect(match("a/*", "a/b")).toBe(true);
    expect(match("a/*", "a/b/c")).toBe(false);
    expect(match("a/**", "a/b/c")).toBe(true);
    expect(match("**/c", "c")).toBe(true);
    expect(match("/c", "a/c")).toBe(false);
    expect(match("/c", "c")).toBe(true);
    expect(match("(a+", "(a+")).toBe(true);
    expect(match("?", "北")).toBe(true);
  });

  test("items survive their encoding, nonsense is refused", () => {
    const item = entry("symlink", "a\xff", "b");
    if (item.type === "refused") throw new Error("unreachable");
    const [frame] = new FrameDecoder().push(encodeItem(item));
    expect(frame === undefined ? null : decodeItem(frame)).toEqual(item);
    for (const fields of [[], [[FILE_TAG.path, "x"]], [[FILE_TAG.path, "x"], [FILE_TAG.kind, 99], [FILE_TAG.mode, 0]], [[FILE_TAG.path, "x"], [FILE_TAG.kind, 0], [FILE_TAG.mode, 1 << 20]]] as const) {
      const [bad] = new FrameDecoder().push(encodeFrame(FILES.entry, 0, fields));
      expect(() => bad !== undefined && decodeItem(bad)).toThrow(/no sense/);
    }
  });

  test("refusals are bounded", () => {
    const refusals = new Refusals();
    for (let i = 0; i < Refusals.most + 5; i++) refusals.add(Buffer.from("x"), "y");
    expect(refusals.list).toHaveLength(Refusals.most + 1);
    expect(refusals.list.at(-1)?.reason).toBe("5 more entries were refused");
  });
});
