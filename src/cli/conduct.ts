/** What `mw run`, `mw resume` and `mw demo` share: progress, interrupts, the result and its exit code. */
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Prices } from "../rollout/cost.ts";
import { readRunConfig } from "../rollout/run-config.ts";
import type { RunController } from "../rollout/controller.ts";
import { runDocument } from "../rollout/report.ts";
import { makeRunHarness } from "../rollout/run-harness.ts";
import type { RunDependencies, RunEnd } from "../rollout/run.ts";
import { LiveRun } from "../server/runs/live-run.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";
import { openMachines } from "./machines.ts";
import { formatDuration, note, printJson, printLine } from "./output.ts";
import { startProgress, type Progress } from "./progress.ts";
import { summaryText } from "./run-summary.ts";
import { VERSION } from "./version.ts";

export interface ConductOptions {
  readonly json: boolean;
  readonly quiet: boolean;
  /** Exit code 1 when a rollout did not score. */
  readonly strict: boolean;
}

/** Runs `work` with everything that a run needs, prints the result, sets the exit code. */
export async function conductRun(context: AppContext, config: Config, options: ConductOptions, work: (dependencies: RunDependencies) => Promise<RunEnd>): Promise<void> {
  const end = await runWithProgress(context, config, options.quiet, work);
  // Whoever looks at a large run finds it read.
  await new LiveRun(config.home.value, end.run).keep();
  const { prices } = await readRunConfig(config.home.value, end.run);
  reportEnd(context, options, end, prices);
}

/** Prints what a run came to, and sets the exit code. `where`: what commands about a run elsewhere need besides its id. */
export function reportEnd(context: AppContext, options: ConductOptions, end: RunEnd, prices: Prices | undefined, where = ""): void {
  const document = runDocument(end.state);
  if (options.json) printJson(context, document);
  else printLine(context, summaryText(context, end.state, prices));
  if (end.ended === "interrupted") {
    note(context, `stopped; what was under way will be tried again: mw resume ${end.run}${where}`);
    context.setExitCode(130);
    return;
  }
  if (!options.quiet && !options.json && where === "") note(context, `\nmw show ${end.run} --all lists the rollouts,\nmw export ${end.run} prints them as JSON lines`);
  const failed = document.rollouts.some((rollout) => rollout.outcome !== "scored");
  if (document.refused.length > 0 || (options.strict && failed)) context.setExitCode(1);
}

/** The same without printing a result. */
export async function runWithProgress(context: AppContext, config: Config, quiet: boolean, work: (dependencies: RunDependencies) => Promise<RunEnd>): Promise<RunEnd> {
  const progress = startProgress(context, quiet);
  const stopListening = listen(context, progress);
  const started: string[] = [];
  try {
    return await work({
      home: config.home.value,
      version: VERSION,
      runtime: context.runtime,
      env: context.env,
      openMachines: (backend, keepSeconds, run) => openMachines(context, config, backend, keepSeconds, run ?? "nothing"),
      makeHarness: makeRunHarness,
      observer: progress,
      signal: stopListening.before,
      started: (controller, run) => {
        started.push(run);
        stopListening.attach(controller);
        progress.attach(controller);
        if (!quiet) progress.note(`run ${run}`);
      },
    });
  } catch (error) {
    const [run] = started;
    if (run !== undefined && error instanceof MwError) {
      const again = `mw resume ${run} goes on`;
      throw new MwError(error.code, error.message, { fix: error.fix === undefined ? again : `${error.fix}; ${again}`, cause: error });
    }
    throw error;
  } finally {
    stopListening.stop();
    progress.finish();
  }
}

/** First interrupt: drain; second: stop; before the run has begun: give up at once. */
function listen(context: AppContext, progress: Progress): { readonly before: AbortSignal; attach(controller: RunController): void; stop(): void } {
  const before = new AbortController();
  let controller: RunController | null = null;
  let interrupts = 0;
  const act = (): void => {
    if (controller === null) {
      before.abort(new MwError("cancelled", "interrupted before the run began"));
      return;
    }
    if (interrupts === 1) {
      progress.note(`stopping: nothing new starts, ${controller.active} running rollouts have ${formatDuration(LIMITS.drainGraceMs)} to finish; once more stops them now`);
      controller.drain("interrupted", LIMITS.drainGraceMs);
    } else controller.stop("interrupted");
  };
  const stop = context.onInterrupt(() => {
    interrupts++;
    act();
  });
  return {
    before: before.signal,
    attach: (attached) => {
      controller = attached;
      if (interrupts > 0) act();
    },
    stop,
  };
}
