/** `mw show RUN`, `mw show ROLLOUT` and `mw show SESSION`. */
import { readdir, readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { isId, type RunId } from "../../core/ids.ts";
import type { Builder } from "../../gateway/samples/sample.ts";
import { findRollout, findRun, rolloutDirectory } from "../../store/run-directory.ts";
import { runDocument } from "../../rollout/report.ts";
import { tokensUsed, totalCost } from "../../rollout/cost.ts";
import { readRunConfig } from "../../rollout/run-config.ts";
import { loadRunState } from "../../rollout/run-state.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { formatTable, note, printJson, printLine, printable, styler } from "../output.ts";
import { byHarness, controllerLives, phaseTimes, statisticsOf } from "../../rollout/run-statistics.ts";
import { failureText, phaseTable, summaryText } from "../run-summary.ts";
import { showRollout } from "../show-rollout.ts";
import { showTokens } from "../show-tokens.ts";

export interface ShowFlags {
  readonly json: boolean;
  readonly all: boolean;
  readonly tokens: boolean;
  readonly web: boolean;
  readonly builder: Builder;
}

/** Where a gateway recorded a session that is named by its id, by its directory, or by its own name (the agent's API key); of several with one name, the newest. */
async function sessionDirectory(context: AppContext, home: string, name: string): Promise<string | null> {
  const recorded = join(home, "gateway");
  for (const directory of [...(isId("ses", name) ? [join(recorded, name)] : []), resolve(context.cwd, name)]) if ((await nameOfSession(directory)) !== null) return directory;
  if (isId("ses", name)) throw new MwError("not_found", `there is no session ${name} in ${recorded}`, { fix: "name the session's directory, if mw gateway was given --dir" });
  // Ids sort by time.
  const ids = (await readdir(recorded).catch(() => [])).filter((entry) => isId("ses", entry)).toSorted();
  for (const id of ids.toReversed()) if ((await nameOfSession(join(recorded, id))) === name) return join(recorded, id);
  return null;
}

/** What is left is a run; a text that names none might have meant a rollout or a session too. */
async function findNamed(home: string, name: string): Promise<RunId> {
  try {
    return await findRun(home, name);
  } catch (error) {
    if (!(error instanceof MwError) || error.code !== "not_found" || isId("run", name)) throw error;
    throw new MwError("not_found", `there is no run, rollout or session ${JSON.stringify(name)} in ${home}`, { fix: error.fix ?? "mw runs lists the runs", cause: error });
  }
}

/** Null where no session is. */
async function nameOfSession(directory: string): Promise<string | null> {
  try {
    return sessionSchema.parse(JSON.parse(await readFile(join(directory, "session.json"), "utf8"))).name;
  } catch {
    return null;
  }
}

const sessionSchema = z.looseObject({ name: z.string() });

export async function show(this: AppContext, flags: ShowFlags, name: string): Promise<void> {
  const home = loadConfig(this.env, this.cwd).home.value;
  if (flags.web) {
    if (flags.json || flags.tokens) throw new MwError("usage", `--web shows everything in the browser, ${flags.json ? "--json" : "--tokens"} prints it`, { fix: "give one of them" });
    // Loads only here: nothing else of this command needs a server.
    const { showPage } = await import("../show-page.ts");
    await showPage(this, home, isId("ro", name) ? `/rollouts/${name}` : `/runs/${await findNamed(home, name)}`, async () => void (isId("ro", name) && (await findRollout(home, name))));
    return;
  }
  if (isId("ro", name)) {
    const run = await findRollout(home, name);
    if (flags.tokens) await showTokens(this, rolloutDirectory(home, run, name), flags);
    else await showRollout(this, home, run, name, flags);
    return;
  }
  const session = await sessionDirectory(this, home, name);
  if (session !== null) {
    await showTokens(this, session, flags);
    return;
  }
  if (flags.tokens) throw new MwError("usage", `--tokens shows one rollout, and ${JSON.stringify(name)} is none`, { fix: "mw show RUN --all lists the rollouts of a run" });
  const run = await findNamed(home, name);
  const state = await loadRunState(home, run);
  const { prices } = await readRunConfig(home, run);
  const times = phaseTimes(state.rollouts.values(), prices);
  if (flags.json) {
    printJson(this, { ...runDocument(state), run, statistics: statisticsOf(state, prices), harnesses: byHarness(state, prices), phases: times, tokens: tokensUsed(state.rollouts.values()), cost: prices === undefined ? null : { prices, ...totalCost(state.rollouts.values(), prices) } });
    return;
  }
  const paint = styler(this.process.stdout, this.env);
  printLine(this, summaryText(this, state, prices));
  if (times.length > 0) printLine(this, `\n${phaseTable(times, paint)}`);
  const rollouts = [...state.rollouts.values()];
  const failed = rollouts.filter(({ outcome }) => outcome !== null && outcome !== "scored");
  // Those that need a look, or all.
  const listed = flags.all ? rollouts : failed.slice(0, 20);
  if (state.status !== "finished" && !controllerLives(state)) note(this, `mw resume ${run} goes on with it`);
  if (listed.length === 0) {
    if (rollouts.length > 0) note(this, `mw show ${run} --all lists its rollouts`);
    return;
  }
  const right = "right" as const;
  const drawn = new Set(rollouts.map(({ harness }) => harness)).size > 1;
  printLine(
    this,
    `\n${formatTable(
      [{ title: "rollout" }, { title: "task" }, { title: "attempt", align: right }, ...(drawn ? [{ title: "harness" }] : []), { title: "outcome" }, { title: "reward", align: right }, { title: "stopped" }, { title: "why" }],
      listed.map((one) => [one.rollout, printable(one.task.name), String(one.attempt), ...(drawn ? [one.harness] : []), one.outcome ?? one.phase, one.reward === null ? "" : String(one.reward), one.stopReason ?? "", one.error === null ? "" : failureText(one.error).slice(0, 200)]),
      paint,
    )}`,
  );
  if (listed.length < failed.length) printLine(this, `... and ${failed.length - listed.length} more (mw show ${run} --all)`);
}
