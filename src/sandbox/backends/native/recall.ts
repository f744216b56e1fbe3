/** What a spawner whose controller died still has: machines that can go on, and what is to be ended. */
import { MwError } from "../../../core/errors.ts";
import { type MachineNote, readNote } from "./machine-note.ts";
import type { Spawner } from "./spawner.ts";
import type { RecalledMachine } from "./spawner-protocol.ts";

export interface Recalled {
  readonly note: MachineNote;
  /** Null: only its files are left, as the layer that it was about to stand on. */
  readonly running: { readonly leftMs: number | null; readonly frozen: boolean } | null;
}

/** Between two looks at what the controller before has begun and nobody can hurry. */
const LOOK_MS = 20;

/**
 * Waits for whatever is under way in the spawner. `sealed`: notes of machines that have ended, and whose files are kept under their ids. `rest`: ids of machines that nobody was told of.
 * `workspaces`: other files in its keeping, nobody's now, which machines may stand on.
 */
export async function recallMachines(spawner: Spawner): Promise<{ readonly machines: readonly Recalled[]; readonly sealed: readonly MachineNote[]; readonly rest: readonly string[]; readonly workspaces: readonly string[] }> {
  let list = await spawner.list();
  while (list.unfinished.length > 0) {
    await sleep();
    list = await spawner.list();
  }
  const running = new Map(await recallAll(spawner, list.running));
  const sealed = await recallAll(spawner, (await spawner.list()).sealed);
  // As it was looked at.
  for (const id of sealed.keys()) running.delete(id);
  const machines: Recalled[] = [];
  const rest: string[] = [];
  const layers = [...sealed.values()].flatMap((layer) => layer.note?.next ? [layer.note] : []);
  for (const [id, { note, ...state }] of running) {
    // Made again a moment ago, and not yet noted: it stands on what its layer says.
    const about = note ?? layers.find((layer) => layer.id === id) ?? null;
    if (about === null || about.id !== id) rest.push(id);
    else machines.push({ note: note === null && about.next !== null ? { ...about, ground: about.next, next: null } : about, running: state });
  }
  for (const note of layers) if (!running.has(note.id)) machines.push({ note, running: null });
  // With layers below it, it would have to be read with those.
  const ended = [...sealed].flatMap(([id, { note }]) => (note !== null && note.id === id && note.next === null && note.ground.memoryLayers === 0 && note.ground.diskLayers.length === 0 ? [note] : []));
  return { machines, sealed: ended, rest, workspaces: [...sealed.keys()].filter((id) => !ended.some((note) => note.id === id)) };
}

type Found = Omit<RecalledMachine, "note"> & { readonly note: MachineNote | null };

async function recallAll(spawner: Spawner, ids: readonly string[]): Promise<ReadonlyMap<string, Found>> {
  const found = new Map<string, Found>();
  for (const id of ids) {
    const recalled = await recall(spawner, id);
    if (recalled !== null) found.set(id, { ...recalled, note: recalled.note === null ? null : readNote(recalled.note) });
  }
  return found;
}

/** Null for what has ended meanwhile. */
async function recall(spawner: Spawner, id: string): Promise<RecalledMachine | null> {
  for (;;) {
    try {
      return await spawner.recall(id);
    } catch (error) {
      if (!(error instanceof MwError)) throw error;
      if (error.code === "sandbox_gone") return null;
      if (error.code !== "busy") throw error;
      await sleep();
    }
  }
}

function sleep(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, LOOK_MS));
}
