/** Tasks over all runs of a data directory: how hard each was, run by run, and what is in its directory. */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { wilson } from "../../rollout/statistics.ts";
import { CERTIFICATE_FILE, certificateSchema } from "../../task/check/certificate.ts";
import { secondsOf, type RolloutState } from "../../rollout/rollout-state.ts";
import type { GroupState } from "../../rollout/run-state.ts";
import type { TaskReport, TaskRow } from "./contract/tasks.ts";
import type { LiveRun } from "./live-run.ts";
import { listFiles, readRange } from "./rollout-files.ts";
import { isoOf, rewardTally } from "./run-rows.ts";

/** Latest runs that a task is followed through. */
const RUNS_OF_TASK = 50;
/** Latest versions of a policy that are told of a task. */
const VERSIONS_OF_TASK = 200;

/** `runs`: newest first. Tasks are told apart by their directory. */
export function taskRows(runs: readonly LiveRun[]): readonly TaskRow[] {
  const tasks = groupedBy(runs.toReversed().flatMap((run) => run.state.groups.map((group) => ({ run, group }))), ({ group }) => group.task.directory);
  return [...tasks.values()].map(taskRow).sort((a, b) => (a.family < b.family ? -1 : a.family > b.family ? 1 : a.name < b.name ? -1 : 1));
}

function taskRow(groups: readonly { readonly run: LiveRun; readonly group: GroupState }[]): TaskRow {
  // A task is listed because some group has it.
  const { group: newest } = groups.at(-1) as (typeof groups)[number];
  const rollouts = groups.flatMap(({ group }) => group.rollouts);
  const { scored, passed, mean } = rewardTally(rollouts);
  const byRun = [...groupedBy(groups, ({ run }) => run)].map(([run, ofRun]) => ({ run, groups: ofRun.map(({ group }) => group) }));
  return {
    name: newest.task.name,
    family: newest.task.family,
    directory: newest.task.directory,
    digests: [...new Set(groups.flatMap(({ group }) => group.task.digest ?? []))],
    rollouts: rollouts.length,
    scored,
    passed,
    mean,
    pass: scored === 0 ? null : wilson(passed, scored),
    medianSeconds: medianSeconds(rollouts),
    runs: byRun.slice(-RUNS_OF_TASK).map(({ run, groups: ofRun }) => {
      const rollouts = ofRun.flatMap((group) => group.rollouts);
      const tally = rewardTally(rollouts);
      return {
        run: run.run,
        // A run is listed because it has a group of this task.
        group: (ofRun.at(-1) as GroupState).group,
        groups: ofRun.length,
        createdAt: isoOf(run.state.createdAt),
        rollouts: rollouts.length,
        scored: tally.scored,
        passed: tally.passed,
        mean: tally.mean,
        harnesses: [...new Set(rollouts.map(({ harness }) => harness))],
        model: run.config?.upstream?.model ?? null,
      };
    }),
    versions: byRun.slice(-RUNS_OF_TASK).flatMap(({ run, groups: ofRun }) => versionsOf(run, ofRun)).slice(-VERSIONS_OF_TASK),
  };
}

/** Versions of one run's policy, those that are numbers in their order. */
function versionsOf(run: LiveRun, groups: readonly GroupState[]): TaskRow["versions"] {
  const byVersion = groupedBy(groups.flatMap(({ rollouts }) => rollouts), ({ policyVersions }) => policyVersions[0] ?? null);
  return [...byVersion].toSorted(([a], [b]) => Number(a ?? -1) - Number(b ?? -1)).flatMap(([version, rollouts]) => {
    const { scored, passed, mean, pass } = rewardTally(rollouts);
    return pass === null ? [] : [{ run: run.run, version, scored, passed, mean, pass }];
  });
}

const TEXT = /\.(md|txt|toml|sh|py|js|ts|c|h|json|yaml|yml|cfg|ini|sql)$|Dockerfile$/;
const TEXTS_BYTES = 64 * 1024;

/** Only directories that a run names as a task's are read. */
export async function taskReport(rows: readonly TaskRow[], directory: string): Promise<TaskReport> {
  const task = rows.find((row) => row.directory === directory);
  if (task === undefined) throw new MwError("not_found", `no run has a task in ${directory}`, { fix: "GET /v1/tasks lists them" });
  const listed = await listFiles(directory);
  const files: TaskReport["files"] = [];
  for (const { path, bytes, kind } of listed.files.slice(0, 200)) {
    if (kind !== "file") continue;
    const text = TEXT.test(path) && bytes <= TEXTS_BYTES ? ((await readRange(directory, path, 0, TEXTS_BYTES))?.bytes.toString("utf8") ?? null) : null;
    files.push({ path, bytes, text });
  }
  const read = async (name: string): Promise<string | null> => (await readRange(directory, name, 0, LIMITS.viewedTextBytes))?.bytes.toString("utf8") ?? null;
  return { task, present: files.length > 0, instruction: await read("instruction.md"), config: await read("task.toml"), files, certificate: certificateOf(await read(CERTIFICATE_FILE)) };
}

function certificateOf(text: string | null): TaskReport["certificate"] {
  try {
    return certificateSchema.parse(JSON.parse(text ?? ""));
  } catch {
    return null;
  }
}

function groupedBy<Item, Key>(items: readonly Item[], keyOf: (item: Item) => Key): ReadonlyMap<Key, readonly Item[]> {
  const groups = new Map<Key, Item[]>();
  for (const item of items) {
    const key = keyOf(item);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [item]);
    else group.push(item);
  }
  return groups;
}

function medianSeconds(rollouts: readonly RolloutState[]): number | null {
  const values = rollouts.filter(({ phase, admittedAt }) => phase === "recorded" && admittedAt !== null).map(secondsOf).sort((a, b) => a - b);
  return values[Math.floor(values.length / 2)] ?? null;
}
