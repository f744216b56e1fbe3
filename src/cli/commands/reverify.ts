/** `mw reverify`: a changed verifier over what agents left, and what its rewards touch. */
import { MwError } from "../../core/errors.ts";
import { absoluteInput } from "../../rollout/inputs.ts";
import { readRunConfig } from "../../rollout/run-config.ts";
import { taskChecker, tryServices } from "../../rollout/run-services.ts";
import { loadRunState } from "../../rollout/run-state.ts";
import { reverify, type Reverified } from "../../rollout/reverify.ts";
import { findRun } from "../../store/run-directory.ts";
import { loadTask } from "../../task/load-task.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { openMachines } from "../machines.ts";
import { formatTable, note, printJson, printLine, printable, styler } from "../output.ts";
import { touchedBy, type Touched } from "../touched.ts";

export interface ReverifyFlags {
  readonly task: string;
  readonly concurrency: number;
  readonly json: boolean;
  readonly quiet: boolean;
}

export async function reverifyRun(this: AppContext, flags: ReverifyFlags, name: string): Promise<void> {
  const config = loadConfig(this.env, this.cwd);
  const home = config.home.value;
  const run = await findRun(home, name);
  const task = await loadTask(absoluteInput(this.cwd, flags.task));
  const [settings, state] = [await readRunConfig(home, run), await loadRunState(home, run)];
  const abort = new AbortController();
  const stopListening = this.onInterrupt(() => abort.abort(new MwError("cancelled", "interrupted")));
  const machines = await openMachines(this, config, config.get("backend") ?? "native");
  try {
    const surroundings = { home, runtime: this.runtime, env: this.env, observer: {} };
    taskChecker(surroundings, settings, [], machines)(task);
    const services = tryServices(surroundings, { config: settings, machines, model: null, layers: () => Promise.resolve([]) }, abort.signal);
    const done = (one: Reverified): void => {
      if (!flags.quiet) note(this, printable(`${one.rollout}: ${said(one)}`));
    };
    const all = await reverify({ home, run, config: settings, state, task, services, concurrency: flags.concurrency, signal: abort.signal, done });
    const touched = await touchedBy(home, run, state, all);
    if (flags.json) printJson(this, { run, task: task.name, taskDigest: task.digest, rollouts: all, touched });
    else print(this, all, touched);
    if (all.some(({ error }) => error !== null)) this.setExitCode(1);
  } finally {
    stopListening();
    await machines.close();
  }
}

function said({ was, reward, changed, error }: Reverified): string {
  if (error !== null) return `not verified: ${error.message}`;
  return changed ? `reward ${reward ?? "none"}, was ${was ?? "none"}` : `reward ${reward ?? "none"}, as before`;
}

function print(context: AppContext, all: readonly Reverified[], touched: Touched): void {
  const paint = styler(context.process.stdout, context.env);
  const right = "right" as const;
  const rows = all.map((one) => [one.rollout, String(one.attempt), one.was === null ? "none" : String(one.was), one.error === null ? String(one.reward ?? "none") : "", one.error === null ? (one.changed ? "changed" : "") : printable(one.error.message).slice(0, 200)]);
  printLine(context, formatTable([{ title: "rollout" }, { title: "attempt", align: right }, { title: "was", align: right }, { title: "now", align: right }, { title: "" }], rows, paint));
  const { rollouts, samples, leases, steps, checkpoints } = touched;
  if (rollouts.length === 0) {
    printLine(context, "\nno reward is other than recorded");
    return;
  }
  printLine(context, `\n${rollouts.length} rewards are other than recorded. They are in`);
  for (const [what, names] of [["samples", samples], ["leases", leases], ["trainer steps", steps.map(String)], ["checkpoints", checkpoints]] as const) {
    printLine(context, printable(`  ${what.padEnd(13)}  ${names.length === 0 ? "none" : `${names.length}: ${names.slice(0, 20).join(", ")}${names.length > 20 ? ", ..." : ""}`}`));
  }
}
