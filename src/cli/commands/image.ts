/** The `mw image` commands. */
import { join, resolve } from "node:path";
import { sweepBuilds } from "../../build/index.ts";
import { MwError } from "../../core/errors.ts";
import { exportOciArchive } from "../../image/export.ts";
import { sniffImage } from "../../image/sniff.ts";
import { openImageStore, type LocalImageStore } from "../../image/store.ts";
import type { Image } from "../../image/image.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import type { MakeFlags, OutputFlags } from "../image.ts";
import { formatBytes, formatTable, note, printable, printJson, printLine, styler } from "../output.ts";

export async function pull(this: AppContext, flags: MakeFlags & { readonly refresh: boolean }, reference: string): Promise<void> {
  const store = await openStore(this);
  const image = await interruptible(this, (signal) => store.resolve(reference, { progress: progress(this, flags), signal, refresh: flags.refresh }));
  report(this, flags, image, reference);
}

export async function importImage(this: AppContext, flags: MakeFlags, path: string, name?: string): Promise<void> {
  const store = await openStore(this);
  const reference = /^(dir|tar|oci|docker-archive):/.test(path) ? path : await sniffImage(resolve(this.cwd, path));
  const image = await interruptible(this, (signal) => store.resolve(reference, { progress: progress(this, flags), signal }));
  if (name !== undefined) await store.tag(image, name);
  report(this, flags, image, name ?? reference);
}

export async function list(this: AppContext, flags: OutputFlags & { readonly all: boolean }): Promise<void> {
  const store = await openStore(this);
  const everything = await store.list();
  const images = flags.all ? everything : everything.filter(({ name }) => name !== null);
  if (flags.json) {
    printJson(this, { images: images.map(({ name, image, bytes }) => ({ name, ...describe(image), bytes })) });
    return;
  }
  if (images.length === 0) {
    note(this, "no images yet; mw image pull debian:12 makes one");
    return;
  }
  const right = "right" as const;
  // On a terminal a line stays a line; in a pipe names are whole.
  const short = (text: string): string => (this.process.stdout.isTTY === true && text.length > 40 ? `${printable(text).slice(0, 39)}…` : printable(text));
  printLine(
    this,
    formatTable(
      [{ title: "name" }, { title: "digest" }, { title: "layers", align: right }, { title: "size", align: right }, { title: "created" }, { title: "source" }],
      images.map(({ name, image, bytes }) => [
        short(name ?? "-"),
        image.digest.slice(0, image.digest.indexOf(":") + 13),
        String(image.layers.length),
        formatBytes(bytes),
        new Date(image.createdAt).toISOString().slice(0, 19).replace("T", " "),
        image.source === name ? "" : short(image.source),
      ]),
      styler(this.process.stdout, this.env),
    ),
  );
  if (images.length < everything.length) note(this, `${everything.length - images.length} images without a name (results and steps of builds); --all lists them, mw image gc removes them`);
}

export async function show(this: AppContext, flags: OutputFlags, reference: string): Promise<void> {
  const store = await openStore(this);
  const image = await store.find(reference);
  if (image === null) throw new MwError("not_found", `there is no image ${JSON.stringify(reference)} here`, { fix: `mw image pull ${reference}` });
  if (flags.json) {
    printJson(this, { image: describe(image) });
    return;
  }
  const { config } = image;
  const lines: [string, string][] = [
    ["digest", image.digest],
    ["source", image.source],
    ["user", config.user === "" ? "root" : config.user],
    ["workdir", config.workdir],
    ["entrypoint", JSON.stringify(config.entrypoint)],
    ["cmd", JSON.stringify(config.cmd)],
    ...Object.entries(config.env).map(([key, value]): [string, string] => ["env", `${key}=${value}`]),
    ...Object.entries(config.labels).map(([key, value]): [string, string] => ["label", `${key}=${value}`]),
    ...image.layers.map(({ digest, bytes }): [string, string] => ["layer", `${digest} ${formatBytes(bytes)}`]),
    ...(image.ownersFlattened ? [["owners", "flattened to the user: without subordinate ids there are no others"] as [string, string]] : []),
  ];
  for (const [key, value] of lines) printLine(this, `${key.padEnd(11)}${printable(value)}`);
}

