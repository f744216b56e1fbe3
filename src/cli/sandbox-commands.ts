/** What `mw sandbox ...` does. Bytes of commands go to the process's own streams unchanged; everything of ours goes through the context. */
import { readdirSync } from "node:fs";
import { MwError } from "../core/errors.ts";
import { isId } from "../core/ids.ts";
import { openImageStore } from "../image/index.ts";
import { DiskSnapshotStore, openChosenBackend, openNativeBackend, parseBackendChoice, publishPort, runDirectory, type PublishedPort } from "../sandbox/index.ts";
import type { RootFilesystem, Sandbox, SandboxBackend, SandboxSpec } from "../sandbox/sandbox.ts";
import { loadConfig } from "./config.ts";
import type { AppContext } from "./context.ts";
import { attachHeld } from "./held-client.ts";
import { askHolder } from "./held-control.ts";
import { networkOf, noteRefusals } from "./network-commands.ts";
import { findHeld, heldMachines, makeHeldDirectory, removeHeldDirectory } from "./held-machines.ts";
import { Holder } from "./holder.ts";
import { formatDuration, formatTable, note, printJson, printLine } from "./output.ts";
import type { CommandFlags, MachineFlags } from "./sandbox.ts";
import { driveExec, type Executor } from "./sandbox-exec.ts";

/** `mw sandbox run IMAGE -- COMMAND...` */
export async function runOnce(this: AppContext, flags: MachineFlags & CommandFlags & { readonly json: boolean }, image: string, ...command: readonly string[]): Promise<void> {
  await withMachine(this, image, flags, "run", async (sandbox) => {
    this.setExitCode(await driveExec(this, sandbox, command, flags));
    if (sandbox.egress !== undefined) noteRefusals(this, sandbox.egress.report());
  });
}

/** `mw sandbox shell IMAGE-OR-ID` */
export async function openShell(this: AppContext, flags: MachineFlags, target: string): Promise<void> {
  const how = { interactive: true, tty:  process.stdin.isTTY, json: false };
  const home = homeOf(this);
  if (heldMachines(home).some((machine) => machine.id === target || (target.startsWith("sbx") && machine.id.startsWith(target)))) {
    const held = await attachHeld(findHeld(home, target));
    try {
      this.setExitCode(await driveExec(this, held, ["/bin/sh"], { ...how, ...flags }));
    } finally {
      held.close();
    }
    return;
  }
  await withMachine(this, target, flags, "shell", async (sandbox) => {
    this.setExitCode(await driveExec(this, sandbox, ["/bin/sh"], how));
  });
}

/** `mw sandbox create IMAGE` */
export async function createAndHold(this: AppContext, flags: MachineFlags & { readonly json: boolean }, named?: string): Promise<void> {
  const image = named ?? (await imageOfSnapshot(this, flags.snapshot));
  await withMachine(this, image, flags, "held", async (sandbox, { directory, published }) => {
    const holder = new Holder(this, directory, image);
    const stop = await holder.serve();
    try {
      await holder.hold(sandbox);
      if (flags.json) printJson(this, { sandbox: sandbox.id, image, ...(published.length === 0 ? {} : { published: published.map(({ address, hostPort, port }) => ({ address, host_port: hostPort, port })) }) });
      else printLine(this, sandbox.id);
      note(this, `holding ${sandbox.id}; it ends with this process (Ctrl-C, or: mw sandbox rm ${sandbox.id})`);
      const { reason } = await Promise.race([holder.over, interrupted(this)]);
      if (reason !== "interrupted" && reason !== "killed") throw new MwError("sandbox_gone", `the sandbox ${sandbox.id} ended: ${reason}`);
      // A paused one is on disk, and would stay there.
      await holder.killAll();
    } finally {
      await stop();
    }
  });
}

/** Snapshots made by hand know the image that they were taken on. */
async function imageOfSnapshot(context: AppContext, reference: string | undefined): Promise<string> {
  const fix = { fix: "mw sandbox create IMAGE, or mw sandbox create --snapshot SNAPSHOT" };
  if (reference === undefined) throw new MwError("usage", "neither an image nor a snapshot to start from", fix);
  const snapshot = await new DiskSnapshotStore(homeOf(context), context.runtime).get(reference);
  if (snapshot === null) throw new MwError("not_found", `there is no snapshot ${JSON.stringify(reference)}`, { fix: "mw sandbox snapshots ls" });
  const image = snapshot.labels["image"];
  if (image === undefined) throw new MwError("usage", `the snapshot ${reference} does not say what image it was taken on`, { fix: "name the image before --snapshot" });
  return image;
}

