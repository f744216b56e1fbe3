/**
 * Bakes an agent CLI: installs it once, at its exact version, into read-only layers of the image store, with everything that it needs to run in any image.
 *
 *     /.mw/lib/              a C library of its own (`private-libc.ts`)
 *     /.mw/node/             the Node that it runs on; one layer for all CLIs of one Node version
 *     /.mw/harness/NAME/     the CLI
 *
 * The result is an image of the store named `mw-harness/NAME:VERSION`: made by one process at a time, complete or not there, listed and removed like others, and
 * collected when its name is gone. Bytes depend on the packages and the host's C library only, so that baking again gives the same layers.
 */
import { createHash } from "node:crypto";
import { chmod, copyFile, mkdir, realpath } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../../core/errors.ts";
import type { Image, ImageProgress } from "../../image/image.ts";
import type { LayerRecord } from "../../image/layers.ts";
import { EMPTY_CONFIG } from "../../image/records.ts";
import type { LoadOptions, Source } from "../../image/source.ts";
import type { LocalImageStore } from "../../image/store.ts";
import { removeTree } from "../../image/unpacker.ts";
import type { CliDescriptor } from "../cli/descriptor.ts";
import { installNpm } from "./npm.ts";
import { addPrivateLibc, libcVersion, type ProgramFile } from "./private-libc.ts";
import { installPypi } from "./pypi.ts";
import { elfFiles, plainTree, removeMatching } from "./tree-files.ts";

/** Raised when what baking does changes in a way that old layers must not survive. */
const RECIPE_VERSION = 2;

