import { execFileSync, spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, readlinkSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { describe, expect, it, onTestFinished } from "vitest";
import { temporaryDirectory } from "../../../test/support/image-tools.ts";
import { MwError } from "../../core/errors.ts";
import type { Image } from "../../image/image.ts";
import { openImageStore, type LocalImageStore } from "../../image/store.ts";
import type { CliDescriptor } from "../cli/descriptor.ts";
import { genericCli } from "../cli/generic.ts";
import { bakedHarness, bakeHarness, bakedName } from "./bake.ts";
import { mortal } from "../../../test/support/mortal.ts";

const NAME = "mw-probe-cli";
const DESCRIPTOR: CliDescriptor = { ...genericCli("true"), name: "probe", version: "1.2.3", install: { kind: "npm", package: NAME, before: "2025-01-01", node: null }, remove: ["*.c", "docs"] };

interface Registry {
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Paths that were asked for. */
  readonly asked: string[];
  /** Called before a package's archive is sent. */
  beforeArchive: () => Promise<void>;
  /** Sends no archives. */
  broken: boolean;
}

/** A registry with the CLI, and two versions of what it depends on, of which only the older is old enough. */
async function startRegistry(): Promise<Registry> {
  const packages = [
    pack(NAME, "1.2.3", { dependencies: { "mw-probe-dep": "^1.0.0" }, scripts: { install: "touch was-run" } }, (directory) => {
      writeFileSync(join(directory, "probe.c"), '#include <stdio.h>\nint main(void) { puts("works"); return 0; }\n');
      execFileSync("gcc", [join(directory, "probe.c"), "-o", join(directory, "probe")]);
      execFileSync("chmod", ["644", join(directory, "probe")]);
      mkdirSync(join(directory, "docs"));
      writeFileSync(join(directory, "docs/long"), "x".repeat(1000));
    }),
    pack("mw-probe-dep", "1.0.0", {}),
    pack("mw-probe-dep", "1.1.0", {}),
  ];
  const times: Readonly<Record<string, string>> = { "1.2.3": "2024-06-01T00:00:00.000Z", "1.0.0": "2023-01-01T00:00:00.000Z", "1.1.0": "2025-06-01T00:00:00.000Z" };
  const asked: string[] = [];
  const registry: { -readonly [Key in keyof Registry]: Registry[Key] } = { env: {}, asked, beforeArchive: () => Promise.resolve(), broken: false };
  const server = createServer((request, response) => {
    const path = request.url ?? "";
    asked.push(path);
    const archive = packages.find(({ file }) => path === `/${file}`);
    if (archive !== undefined) {
      void registry.beforeArchive().then(() => (registry.broken ? response.writeHead(404).end() : response.end(archive.bytes)));
      return;
    }
    const versions = packages.filter(({ name }) => path === `/${name}`);
    if (versions.length === 0) {
      response.writeHead(404).end("{}");
      return;
    }
    const base = `http://${request.headers.host ?? ""}`;
    const document = {
      name: versions[0]?.name,
      "dist-tags": { latest: versions.at(-1)?.version },
      time: Object.fromEntries(versions.map(({ version }) => [version, times[version]])),
      versions: Object.fromEntries(versions.map(({ version, manifest, file, bytes }) => [version, { ...manifest, dist: { tarball: `${base}/${file}`, integrity: `sha512-${createHash("sha512").update(bytes).digest("base64")}` } }])),
    };
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(document));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  registry.env = { PATH: process.env["PATH"], HOME: temporaryDirectory(), npm_config_registry: url, npm_config_cache: temporaryDirectory(), npm_config_userconfig: "/dev/null", npm_config_fetch_retries: "0" };
  return registry;
}

function pack(name: string, version: string, more: object, fill: (directory: string) => void = () => undefined) {
  const directory = temporaryDirectory();
  const manifest = { name, version, ...more };
  writeFileSync(join(directory, "package.json"), JSON.stringify(manifest));
  fill(directory);
  const file = `${name}-${version}.tgz`;
  const archive = join(temporaryDirectory(), file);
  execFileSync("tar", ["-C", directory, "--transform", "s,^\\.,package,", "-czf", archive, "."]);
  return { name, version, manifest, file, bytes: readFileSync(archive) };
}

async function open(): Promise<{ readonly store: LocalImageStore; readonly home: string }> {
  const home = temporaryDirectory();
  return { store: await openImageStore({ home }), home };
}

/** Processes that work in a directory below this one. */
function processesAt(directory: string): readonly string[] {
  return readdirSync("/proc").filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readlinkSync(`/proc/${pid}/cwd`).startsWith(directory);
    } catch {
      return false;
    }
  });
}

const inProgress = (home: string): readonly string[] => readdirSync(join(home, "images/tmp"));
const bake = (store: LocalImageStore, registry: Registry, signal?: AbortSignal): Promise<Image> => bakeHarness(store, DESCRIPTOR, { env: registry.env, progress: () => undefined, ...(signal === undefined ? {} : { signal }) });