export async function tag(this: AppContext, flags: OutputFlags, reference: string, name: string): Promise<void> {
  const store = await openStore(this);
  const image = await store.find(reference);
  if (image === null) throw new MwError("not_found", `there is no image ${JSON.stringify(reference)} here`, { fix: `mw image pull ${reference}` });
  await store.tag(image, name);
  if (flags.json) printJson(this, { name, image: describe(image) });
  else note(this, `${name} is now ${image.digest.slice(0, 19)}`);
}

export async function remove(this: AppContext, flags: OutputFlags, ...names: string[]): Promise<void> {
  const store = await openStore(this);
  for (const name of names) await store.remove(name);
  if (flags.json) printJson(this, { removed: names });
  else note(this, `removed ${names.join(", ")}; mw image gc frees the space`);
}

export async function collect(this: AppContext, flags: OutputFlags): Promise<void> {
  const store = await openStore(this);
  const bytes = await store.collect();
  await sweepBuilds(join(loadConfig(this.env, this.cwd).home.value, "build"));
  if (flags.json) printJson(this, { freedBytes: bytes });
  else printLine(this, `freed ${formatBytes(bytes)}`);
}

export async function exportImage(this: AppContext, flags: MakeFlags, reference: string, file: string): Promise<void> {
  const store = await openStore(this);
  const path = resolve(this.cwd, file);
  const image = await interruptible(this, async (signal) => {
    const found = await store.resolve(reference, { progress: progress(this, flags), signal });
    await exportOciArchive(store, found, path, signal);
    return found;
  });
  if (flags.json) printJson(this, { image: describe(image), file: path });
  else note(this, `wrote ${path}`);
}

export async function alias(this: AppContext, flags: OutputFlags & { readonly remove: boolean }, name?: string, target?: string): Promise<void> {
  const { aliases } = await openStore(this);
  if (name !== undefined && (target !== undefined || flags.remove)) {
    if (target !== undefined && flags.remove) throw new MwError("usage", "an alias is either set or removed", { fix: "give an image, or --remove" });
    await aliases.set(name, target ?? null);
    if (flags.json) printJson(this, { name, image: target ?? null });
    else note(this, target === undefined ? `${name} is no alias of this data directory any more` : `${name} now stands for ${target}`);
    return;
  }
  const all = (await aliases.list()).filter((entry) => name === undefined || entry.name === name);
  if (name !== undefined && all.length === 0) throw new MwError("not_found", `${JSON.stringify(name)} is no alias`, { fix: `mw image alias ${name} IMAGE makes it one` });
  if (flags.json) printJson(this, { aliases: all });
  else printLine(this, formatTable([{ title: "name" }, { title: "image" }, { title: "from" }], all.map((entry) => [entry.name, entry.image, entry.origin].map(printable)), styler(this.process.stdout, this.env)));
}

function openStore(context: AppContext): Promise<LocalImageStore> {
  const config = loadConfig(context.env, context.cwd);
  return openImageStore({ home: config.home.value, aliases: config.imageAliases, cwd: context.cwd, env: context.env, runtime: context.runtime });
}

function describe(image: Image) {
  const { digest, layers, config, source, createdAt, ownersFlattened } = image;
  return { digest, source, createdAt: new Date(createdAt).toISOString(), layers, config, ownersFlattened };
}

function report(context: AppContext, flags: OutputFlags, image: Image, name: string): void {
  if (flags.json) printJson(context, { name, image: describe(image) });
  else printLine(context, image.digest);
}

function progress(context: AppContext, flags: MakeFlags): (message: string) => void {
  return flags.quiet ? () => undefined : (message) => note(context, printable(message));
}

async function interruptible<T>(context: AppContext, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  const off = context.onInterrupt(() => controller.abort(new MwError("cancelled", "interrupted")));
  try {
    return await work(controller.signal);
  } finally {
    off();
  }
}