/** `mw sandbox exec ID -- COMMAND...` */
export async function execInHeld(
  this: AppContext,
  flags: CommandFlags & { readonly env?: readonly string[]; readonly user?: string; readonly workdir?: string; readonly json: boolean },
  id: string,
  ...command: readonly string[]
): Promise<void> {
  const held = await attachHeld(findHeld(homeOf(this), id));
  try {
    this.setExitCode(await driveExec(this, held, command, flags));
  } finally {
    held.close();
  }
}

/** `mw sandbox ls` */
export async function listHeld(this: AppContext, flags: { readonly json: boolean }): Promise<void> {
  const home = homeOf(this);
  const held = heldMachines(home).map(({ id, image, createdAt, state }) => ({ sandbox: id as string, image: image as string | null, owner: "create", state: state as string, seconds: Math.round((this.runtime.now() - createdAt) / 1000) as number | null }));
  const others = controllerMachines(home).map((id) => ({ sandbox: id, image: null, owner: "controller", state: "running", seconds: null }));
  const sandboxes = [...held, ...others];
  if (flags.json) {
    printJson(this, { sandboxes });
    return;
  }
  if (sandboxes.length === 0) note(this, "no sandbox lives here");
  else {
    const rows = sandboxes.map(({ sandbox, image, owner, state, seconds }) => [sandbox, image ?? "-", owner, state, seconds === null ? "-" : formatDuration(seconds * 1000)]);
    printLine(this, formatTable([{ title: "SANDBOX" }, { title: "IMAGE" }, { title: "OWNER" }, { title: "STATE" }, { title: "AGE", align: "right" }], rows));
  }
}

/** `mw sandbox rm ID...` */
export async function removeHeld(this: AppContext, _flags: Record<never, never>, ...ids: readonly string[]): Promise<void> {
  const home = homeOf(this);
  // All names are looked up before anything is ended: a typing error ends nothing.
  const machines = ids.map((id) => findHeld(home, id));
  for (const machine of machines) await askHolder(machine, { do: "kill", id: machine.id }).catch(() => undefined);
  for (const machine of machines) {
    const deadline = this.runtime.monotonic() + 20_000;
    while (heldMachines(home).some((other) => other.id === machine.id)) {
      if (this.runtime.monotonic() > deadline) throw new MwError("timeout", `the holder of ${machine.id} (process ${machine.pid}) does not end it`, { fix: `kill -9 ${machine.pid}; all machines that it holds end with it` });
      await this.runtime.sleep(20);
    }
    printLine(this, machine.id);
  }
}

/** `mw sandbox cp FROM TO` */
export async function copyHeld(this: AppContext, flags: { readonly json: boolean }, from: string, to: string): Promise<void> {
  const home = homeOf(this);
  const [source, target] = [parsePlace(from), parsePlace(to)];
  const open = async (place: Place) => (place.id === null ? null : attachHeld(findHeld(home, place.id)));
  const [a, b] = [await open(source), await open(target)];
  try {
    let report;
    if (a !== null && b !== null) report = await a.files.copyTo(b.files, source.path, target.path);
    else if (a !== null) report = await a.files.download(source.path, target.path);
    else if (b !== null) report = await b.files.upload(source.path, target.path);
    else throw new MwError("usage", "neither end of the copy is in a sandbox", { fix: "write the sandbox's end as ID:PATH" });
    for (const { path, reason } of report.refused) note(this, `left out ${path}: ${reason}`);
    if (flags.json) printJson(this, report);
    else note(this, `copied ${report.entries} entries, ${report.bytes} bytes`);
    if (report.refused.length > 0) this.setExitCode(1);
  } finally {
    a?.close();
    b?.close();
  }
}

interface Place {
  readonly id: string | null;
  readonly path: string;
}

/** `ID:/path` is in a sandbox, everything else is on the host (also `./a:b`). */
function parsePlace(text: string): Place {
  const match = /^(sbx[0-9a-z]*):(\/.*)$/s.exec(text);
  return match === null ? { id: null, path: text } : { id: match[1] ?? "", path: match[2] ?? "" };
}

