/** OCI layouts and docker-save archives, made and read by other tools. */
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, afterAll, describe, expect, it } from "vitest";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { describeTree, inOverlay, python, rawTar, run, temporaryDirectory } from "../../test/support/image-tools.ts";
import { digestOf } from "./digest.ts";
import { exportOciArchive } from "./export.ts";
import { sniffImage } from "./sniff.ts";
import { openImageStore } from "./store.ts";

/** Without the root itself, which umoci's layers do not describe. */
function described(root: string): string {
  return describeTree(root).split("\n").filter((line) => !line.startsWith("(b'',")).join("\n");
}

let base: string;
let layout: string;
/** What the image's root must look like, as umoci unpacks it. */
let expected: string;

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-oci-"));
  layout = join(base, "layout");
  const bundle = join(base, "bundle");
  run("umoci", "init", "--layout", layout);
  run("umoci", "new", "--image", `${layout}:v1`);
  run("umoci", "unpack", "--image", `${layout}:v1`, bundle);
  python(
    `
import os, sys
os.chdir(sys.argv[1])
os.makedirs('d/sub'); open('d/old', 'w').write('old'); open('gone', 'w').write('gone'); os.makedirs('swapped/x')
open('prog', 'w').write('prog'); os.chown('prog', 7, 8); os.chmod('prog', 0o4755)
os.link('prog', 'd/prog'); os.symlink('../prog', 'd/l')
os.setxattr('prog', 'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))
open('ü 北', 'w').write('name')
`,
    join(bundle, "rootfs"),
  );
  run("umoci", "repack", "--image", `${layout}:v1`, bundle);
  rmSync(bundle, { recursive: true });
  run("umoci", "unpack", "--image", `${layout}:v1`, bundle);
  const root = join(bundle, "rootfs");
  rmSync(join(root, "gone"));
  rmSync(join(root, "swapped"), { recursive: true });
  writeFileSync(join(root, "swapped"), "now a file");
  rmSync(join(root, "d"), { recursive: true });
  mkdirSync(join(root, "d"));
  writeFileSync(join(root, "d/new"), "new");
  run("umoci", "repack", "--image", `${layout}:v2`, bundle);
  run("umoci", "config", "--image", `${layout}:v2`, "--config.env", "A=b=c", "--config.workingdir", "nested", "--config.user", "1234", "--config.entrypoint", "/bin/false", "--config.cmd", "x", "--config.label", "k=v");
  run("umoci", "unpack", "--image", `${layout}:v2`, join(base, "again"));
  expected = described(join(base, "again/rootfs"));
});
afterAll(() => rmSync(base, { recursive: true }));

describe("images of other tools", () => {
  it("unpacks a layout as umoci does, and shares layers between its images", async () => {
    const home = temporaryDirectory();
    const store = await openImageStore({ home });
    await store.resolve(`oci:${layout}:v1`);
    const messages: string[] = [];
    const image = await store.resolve(`oci:${layout}:v2`, { progress: (message) => messages.push(message) });
    expect(messages.filter((message) => message.includes("layer"))).toEqual([`oci:${layout}:v2: layer 2 of 2 (0.0 MB)`]);
    expect(readdirSync(join(home, "images/layers"))).toHaveLength(2);
    const root = await store.rootFilesystem(image);
    expect(root).toMatchObject({ env: { A: "b=c" }, workdir: "/nested", user: "1234", entrypoint: ["/bin/false"], cmd: ["x"] });
    const copy = join(temporaryDirectory(), "merged");
    inOverlay(root.layers, `cp -a . '${copy}'`);
    expect(described(copy)).toBe(expected);
  });

  it.each(["oci-archive", "docker-archive", "gzipped oci-archive", "schema 2 in a directory"])("reads what skopeo writes: %s", async (format) => {
    const file = join(temporaryDirectory(), "image.tar");
    if (format === "docker-archive") run("skopeo", "copy", "-q", `oci:${layout}:v2`, `docker-archive:${file}:some/name:v2`);
    else run("skopeo", "copy", "-q", ...(format.startsWith("schema") ? ["--format", "v2s2"] : []), `oci:${layout}:v2`, `oci-archive:${file}:v2`);
    if (format.startsWith("gzipped")) run("sh", "-c", `gzip "$0" && mv "$0.gz" "$0"`, file);
    const store = await openImageStore({ home: temporaryDirectory() });
    const reference = await sniffImage(file);
    expect(reference.split(":")[0]).toBe(format === "docker-archive" ? "docker-archive" : "oci");
    const image = await store.resolve(format === "docker-archive" ? `${reference}:some/name:v2` : reference);
    const original = await store.resolve(`oci:${layout}:v2`);
    expect(image.digest).toBe(original.digest);
  });

  it("writes archives that skopeo and umoci read", async () => {
    const store = await openImageStore({ home: temporaryDirectory() });
    const image = await store.resolve(`oci:${layout}:v2`);
    const work = temporaryDirectory();
    await exportOciArchive(store, image, join(work, "out.tar"));
    run("skopeo", "copy", "-q", `oci-archive:${join(work, "out.tar")}`, `oci:${join(work, "out")}:v2`);
    run("umoci", "unpack", "--image", `${join(work, "out")}:v2`, join(work, "bundle"));
    expect(described(join(work, "bundle/rootfs"))).toBe(expected);
    const config = JSON.parse(run("skopeo", "inspect", "--config", `oci:${join(work, "out")}:v2`)) as { config: unknown };
    expect(config.config).toMatchObject({ User: "1234", Env: ["A=b=c"], Entrypoint: ["/bin/false"], Cmd: ["x"], WorkingDir: "/nested", Labels: { k: "v" } });
    await expect(exportOciArchive(store, image, join(work, "out.tar"))).rejects.toMatchObject({ code: "conflict" });
  });
});

