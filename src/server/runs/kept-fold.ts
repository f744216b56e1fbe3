/**
 * The fold of a log beside it, `fold.json`, so that a large run opens without reading all of it again. Derived: who takes it away loses nothing but time. It counts only where it is
 * whole, is of this version's states, and stands for the very bytes that the log begins with; else it is as if it were not there.
 */
import { open, readFile } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import type { RolloutId, RunId } from "../../core/ids.ts";
import { newRollout, type RolloutState } from "../../rollout/rollout-state.ts";
import { RunState, type GroupState } from "../../rollout/run-state.ts";
import { writeDurably } from "../../store/durable.ts";
import { eventsFile, runDirectory } from "../../store/run-directory.ts";
import { RunFold, type FailureTally } from "./run-fold.ts";

/** To be raised when an event comes to mean something else; fields that come or go are noticed without. */
const FORMAT = 1;
const CHUNK_BYTES = 1 << 20;

/** The first line; the second one is the fold. */
interface Head {
  readonly format: number;
  /** Of the second line. */
  readonly sum: number;
  /** What was read of the log, and the checksum of those bytes. */
  readonly log: { readonly bytes: number; readonly sum: number; readonly lastSeq: number; readonly epoch: number };
  /** Of a rollout, in the order of its row. */
  readonly columns: readonly string[];
  readonly fields: readonly string[];
}

/** Of a rollout: index of its group, its last change, distances between the ends of its events, its columns. */
type Row = readonly [number, number, readonly number[], readonly unknown[]];

interface Body {
  readonly run: Readonly<Record<string, unknown>>;
  readonly outcomes: [never, number][];
  readonly groups: readonly Omit<GroupState, "rollouts">[];
  readonly rollouts: readonly Row[];
  readonly failedTries: readonly FailureTally[];
}

export const foldFile = (home: string, run: RunId): string => join(runDirectory(home, run), "fold.json");

const BLANK: RolloutState = newRollout({ rollout: "" as never, attempt: 0, seed: "", harness: "", group: "" as never, task: { name: "", family: "", digest: null, directory: "" }, at: 0 });
const COLUMNS = Object.keys(BLANK).filter((name): name is keyof RolloutState => name !== "group" && name !== "task");
/** Plain values of a run's state. */
const FIELDS = ["run", "status", "interruption", "planCompleted", "inputs", "createdAt", "lastAt", "recorded", "controllerPid", "planned", "refused", "sources"] as const satisfies readonly (keyof RunState)[];

/** Writes what was read of the log. Rejects what the file system says, where it does not let it. */
export async function keepFold(home: string, run: RunId, fold: RunFold): Promise<void> {
  const { state, position, places, changed, failedTries } = fold;
  const { offset, lastSeq, epoch } = position;
  const groupAt = new Map(state.groups.map(({ group }, at) => [group, at]));
  const body: Body = {
    run: Object.fromEntries(FIELDS.map((name) => [name, state[name]])),
    outcomes: [...state.outcomes] as [never, number][],
    groups: state.groups.map(({ group, index, source, task, error, name, dataset }) => ({ group, index, source, task, error, name, dataset })),
    rollouts: fold.order.map((rollout): Row => [groupAt.get(rollout.group) ?? -1, changed.get(rollout.rollout) ?? 0, distances(places.get(rollout.rollout) ?? []), COLUMNS.map((name) => rollout[name])]),
    failedTries: [...failedTries.values()],
  };
  const text = JSON.stringify(body);
  const head: Head = { format: FORMAT, sum: crc32(text), log: { bytes: offset, sum: await sumOfLog(home, run, offset), lastSeq, epoch }, columns: COLUMNS, fields: FIELDS };
  await writeDurably(foldFile(home, run), `${JSON.stringify(head)}\n${text}\n`, "process");
}

/** The fold that was kept, if there is one that stands for what the log begins with. */
export async function readKeptFold(home: string, run: RunId): Promise<RunFold | null> {
  try {
    const content = await readFile(foldFile(home, run));
    const end = content.indexOf(10);
    const head = JSON.parse(content.toString("utf8", 0, end)) as Head;
    const body = content.subarray(end + 1, content.length - 1);
    if (head.format !== FORMAT || String(head.columns) !== String(COLUMNS) || String(head.fields) !== String(FIELDS) || head.sum !== crc32(body)) return null;
    if ((await sumOfLog(home, run, head.log.bytes)) !== head.log.sum) return null;
    return foldOf(head, JSON.parse(body.toString("utf8")) as Body);
  } catch {
    // Whatever is wrong with it, the log has everything.
    return null;
  }
}

function foldOf({ log }: Head, body: Body): RunFold {
  const groups = body.groups.map((group) => Object.assign(group, { rollouts: [] as RolloutState[] }));
  const rollouts = body.rollouts.map(([at, , , values]) => {
    const group = groups[at];
    if (group === undefined) throw new Error(`there is no group ${at}`);
    const rollout: RolloutState = { ...BLANK, group: group.group, task: group.task };
    for (const [index, name] of COLUMNS.entries()) (rollout as unknown as Record<string, unknown>)[name] = values[index];
    group.rollouts.push(rollout);
    return rollout;
  });
  const state = Object.assign(RunState.of(groups, rollouts), body.run);
  for (const [outcome, count] of body.outcomes) state.outcomes.set(outcome, count);
  const fold = new RunFold(state, { offset: log.bytes, lastSeq: log.lastSeq, epoch: log.epoch, tornBytes: 0 });
  for (const tally of body.failedTries) fold.failedTries.set(`${tally.outcome} ${tally.code}`, tally);
  const changes: { readonly rollout: RolloutId; readonly seq: number }[] = [];
  for (const [index, { rollout }] of rollouts.entries()) {
    const [, seq = 0, steps = []] = body.rollouts[index] ?? [];
    if (steps.length > 0) fold.places.set(rollout, sums(steps));
    changes.push({ rollout, seq });
  }
  for (const { rollout, seq } of changes.sort((a, b) => a.seq - b.seq)) fold.touch(rollout, seq);
  return fold;
}

/** Of the bytes that a log begins with; null when it has fewer. */
async function sumOfLog(home: string, run: RunId, bytes: number): Promise<number> {
  const file = await open(eventsFile(home, run), "r");
  try {
    const chunk = Buffer.allocUnsafe(Math.min(CHUNK_BYTES, Math.max(1, bytes)));
    let sum = 0;
    for (let at = 0; at < bytes; ) {
      const { bytesRead } = await file.read(chunk, 0, Math.min(chunk.length, bytes - at), at);
      if (bytesRead === 0) throw new Error("the log is shorter than what was read of it");
      sum = crc32(chunk.subarray(0, bytesRead), sum);
      at += bytesRead;
    }
    return sum;
  } finally {
    await file.close();
  }
}

/** Numbers that grow, as small ones. */
function distances(values: readonly number[]): number[] {
  return values.map((value, index) => value - (values[index - 1] ?? 0));
}

function sums(steps: readonly number[]): number[] {
  let sum = 0;
  return steps.map((step) => (sum += step));
}