describe("baking", () => {
  it("installs without running scripts, as of a day, and keeps what is needed", async () => {
    const registry = await startRegistry();
    const { store, home } = await open();
    expect(await bakedHarness(store, DESCRIPTOR)).toBeNull();
    const image = await bake(store, registry);
    expect(await bakedHarness(store, DESCRIPTOR)).toEqual(image);
    const [cli = "", libc = ""] = (await store.rootFilesystem(image)).layers;
    const root = join(cli, ".mw/harness/probe");
    expect(readdirSync(root)).toEqual(["node_modules"]);
    expect(readdirSync(join(root, "node_modules")).sort()).toEqual([NAME, "mw-probe-dep"]);
    expect(readdirSync(join(root, "node_modules", NAME)).sort()).toEqual(["package.json", "probe"]);
    expect(JSON.parse(readFileSync(join(root, "node_modules/mw-probe-dep/package.json"), "utf8"))).toMatchObject({ version: "1.0.0" });
    const program = statSync(join(root, "node_modules", NAME, "probe"));
    expect([program.mode & 0o7777, program.mtimeMs]).toEqual([0o755, 499_162_500_000]);
    expect(statSync(cli).mode & 0o777).toBe(0o755);
    expect(readdirSync(join(libc, ".mw/lib"))).toEqual(expect.arrayContaining(["ld.so", "libc.so.6"]));
    // Where it came from is in none of its files.
    expect(spawnSync("grep", ["-r", "127.0.0.1", cli]).status).toBe(1);
    expect(inProgress(home)).toEqual([]);
  });

  it("gives the same layers elsewhere and later", async () => {
    const registry = await startRegistry();
    const [one, other] = [await open(), await open()];
    expect((await bake(one.store, registry)).layers).toEqual((await bake(other.store, registry)).layers);
  });

  it("happens once, however many ask at once", async () => {
    const registry = await startRegistry();
    const { store, home } = await open();
    // Another store of the same directory stands for another process.
    const second = await openImageStore({ home });
    const images = await Promise.all([bake(store, registry), bake(store, registry), bake(second, registry)]);
    expect(new Set(images.map(({ digest }) => digest)).size).toBe(1);
    expect(registry.asked.filter((path) => path.startsWith(`/${NAME}-`))).toHaveLength(1);
  });

  it("leaves nothing when it fails, and works the next time", async () => {
    const registry = await startRegistry();
    const { store, home } = await open();
    registry.broken = true;
    await expect(bake(store, registry)).rejects.toMatchObject({ code: "environment", message: expect.stringContaining(`install ${NAME} 1.2.3`) as unknown });
    expect(await bakedHarness(store, DESCRIPTOR)).toBeNull();
    expect([inProgress(home), readdirSync(join(home, "images/layers"))]).toEqual([[], []]);
    registry.broken = false;
    await bake(store, registry);
  });

  it("leaves nothing when it is interrupted in the middle", async () => {
    const registry = await startRegistry();
    const { store, home } = await open();
    const stop = new AbortController();
    registry.beforeArchive = () => {
      stop.abort(new MwError("cancelled", "enough"));
      return new Promise(() => undefined);
    };
    await expect(bake(store, registry, stop.signal)).rejects.toMatchObject({ code: "cancelled" });
    await expect.poll(() => inProgress(home), { timeout: 30_000 }).toEqual([]);
    expect(readdirSync(join(home, "images/layers"))).toEqual([]);
  });

  it("leaves nothing when its process is killed: what it started dies with it", async () => {
    const registry = await startRegistry();
    const home = temporaryDirectory();
    const asked = new Promise<void>((resolve) => {
      registry.beforeArchive = () => {
        resolve();
        return new Promise(() => undefined);
      };
    });
    const modules = ["../../image/store.ts", "./bake.ts"].map((path) => JSON.stringify(new URL(path, import.meta.url).href));
    const code = `const [{ openImageStore }, { bakeHarness }] = await Promise.all([import(${modules[0]}), import(${modules[1]})]);
      await bakeHarness(await openImageStore({ home: ${JSON.stringify(home)} }), ${JSON.stringify(DESCRIPTOR)}, { env: process.env, progress: () => undefined });`;
    const baking = mortal(spawn(process.execPath, ["--import", "tsx", "--input-type=module", "-e", code], { env: { ...registry.env }, stdio: "ignore" }));
    await asked;
    expect(processesAt(home)).not.toEqual([]);
    baking.kill("SIGKILL");
    await expect.poll(() => processesAt(home), { timeout: 30_000 }).toEqual([]);
    const store = await openImageStore({ home });
    await store.collect();
    expect([inProgress(home), readdirSync(join(home, "images/layers"))]).toEqual([[], []]);
    registry.beforeArchive = () => Promise.resolve();
    await bake(store, registry);
  });

  it("is told apart from a host without the tool", async () => {
    const { store } = await open();
    const env = { PATH: temporaryDirectory(), HOME: temporaryDirectory() };
    await expect(bakeHarness(store, DESCRIPTOR, { env, progress: () => undefined })).rejects.toMatchObject({ code: "environment", message: expect.stringContaining("no program npm") as unknown });
  });

  it("is taken away like any image, and again when the recipe changes", async () => {
    const registry = await startRegistry();
    const { store, home } = await open();
    const image = await bake(store, registry);
    expect(await bakedHarness(store, { ...DESCRIPTOR, remove: [] })).toBeNull();
    expect((await store.list()).map(({ name }) => name)).toEqual([bakedName("probe", "1.2.3")]);
    await store.remove(bakedName("probe", "1.2.3"));
    // A fresh process: this one holds what it used.
    execFileSync(process.execPath, ["--import", "tsx", "-e", `const { openImageStore } = await import(${JSON.stringify(new URL("../../image/store.ts", import.meta.url).href)}); await (await openImageStore({ home: ${JSON.stringify(home)} })).collect();`, "--input-type=module"], { stdio: "pipe" });
    // Held by this process, which is alive.
    for (const { digest } of image.layers) expect(existsSync(store.layers.path(digest))).toBe(true);
    expect(await bakedHarness(store, DESCRIPTOR)).toBeNull();
  });
});