describe("images that are not what they say", () => {
  it("refuses damaged blobs of every kind and keeps nothing", async () => {
    for (const kind of ["layers", "manifests", "configs"]) {
      const path = copied();
      for (const { name, json } of blobs(path)) {
        const is = json === null ? "layers" : "layers" in json ? "manifests" : "configs";
        const file = join(path, "blobs/sha256", name);
        const bytes = readFileSync(file);
        if (is === kind) writeFileSync(file, Buffer.concat([bytes.subarray(0, bytes.length - 1), Buffer.from([(bytes.at(-1) ?? 0) ^ 1])]));
      }
      const home = temporaryDirectory();
      const store = await openImageStore({ home });
      await expect(store.resolve(`oci:${path}:v2`)).rejects.toMatchObject({ code: "invalid_image" });
      expect(readdirSync(join(home, "images/layers"))).toEqual([]);
      expect(readdirSync(join(home, "images/tmp"))).toEqual([]);
    }
  });

  it("finds this machine's image in nested indexes", async () => {
    expect(await resolveLayout(handMade([rawTar([{ name: "a", body: "x" }])]))).toHaveLength(1);
  });

  it("applies whiteouts in any order within a layer, and to lower layers only", async () => {
    const lower = rawTar([{ name: "d/", type: "5", mode: 0o755 }, { name: "d/old", body: "o" }, { name: "e/", type: "5", mode: 0o755 }, { name: "e/old", body: "o" }, { name: "f", body: "o" }, { name: "g", body: "o" }]);
    const upper = rawTar([
      { name: "d/", type: "5", mode: 0o711 }, { name: "d/new", body: "n" }, { name: "d/.wh..wh..opq" },
      { name: ".wh.e" }, { name: "e/", type: "5", mode: 0o755 }, { name: "e/new", body: "n" },
      { name: "f", body: "n" }, { name: ".wh.f" },
      { name: ".wh.g" }, { name: ".wh.never-there" },
    ]);
    expect(inOverlay(await resolveLayout(handMade([lower, upper])), "find . -type f | sort; stat -c %a d; cat f")).toBe("./d/new\n./e/new\n./f\n711\nn");
  });

  it.runIf(process.getuid?.() === 0)("on a file system without extended attributes, says that it is the data directory's fault", async () => {
    const home = temporaryDirectory();
    run("mount", "-t", "ramfs", "mw-test", home);
    try {
      const store = await openImageStore({ home });
      const refused = store.resolve(`oci:${handMade([rawTar([{ name: "d/", type: "5", mode: 0o755 }, { name: "d/.wh..wh..opq" }])])}`);
      await expect(refused).rejects.toMatchObject({ code: "environment", message: expect.stringContaining("no extended attributes"), fix: expect.stringContaining("MW_HOME") });
    } finally {
      run("umount", home);
    }
  });

  it("refuses whiteouts that leave the root", async () => {
    await expect(resolveLayout(handMade([rawTar([{ name: "../.wh.etc" }])]))).rejects.toMatchObject({ code: "invalid_image" });
    await expect(resolveLayout(handMade([rawTar([{ name: "d/.wh..." }, { name: ".wh..", body: "" }])]))).rejects.toMatchObject({ code: "invalid_image" });
  });

  it.each<[string, Parameters<typeof handMade>[1], RegExp]>([
    ["a wrong diff id", (_manifest, config) => void (config.rootfs.diff_ids = [`sha256:${"0".repeat(64)}`]), /diff id/],
    ["too few diff ids", (_manifest, config) => void (config.rootfs.diff_ids = []), /diff ids/],
    ["a digest that is a path", (manifest) => void Object.assign(manifest.layers[0] ?? {}, { digest: "sha256:../../../../etc/passwd" }), /digest/],
    ["another digest algorithm", (manifest) => void Object.assign(manifest.layers[0] ?? {}, { digest: `md5:${"0".repeat(32)}` }), /sha256/],
    ["a layer that is not there", (manifest) => void Object.assign(manifest.layers[0] ?? {}, { digest: `sha256:${"1".repeat(64)}` }), /not whole/],
    ["a layer of a strange type", (manifest) => void Object.assign(manifest.layers[0] ?? {}, { mediaType: "application/vnd.oci.image.layer.v1.tar+encrypted" }), /type/],
    ["more layers than can be stacked", (manifest) => void (manifest.layers = Array.from({ length: 200 }, () => manifest.layers[0] ?? {})), /layers/],
  ])("refuses %s", async (_what, change, message) => {
    await expect(resolveLayout(handMade([rawTar([{ name: "a", body: "x" }])], change))).rejects.toThrow(message);
  });

  it("says what a layout holds when the tag is missing or wrong", async () => {
    const store = await openImageStore({ home: temporaryDirectory() });
    await expect(store.resolve(`oci:${layout}:v9`)).rejects.toMatchObject({ code: "invalid_image", message: expect.stringContaining("v1, v2") });
    await expect(store.resolve(`oci:${layout}`)).rejects.toMatchObject({ fix: expect.stringContaining("oci:PATH:TAG") });
    await expect(store.resolve(`oci:${base}`)).rejects.toMatchObject({ code: "invalid_image" });
  });
});

