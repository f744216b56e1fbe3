/** The `mw harness` commands. */
import { MwError } from "../../core/errors.ts";
import { bakedHarness, bakeHarness, bakedName } from "../../harness/bake/bake.ts";
import type { CliDescriptor } from "../../harness/cli/descriptor.ts";
import { CLI_DESCRIPTORS } from "../../harness/cli/descriptors/index.ts";
import { rehearse, type Rehearsal } from "../../harness/rehearsal/rehearse.ts";
import type { Image } from "../../image/image.ts";
import { openImageStore, type LocalImageStore } from "../../image/store.ts";
import { openNativeBackend } from "../../sandbox/index.ts";
import { loadConfig, type Config } from "../config.ts";
import type { AppContext } from "../context.ts";
import type { BakeFlags, TestFlags } from "../harness.ts";
import type { OutputFlags } from "../image.ts";
import { formatBytes, formatDuration, formatTable, note, printable, printJson, printLine, styler } from "../output.ts";

export async function list(this: AppContext, flags: OutputFlags): Promise<void> {
  const store = await openStore(this, loadConfig(this.env, this.cwd));
  const rows = await Promise.all(CLI_DESCRIPTORS.map(async (descriptor) => ({ descriptor, image: await bakedHarness(store, descriptor) })));
  if (flags.json) {
    printJson(this, { harnesses: rows.map(({ descriptor, image }) => describe(descriptor, image)) });
    return;
  }
  printLine(
    this,
    formatTable(
      [{ title: "name" }, { title: "version" }, { title: "model API" }, { title: "baked" }, { title: "size", align: "right" }, { title: "package" }],
      rows.map(({ descriptor, image }) => [descriptor.name, descriptor.version, descriptor.dialect, image === null ? "no" : "yes", image === null ? "" : formatBytes(bytesOf(image)), packageOf(descriptor)]),
      styler(this.process.stdout, this.env),
    ),
  );
}

export async function bake(this: AppContext, flags: BakeFlags, ...names: string[]): Promise<void> {
  const descriptors = chosen(flags.all, names);
  const store = await openStore(this, loadConfig(this.env, this.cwd));
  const baked = await interruptible(this, async (signal) => {
    const images: { readonly descriptor: CliDescriptor; readonly image: Image }[] = [];
    // One after the other: each downloads and packs as fast as the machine can.
    for (const descriptor of descriptors) images.push({ descriptor, image: await bakeHarness(store, descriptor, { progress: progress(this, flags.quiet), signal, env: this.env }) });
    return images;
  });
  if (flags.json) printJson(this, { baked: baked.map(({ descriptor, image }) => describe(descriptor, image)) });
  else for (const { descriptor, image } of baked) printLine(this, `${bakedName(descriptor.name, descriptor.version)} ${image.digest}`);
}

export async function test(this: AppContext, flags: TestFlags, ...names: string[]): Promise<void> {
  const descriptors = chosen(flags.all, names);
  const config = loadConfig(this.env, this.cwd);
  const results = await interruptible(this, async (signal) => {
    const store = await openStore(this, config);
    const backend = await openNativeBackend({ home: config.home.value, runtime: this.runtime });
    try {
      const tell = progress(this, flags.quiet);
      const root = await store.rootFilesystem(await store.resolve(flags.image ?? "host", { progress: tell, signal }));
      const rehearsals: { readonly descriptor: CliDescriptor; readonly rehearsal: Rehearsal }[] = [];
      for (const descriptor of descriptors) {
        const image = await bakeHarness(store, descriptor, { progress: tell, signal, env: this.env });
        const layers = (await store.rootFilesystem(image)).layers.map((path) => ({ path }));
        tell(`${descriptor.name}: playing an episode`);
        rehearsals.push({ descriptor, rehearsal: await rehearse({ backend, root, layers, descriptor, runtime: this.runtime, signal, ...(flags.user === undefined ? {} : { user: flags.user }) }) });
      }
      return rehearsals;
    } finally {
      await backend.close();
    }
  });
  report(this, flags.json, results);
}

function report(context: AppContext, json: boolean, results: readonly { readonly descriptor: CliDescriptor; readonly rehearsal: Rehearsal }[]): void {
  const passed = results.every(({ rehearsal }) => rehearsal.checks.every(({ ok }) => ok));
  if (!passed) context.setExitCode(1);
  if (json) {
    printJson(context, {
      ok: passed,
      tests: results.map(({ descriptor: { name, version }, rehearsal: { checks, calls, durationMs } }) => ({ name, version, ok: checks.every(({ ok }) => ok), modelCalls: calls.length, durationMs, checks })),
    });
    return;
  }
  for (const { descriptor, rehearsal } of results) {
    const failed = rehearsal.checks.filter(({ ok }) => !ok);
    printLine(context, `${descriptor.name} ${descriptor.version}: ${failed.length === 0 ? "as it should be" : `${failed.length} of ${rehearsal.checks.length} checks failed`} (${rehearsal.calls.length} model calls, ${formatDuration(rehearsal.durationMs)})`);
    for (const { name, seen } of failed) printLine(context, `  not so: ${name}\n    seen: ${printable(seen ?? "").replaceAll("\n", "\n    ")}`);
  }
}

function chosen(all: boolean, names: readonly string[]): readonly CliDescriptor[] {
  if (all && names.length > 0) throw new MwError("usage", "--all and names exclude each other", { fix: "leave one of them out" });
  if (all) return CLI_DESCRIPTORS;
  if (names.length === 0) throw new MwError("usage", "no agent CLI is named", { fix: `name some of ${CLI_DESCRIPTORS.map(({ name }) => name).join(", ")}, or give --all` });
  return [...new Set(names)].map((name) => {
    const descriptor = CLI_DESCRIPTORS.find((candidate) => candidate.name === name);
    if (descriptor === undefined) throw new MwError("usage", `there is no agent CLI ${JSON.stringify(name)}`, { fix: `the agent CLIs are ${CLI_DESCRIPTORS.map((known) => known.name).join(", ")}` });
    return descriptor;
  });
}

function describe(descriptor: CliDescriptor, image: Image | null) {
  const { name, title, version, dialect } = descriptor;
  return { name, title, version, dialect, package: packageOf(descriptor), baked: image !== null, image: image === null ? null : bakedName(name, version), digest: image?.digest ?? null, bytes: image === null ? null : bytesOf(image) };
}

function packageOf({ install, name }: CliDescriptor): string {
  return install.kind === "npm" ? install.package : name;
}

function bytesOf(image: Image): number {
  return image.layers.reduce((sum, { bytes }) => sum + bytes, 0);
}

function openStore(context: AppContext, config: Config): Promise<LocalImageStore> {
  return openImageStore({ home: config.home.value, aliases: config.imageAliases, cwd: context.cwd, env: context.env, runtime: context.runtime });
}

function progress(context: AppContext, quiet: boolean): (message: string) => void {
  return quiet ? () => undefined : (message) => note(context, printable(message));
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