export interface BakeOptions {
  readonly progress: ImageProgress;
  readonly signal?: AbortSignal;
  /** Of the host: package managers find their configuration in it. */
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** The baked CLI, baking it if need be. Concurrent calls, of other processes too, share the work. Rejects `environment` where a package or a tool cannot be had. */
export function bakeHarness(store: LocalImageStore, descriptor: CliDescriptor, options: BakeOptions): Promise<Image> {
  return store.provide(cliSource(store, descriptor, options), options);
}

/** What is here already; null when it has to be baked. */
export function bakedHarness(store: LocalImageStore, descriptor: CliDescriptor): Promise<Image | null> {
  return store.provided(cliSource(store, descriptor, { progress: () => undefined, env: {} }));
}

/** Name of the image; `mw image rm` takes it. */
export function bakedName(name: string, version: string): string {
  return `mw-harness/${name}:${version}`;
}

function cliSource(store: LocalImageStore, descriptor: CliDescriptor, bake: BakeOptions): Source {
  const { name, version, install, remove, companion } = descriptor;
  return {
    name: `docker.io/${bakedName(name, version)}`,
    label: bakedName(name, version),
    fingerprint: () => Promise.resolve(fingerprintOf([install, remove, ...(companion === undefined ? [] : [companion.program])])),
    load: (options) =>
      inTemporary(store, async (directory) => {
        const root = join(directory, "cli", ".mw/harness", name);
        await mkdir(root, { recursive: true });
        const runtime = await installCli(store, descriptor, root, bake, options);
        await removeMatching(root, remove);
        if (companion !== undefined) await takeAlong(companion.program, root);
        const programs = [...runtime.programs, ...(await elfFiles(root))];
        const missing = await addPrivateLibc(programs, join(directory, "libc", ".mw/lib"), runtime.libraries);
        if (missing.length > 0) options.progress(`${name}: optional parts name libraries that this host does not have: ${missing.join(", ")}`);
        options.progress(`${name}: packing`);
        const pack = (part: string): Promise<LayerRecord> => store.layers.build(() => plainTree(join(directory, part)), { name: `${name} ${version}`, signal: options.signal });
        return { layers: [await pack("libc"), ...runtime.layers, await pack("cli")], config: { ...EMPTY_CONFIG, labels: { "manyworlds.libc": await libcVersion() } } };
      }),
  };
}

/** What a CLI runs on, beside what lies in its own directory. */
interface CliRuntime {
  readonly layers: readonly LayerRecord[];
  readonly programs: readonly ProgramFile[];
  /** Host directories of the runtime's own libraries. */
  readonly libraries: readonly string[];
}

async function installCli(store: LocalImageStore, { name, version, install }: CliDescriptor, root: string, { env }: BakeOptions, { progress, signal }: LoadOptions): Promise<CliRuntime> {
  const nothing = { layers: [], programs: [], libraries: [] };
  switch (install.kind) {
    case "none":
      return nothing;
    case "pypi":
      progress(`${name}: installing ${install.requirements.length} Python packages`);
      return { ...nothing, ...(await installPypi({ install, directory: root, env, signal })) };
    case "npm": {
      progress(`${name}: installing ${install.package} ${version} from the npm registry`);
      await installNpm({ package: install.package, version, before: install.before, directory: root, env, signal });
      if (install.node === null) return nothing;
      const node = await nodeLayer(store, await store.provide(nodeSource(store, install.node, env), { progress, signal }));
      return { ...nothing, layers: [node.record], programs: node.programs };
    }
  }
}

/** Copies a program of this host to `bin/`; its libraries are found like all others. */
async function takeAlong(program: string, root: string): Promise<void> {
  const places = ["/bin", "/usr/bin"].map((directory) => join(directory, program));
  const found = await Promise.all(places.map((path) => realpath(path).catch(() => null)));
  const path = found.find((candidate) => candidate !== null);
  if (path === undefined || path === null) throw new MwError("environment", `baking takes this host's ${program} along, and there is none`, { fix: `install ${program}` });
  await mkdir(join(root, "bin"), { recursive: true });
  await copyFile(path, join(root, "bin", program));
}

function nodeSource(store: LocalImageStore, version: string, env: BakeOptions["env"]): Source {
  const name = bakedName("node", version);
  const packageName = `node-${process.platform}-${process.arch}`;
  return {
    name: `docker.io/${name}`,
    label: name,
    fingerprint: () => Promise.resolve(fingerprintOf([packageName, version])),
    load: (options: LoadOptions) =>
      inTemporary(store, async (directory) => {
        options.progress(`installing Node ${version} from the npm registry`);
        const download = join(directory, "download");
        await mkdir(download);
        await installNpm({ package: packageName, version, before: null, directory: download, env, signal: options.signal });
        const bin = join(directory, "node", NODE_DIRECTORY, "bin");
        await mkdir(bin, { recursive: true });
        await copyFile(join(download, "node_modules", packageName, "bin/node"), join(bin, "node"));
        await chmod(join(bin, "node"), 0o755);
        // Only redirected here: the library itself comes with each CLI, all of it from one moment.
        await addPrivateLibc(await elfFiles(bin), join(directory, "unused"));
        const layer = await store.layers.build(() => plainTree(join(directory, "node")), { name, signal: options.signal });
        return { layers: [layer], config: EMPTY_CONFIG };
      }),
  };
}

const NODE_DIRECTORY = ".mw/node";

async function nodeLayer(store: LocalImageStore, image: Image): Promise<{ readonly record: LayerRecord; readonly programs: readonly ProgramFile[] }> {
  const [descriptor] = image.layers;
  const record = descriptor === undefined ? null : await store.layers.find(descriptor.digest);
  if (record === null) throw new Error(`the image ${image.digest} of Node has no layer`);
  return { record, programs: await elfFiles(join(store.layers.path(record.digest), NODE_DIRECTORY)) };
}

async function inTemporary<T>(store: LocalImageStore, work: (directory: string) => Promise<T>): Promise<T> {
  const directory = await store.layers.temporary();
  try {
    return await work(directory);
  } finally {
    await removeTree(directory);
  }
}

function fingerprintOf(recipe: unknown): string {
  return createHash("sha256").update(JSON.stringify([RECIPE_VERSION, recipe])).digest("hex").slice(0, 16);
}