/** A copy of the layout to damage. */
function copied(): string {
  const path = join(temporaryDirectory(), "copy");
  cpSync(layout, path, { recursive: true });
  return path;
}
function blobs(path: string): { name: string; size: number; json: Record<string, unknown> | null }[] {
  return readdirSync(join(path, "blobs/sha256")).map((name) => {
    const bytes = readFileSync(join(path, "blobs/sha256", name));
    return { name, size: bytes.length, json: bytes[0] === 0x7b ? (JSON.parse(bytes.toString()) as Record<string, unknown>) : null };
  });
}

/** A layout with one image of these layers, whose manifest the test may change. */
function handMade(layers: readonly Buffer[], change: (manifest: { layers: object[]; config: object }, config: { rootfs: { diff_ids: string[] } }) => void = () => undefined): string {
  const path = temporaryDirectory();
  mkdirSync(join(path, "blobs/sha256"), { recursive: true });
  const put = (bytes: Buffer): { digest: string; size: number } => {
    writeFileSync(join(path, "blobs/sha256", digestOf(bytes).slice(7)), bytes);
    return { digest: digestOf(bytes), size: bytes.length };
  };
  const config = { os: "linux", config: {}, rootfs: { type: "layers", diff_ids: layers.map((layer) => digestOf(layer)) } };
  const manifest = { schemaVersion: 2, config: {} as object, layers: layers.map((layer) => ({ mediaType: "application/vnd.oci.image.layer.v1.tar", ...put(layer) })) as object[] };
  change(manifest, config);
  manifest.config = { mediaType: "application/vnd.oci.image.config.v1+json", ...put(Buffer.from(JSON.stringify(config))), ...manifest.config };
  const descriptor = { mediaType: "application/vnd.oci.image.manifest.v1+json", ...put(Buffer.from(JSON.stringify(manifest))) };
  const inner = put(Buffer.from(JSON.stringify({ schemaVersion: 2, manifests: [{ ...descriptor, platform: { os: "linux", architecture: "made-up" } }, { ...descriptor, platform: { os: "linux", architecture: process.arch === "x64" ? "amd64" : process.arch } }] })));
  writeFileSync(join(path, "oci-layout"), '{"imageLayoutVersion":"1.0.0"}');
  writeFileSync(join(path, "index.json"), JSON.stringify({ schemaVersion: 2, manifests: [{ mediaType: "application/vnd.oci.image.index.v1+json", ...inner }] }));
  return path;
}
async function resolveLayout(path: string): Promise<readonly string[]> {
  const store = await openImageStore({ home: temporaryDirectory() });
  return (await store.rootFilesystem(await store.resolve(`oci:${path}`))).layers;
}
