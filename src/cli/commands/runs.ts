/** `mw runs`: the runs of the data directory, newest first. */
import { MwError, toMwError } from "../../core/errors.ts";
import { loadRunState, type RunState } from "../../rollout/run-state.ts";
import { listRuns } from "../../store/run-directory.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { controllerLives } from "../../rollout/run-statistics.ts";
import { formatTable, note, printJson, printLine, printable, styler } from "../output.ts";

export async function runs(this: AppContext, flags: { readonly json: boolean; readonly limit: number }): Promise<void> {
  const home = loadConfig(this.env, this.cwd).home.value;
  const lines = [];
  for (const run of (await listRuns(home)).slice(0, flags.limit)) {
    // One damaged run must not hide the others.
    const state = await loadRunState(home, run).catch((error: unknown) => toMwError(error));
    lines.push(state instanceof MwError ? { run, createdAt: null, status: "damaged", rollouts: null, recorded: null, outcomes: {}, mean: null, error: state.message } : line(run, state));
  }
  if (flags.json) {
    printJson(this, { runs: lines });
    return;
  }
  if (lines.length === 0) {
    note(this, `no runs in ${home}; mw run TASK... makes one`);
    return;
  }
  const right = "right" as const;
  printLine(
    this,
    formatTable(
      [{ title: "run" }, { title: "created" }, { title: "status" }, { title: "done", align: right }, { title: "mean", align: right }, { title: "outcomes" }],
      lines.map(({ run, createdAt, status, rollouts, recorded, mean, outcomes, error }) => [
        run,
        createdAt?.replace("T", " ").slice(0, 19) ?? "",
        status,
        rollouts === null ? "" : `${recorded}/${rollouts}`,
        mean === null ? "" : mean.toFixed(3),
        error === null ? Object.entries(outcomes).map(([name, count]) => `${name} ${count}`).join(", ") : printable(error),
      ]),
      styler(this.process.stdout, this.env),
    ),
  );
}

function line(run: string, state: RunState) {
  let sum = 0;
  let scored = 0;
  for (const { reward } of state.rollouts.values()) {
    if (reward === null) continue;
    sum += reward;
    scored++;
  }
  return {
    run,
    createdAt: state.createdAt === 0 ? null : new Date(state.createdAt).toISOString(),
    status: state.status === "running" && !controllerLives(state) ? "killed" : state.status,
    rollouts: state.rollouts.size,
    recorded: state.recorded,
    outcomes: Object.fromEntries(state.outcomes),
    mean: scored === 0 ? null : sum / scored,
    error: null,
  };
}
