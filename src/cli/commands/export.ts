/** `mw export`: a run's recorded rollouts, one JSON document a line. */
import { MwError } from "../../core/errors.ts";
import { exportLines, type ExportFormat } from "../../rollout/export.ts";
import { readRunConfig } from "../../rollout/run-config.ts";
import { loadRunState } from "../../rollout/run-state.ts";
import { findRun } from "../../store/run-directory.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { note } from "../output.ts";

export async function exportRun(this: AppContext, flags: { readonly format: ExportFormat; readonly scoredOnly: boolean }, name: string): Promise<void> {
  const home = loadConfig(this.env, this.cwd).home.value;
  const run = await findRun(home, name);
  const state = await loadRunState(home, run);
  let count = 0;
  for await (const line of exportLines(home, await readRunConfig(home, run), state, flags)) {
    this.process.stdout.write(`${line}\n`);
    count++;
  }
  if (count === 0) throw new MwError("not_found", `${run} has no ${flags.scoredOnly ? "scored" : "recorded"} rollouts to export`, { fix: `mw show ${run} says how far it is` });
  note(this, `${count} ${count === 1 ? "rollout" : "rollouts"}`);
}
