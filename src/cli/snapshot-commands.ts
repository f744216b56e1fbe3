/** What `mw sandbox snapshot|fork|pause|resume` and `mw sandbox snapshots ...` do. */
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { DiskSnapshotStore } from "../sandbox/index.ts";
import type { Snapshot } from "../sandbox/sandbox.ts";
import { loadConfig } from "./config.ts";
import type { AppContext } from "./context.ts";
import { askHolder } from "./held-control.ts";
import { findHeld } from "./held-machines.ts";
import { formatBytes, formatDuration, formatTable, note, printJson, printLine } from "./output.ts";

const Taken = z.object({ snapshot: z.object({ id: z.string(), name: z.string().nullable(), bytes: z.number() }).loose(), method: z.string(), stoppedMs: z.number() });
const Children = z.array(z.union([z.object({ sandbox: z.string() }), z.object({ error: z.object({ code: z.string(), message: z.string() }) })]));

const homeOf = (context: AppContext): string => loadConfig(context.env, context.cwd).home.value;
const storeOf = (context: AppContext): DiskSnapshotStore => new DiskSnapshotStore(homeOf(context), context.runtime);

/** `mw sandbox snapshot ID` */
export async function takeSnapshot(this: AppContext, flags: { readonly name?: string; readonly memory: boolean; readonly json: boolean }, id: string): Promise<void> {
  const machine = findHeld(homeOf(this), id);
  const taken = Taken.parse(await askHolder(machine, { do: "snapshot", id: machine.id, name: flags.name ?? null, memory: flags.memory }));
  if (flags.json) printJson(this, taken);
  else printLine(this, taken.snapshot.id);
  note(this, `${formatBytes(taken.snapshot.bytes)} kept; the machine stood still for ${formatDuration(taken.stoppedMs)} (${taken.method})`);
}

/** `mw sandbox fork ID -n N` */
export async function forkHeld(this: AppContext, flags: { readonly count: number; readonly memory: boolean; readonly json: boolean }, id: string): Promise<void> {
  const machine = findHeld(homeOf(this), id);
  const children = Children.parse(await askHolder(machine, { do: "fork", id: machine.id, count: flags.count, memory: flags.memory }));
  if (flags.json) printJson(this, { children });
  for (const child of children) {
    if ("error" in child) note(this, `a child could not be made: ${child.error.message}`);
    else if (!flags.json) printLine(this, child.sandbox);
  }
  if (children.some((child) => "error" in child)) this.setExitCode(1);
}

/** `mw sandbox pause ID` */
export async function pauseHeld(this: AppContext, flags: { readonly memory: boolean }, id: string): Promise<void> {
  const machine = findHeld(homeOf(this), id);
  await askHolder(machine, { do: "pause", id: machine.id, memory: flags.memory });
  printLine(this, machine.id);
}

/** `mw sandbox resume ID` */
export async function resumeHeld(this: AppContext, _flags: Record<never, never>, id: string): Promise<void> {
  const machine = findHeld(homeOf(this), id);
  await askHolder(machine, { do: "resume", id: machine.id });
  printLine(this, machine.id);
}

/** `mw sandbox snapshots ls` */
export async function listSnapshots(this: AppContext, flags: { readonly json: boolean }): Promise<void> {
  const snapshots = await storeOf(this).list();
  if (flags.json) {
    printJson(this, { snapshots });
    return;
  }
  if (snapshots.length === 0) note(this, "no snapshot is kept here");
  else {
    const rows = snapshots.map((snapshot) => [snapshot.id, snapshot.name ?? "-", kindOf(snapshot), snapshot.labels["image"] ?? "-", formatBytes(snapshot.bytes), formatDuration(this.runtime.now() - snapshot.createdAt)]);
    printLine(this, formatTable([{ title: "SNAPSHOT" }, { title: "NAME" }, { title: "KIND" }, { title: "IMAGE" }, { title: "SIZE", align: "right" }, { title: "AGE", align: "right" }], rows));
  }
}

function kindOf({ memory, pausedSandbox }: Snapshot): string {
  return `${memory ? "memory" : "files"}${pausedSandbox === null ? "" : ` of paused ${pausedSandbox}`}`;
}

/** `mw sandbox snapshots rm SNAPSHOT...` */
export async function removeSnapshots(this: AppContext, _flags: Record<never, never>, ...references: readonly string[]): Promise<void> {
  const store = storeOf(this);
  // All are looked up before anything goes: a typing error removes nothing.
  for (const reference of references) if ((await store.get(reference)) === null) throw new MwError("not_found", `There is no snapshot ${JSON.stringify(reference)}`, { fix: "mw sandbox snapshots ls" });
  for (const reference of references) {
    await store.remove(reference);
    printLine(this, reference);
  }
}

/** `mw sandbox snapshots export SNAPSHOT FILE` */
export async function exportSnapshotTo(this: AppContext, _flags: Record<never, never>, reference: string, path: string): Promise<void> {
  await storeOf(this).export(reference, path);
  note(this, `wrote ${path}`);
}

/** `mw sandbox snapshots import FILE` */
export async function importSnapshotFrom(this: AppContext, flags: { readonly name?: string }, path: string): Promise<void> {
  printLine(this, (await storeOf(this).import(path, flags.name === undefined ? {} : { name: flags.name })).id);
}

/** `mw sandbox snapshots gc` */
export async function collectSnapshots(this: AppContext, flags: { readonly json: boolean }): Promise<void> {
  const collected = await storeOf(this).collect();
  if (flags.json) printJson(this, collected);
  else note(this, `${collected.layers} layers removed`);
}
