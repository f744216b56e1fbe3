/** What `mw train` and `mw demo` share: machines are opened, the loop runs, what came of it. */
import type { Evaluation } from "../trainer/evaluate.ts";
import { openTraining, type Training } from "../trainer/embedded.ts";
import { meanReward, UNTIL_STEPS } from "../trainer/loop.ts";
import type { StepRecord } from "../trainer/checkpoint.ts";
import { makeRunHarness } from "../rollout/run-harness.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";
import { openMachines } from "./machines.ts";
import { note, printable } from "./output.ts";
import { trainingProgress } from "./training-progress.ts";
import { VERSION } from "./version.ts";

export interface TrainingEnd {
  readonly ended: "done" | "stopped";
  readonly history: readonly StepRecord[];
  readonly document: TrainDocument;
}

export interface TrainDocument {
  readonly run: string;
  readonly directory: string;
  readonly seed: string;
  readonly ended: "done" | "stopped";
  readonly steps: number;
  readonly rollouts: number;
  /** Mean rewards of the first and the last four steps. */
  readonly meanFirst: number;
  readonly meanLast: number;
  /** Without set-up. */
  readonly seconds: number;
  readonly stalenessMax: number;
  readonly heldOut: { readonly tasks: number; readonly first: number | null; readonly last: number | null } | null;
}

/** Runs the training in `directory` from where it stands. */
export async function conductTraining(context: AppContext, config: Config, { directory, quiet, signal }: { readonly directory: string; readonly quiet: boolean; readonly signal: AbortSignal }): Promise<TrainingEnd> {
  const progress = trainingProgress(context, quiet);
  const tell = (text: string): void => {
    if (!quiet) note(context, printable(text));
  };
  const machines = await openMachines(context, config);
  let training: Training | null = null;
  let finished = false;
  try {
    training = await openTraining({
      home: config.home.value,
      version: VERSION,
      runtime: context.runtime,
      env: context.env,
      machines,
      makeHarness: makeRunHarness,
      observer: { changed: () => undefined, note: tell, activity: tell },
      directory,
      stepped: (record) => progress.stepped(record, training?.loop.history ?? []),
    });
    const { settings, loop } = training;
    const measure = async (when: string): Promise<Evaluation | null> => {
      if (training === null || settings.heldOut.length === 0 || signal.aborted) return null;
      const measured = await training.evaluate(settings.heldOut, signal);
      tell(`${when}, on ${measured.tasks} tasks that are not trained on: ${measured.mean?.toFixed(3) ?? "nothing was graded"}`);
      return measured;
    };
    // Also makes the image of the tasks, which is set-up.
    const first = loop.history.length === 0 ? await measure("untrained") : null;
    const ended = await loop.run(signal);
    const last = ended === "done" ? await measure("trained") : null;
    finished = ended === "done";
    const { history } = loop;
    return {
      ended,
      history,
      document: {
        run: settings.run,
        directory,
        seed: settings.seed,
        ended,
        steps: history.length,
        rollouts: history.reduce((sum, { rollouts }) => sum + rollouts, 0),
        meanFirst: meanReward(history.slice(0, UNTIL_STEPS)),
        meanLast: meanReward(history.slice(-UNTIL_STEPS)),
        seconds: history.at(-1)?.seconds ?? 0,
        stalenessMax: Math.max(0, ...history.map(({ staleness }) => staleness)),
        heldOut: settings.heldOut.length === 0 ? null : { tasks: settings.heldOut.length, first: first?.mean ?? null, last: last?.mean ?? null },
      },
    };
  } finally {
    await training?.close(finished);
    await machines.close();
  }
}