interface Opened {
  readonly backend: SandboxBackend;
  readonly directory: string;
  readonly root: RootFilesystem;
  readonly published: readonly PublishedPort[];
}

/** Makes a machine in a data directory of its own, and takes both away whatever happens. An interruption ends the machine, then the command. */
async function withMachine(context: AppContext, image: string, flags: MachineFlags, name: string, work: (sandbox: Sandbox, opened: Opened) => Promise<void>): Promise<void> {
  const config = loadConfig(context.env, context.cwd, flags.backend === undefined ? {} : { backend: flags.backend });
  const choice = parseBackendChoice(config.get("backend") ?? "native");
  const images = await openImageStore({ home: config.home.value, aliases: config.imageAliases, cwd: context.cwd, env: context.env });
  const root = await images.rootFilesystem(await images.resolve(image, { progress: (message) => note(context, message) }));
  const directory = makeHeldDirectory(config.home.value, name);
  let backend: SandboxBackend | null = null;
  const published: PublishedPort[] = [];
  const stop = context.onInterrupt(() => void backend?.close());
  try {
    const log = (line: string): void => note(context, line);
    backend = choice.kind === "native" ? await openNativeBackend({ home: directory, snapshotsHome: config.home.value }) : await openChosenBackend(choice, { home: directory, env: context.env, runtime: context.runtime, log });
    const sandbox = await backend.create(specOf(root, flags));
    for (const pair of flags.upload ?? []) await uploadPair(sandbox, pair);
    for (const rule of flags.publish ?? []) {
      const port = await publishPort(sandbox, rule);
      published.push(port);
      note(context, `port ${port.port} of the machine is at ${port.address.includes(":") ? `[${port.address}]` : port.address}:${port.hostPort}`);
    }
    await work(sandbox, { backend, directory, root, published });
  } finally {
    stop();
    await Promise.all(published.map((port) => port.close()));
    await backend?.close();
    removeHeldDirectory(directory);
  }
}

function specOf(root: RootFilesystem, flags: MachineFlags): SandboxSpec {
  return {
    root,
    ...(flags.cpus === undefined ? {} : { cpus: flags.cpus }),
    ...(flags.memory === undefined ? {} : { memoryBytes: flags.memory }),
    ...(flags.disk === undefined ? {} : { diskBytes: flags.disk }),
    ...(flags.pids === undefined ? {} : { pids: flags.pids }),
    ...networkOf(flags),
    ...(flags.user === undefined ? {} : { user: flags.user }),
    ...(flags.workdir === undefined ? {} : { workdir: flags.workdir }),
    ...(flags.snapshot === undefined ? {} : { snapshot: flags.snapshot }),
    ...(flags.checkpointable ? { checkpointable: true } : {}),
    env: envOf(flags.env),
  };
}

export function envOf(pairs: readonly string[] = []): Readonly<Record<string, string>> {
  return Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf("=");
      if (at < 1) throw new MwError("usage", `--env ${JSON.stringify(pair)} is not NAME=VALUE`);
      return [pair.slice(0, at), pair.slice(at + 1)];
    }),
  );
}

async function uploadPair(sandbox: Sandbox, pair: string): Promise<void> {
  const at = pair.lastIndexOf(":/");
  if (at < 1) throw new MwError("usage", `--upload ${JSON.stringify(pair)} is not HOST:SANDBOX with an absolute path in the sandbox`);
  const report = await sandbox.files.upload(pair.slice(0, at), pair.slice(at + 1));
  if (report.refused.length > 0) throw new MwError("invalid_input", `${report.refused[0]?.path} cannot be uploaded: ${report.refused[0]?.reason}`);
}

function interrupted(context: AppContext): Promise<{ readonly reason: "interrupted" }> {
  return new Promise((resolve) => {
    const stop = context.onInterrupt(() => {
      stop();
      resolve({ reason: "interrupted" });
    });
  });
}

function homeOf(context: AppContext): string {
  return loadConfig(context.env, context.cwd).home.value;
}

/** Machines of the controller that holds the data directory itself, by their sockets. */
function controllerMachines(home: string): readonly string[] {
  try {
    return readdirSync(runDirectory(home)).filter((name) => isId("sbx", name));
  } catch {
    return [];
  }
}

export type { Executor };
