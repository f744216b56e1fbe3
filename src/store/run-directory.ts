/**
 * Where a run lives: `MW_HOME/runs/<run id>/`, readable alone and by eye.
 *
 *     run.json            configuration, never changed after the run began
 *     events.jsonl        the log, the only truth about what happened
 *     handover/<id>/      while the agent of a rollout that may outlive its controller works: see src/rollout/take-over/agent-record.ts
 *     rollouts/<id>/      what one rollout left: instruction.md, transcript.jsonl, calls.jsonl, commands.jsonl, commands/, artifacts/, verifier/,
 *                         verdict.json, result.json; of tries before the last one in tries/<n>/
 */
import { copyFile, mkdir, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { MwError, messageOf } from "../core/errors.ts";
import { isId, type RolloutId, type RunId } from "../core/ids.ts";
import { syncDirectory, writeDurably, type Durability } from "./durable.ts";

export const runsDirectory = (home: string): string => join(home, "runs");
export const runDirectory = (home: string, run: RunId): string => join(runsDirectory(home), run);
export const eventsFile = (home: string, run: RunId): string => join(runDirectory(home, run), "events.jsonl");
export const rolloutDirectory = (home: string, run: RunId, rollout: RolloutId): string => join(runDirectory(home, run), "rollouts", rollout);

export const handoversDirectory = (home: string, run: RunId): string => join(runDirectory(home, run), "handover");

/** Private, and gone when the rollout's agent is: how another controller goes on with it. */
export const handoverDirectory = (home: string, run: RunId, rollout: RolloutId): string => join(handoversDirectory(home, run), rollout);

/** Creates the directory with its `run.json` and copies of host files by name. It appears complete or not at all. */
export async function createRunDirectory(home: string, run: RunId, document: unknown, copies: Readonly<Record<string, string>>, durability: Durability): Promise<string> {
  const target = runDirectory(home, run);
  const temporary = join(runsDirectory(home), `.${run}.new`);
  try {
    await mkdir(join(temporary, "rollouts"), { recursive: true });
    await writeDurably(join(temporary, "run.json"), `${JSON.stringify(document, null, 2)}\n`, durability);
    for (const [name, path] of Object.entries(copies)) await copyFile(path, join(temporary, name));
    await rename(temporary, target);
    if (durability === "power") await syncDirectory(runsDirectory(home));
    return target;
  } catch (error) {
    await rm(temporary, { recursive: true, force: true });
    const code = (error as NodeJS.ErrnoException).code;
    throw new MwError(code === "ENOSPC" || code === "EDQUOT" ? "host_exhausted" : "environment", `cannot create the run's directory ${target}: ${messageOf(error)}`, {
      fix: "give MW_HOME a directory that is writable and has room",
      cause: error,
    });
  }
}

/** Takes away what a controller left that died while it made a directory. For the owner of the data directory. */
export async function sweepRuns(home: string): Promise<void> {
  const names = await readdir(runsDirectory(home)).catch(() => []);
  for (const name of names) if (/^\.run.*\.new$/.test(name)) await rm(join(runsDirectory(home), name), { recursive: true, force: true });
}

export async function readRunDocument(home: string, run: RunId): Promise<unknown> {
  const path = join(runDirectory(home, run), "run.json");
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") throw new MwError("not_found", `there is no run ${run} in ${home}`, { fix: "mw runs lists the runs of this data directory (MW_HOME)" });
    throw new MwError("environment", `cannot read ${path}: ${messageOf(error)}`, { cause: error, fix: "make the data directory readable" });
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new MwError("corrupt", `${path} is no JSON: ${messageOf(error)}`, { cause: error });
  }
}

/** Ids of the runs, newest first. */
export async function listRuns(home: string): Promise<readonly RunId[]> {
  let names: string[];
  try {
    names = await readdir(runsDirectory(home));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw new MwError("environment", `cannot read ${runsDirectory(home)}: ${messageOf(error)}`, { cause: error, fix: "make the data directory readable" });
  }
  return names.filter((name): name is RunId => isId("run", name)).sort().toReversed();
}

/** The run that a text names: its id, or the only one whose id starts with it, or `latest`. */
export async function findRun(home: string, text: string): Promise<RunId> {
  const runs = await listRuns(home);
  const latest = runs[0];
  if (text === "latest" && latest !== undefined) return latest;
  const matches = isId("run", text) ? runs.filter((run) => run === text) : runs.filter((run) => text.length >= 4 && run.startsWith(text));
  const [match, second] = matches;
  if (match === undefined) {
    throw new MwError("not_found", `there is no run ${JSON.stringify(text)} in ${home}`, {
      fix: runs.length === 0 ? "this data directory (MW_HOME) has no runs yet: mw run TASK..." : "mw runs lists them",
    });
  }
  if (second !== undefined) throw new MwError("usage", `${JSON.stringify(text)} names ${matches.length} runs`, { fix: "give more of the id" });
  return match;
}

/** The run that holds a rollout. */
export async function findRollout(home: string, rollout: RolloutId): Promise<RunId> {
  for (const run of await listRuns(home)) {
    if (await isDirectory(rolloutDirectory(home, run, rollout))) return run;
  }
  throw new MwError("not_found", `there is no rollout ${rollout} in ${home}`, { fix: "mw show RUN lists the rollouts of a run" });
}

async function isDirectory(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch {
    return false;
  }
}
