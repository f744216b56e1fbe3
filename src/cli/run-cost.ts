/** What a run cost, for commands that print no table of it. */
import { readRunConfig } from "../rollout/run-config.ts";
import { loadRunState } from "../rollout/run-state.ts";
import { findRun } from "../store/run-directory.ts";
import type { AppContext } from "./context.ts";
import { printLine } from "./output.ts";
import { costText } from "./run-summary.ts";

/** Nothing where it was given no prices. */
export async function printCost(context: AppContext, home: string, name: string): Promise<void> {
  const run = await findRun(home, name);
  const { prices } = await readRunConfig(home, run);
  if (prices !== undefined) printLine(context, costText(await loadRunState(home, run), prices));
}
