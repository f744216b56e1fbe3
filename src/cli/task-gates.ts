/** Runs a task the way `mw run` does, with agents whose result is known: the reference, and one that does nothing. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { messageOf } from "../core/errors.ts";
import { newId } from "../core/ids.ts";
import { makeHarness } from "../harness/index.ts";
import { preflight } from "../rollout/preflight.ts";
import { RolloutRecorder } from "../rollout/recorder.ts";
import { TaskImages } from "../rollout/task-images.ts";
import { runTry } from "../rollout/try/try.ts";
import { expandPlaceholders } from "../task/placeholders.ts";
import type { NetworkOverride } from "../task/network.ts";
import type { Task, TaskVerifier, Verdict } from "../task/task.ts";
import { withoutUnenforceableLimits } from "../sandbox/lenient-backend.ts";
import { createVerifier } from "../task/verify/verify.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";
import { openMachines } from "./machines.ts";

export interface GateRun {
  readonly agent: "oracle" | "nop";
  readonly mode: TaskVerifier["mode"];
  readonly outcome: string;
  readonly reward: number | null;
  readonly source: Verdict["source"];
  readonly error: string | null;
  readonly restored: readonly string[];
  readonly removed: readonly string[];
  readonly notes: readonly string[];
  readonly seconds: number;
}

export interface GateOptions {
  readonly image: string | null;
  readonly network: NetworkOverride;
  readonly ignoreLimits: boolean;
  readonly progress: (text: string) => void;
  readonly signal: AbortSignal;
}

export interface TaskGates {
  /** Every gate's run, in order. What cannot start is a run with an error outcome. */
  run(task: Task): Promise<readonly GateRun[]>;
  close(): Promise<void>;
}

export async function openTaskGates(context: AppContext, config: Config, options: GateOptions): Promise<TaskGates> {
  const machines = await openMachines(context, config, config.get("backend") ?? "native");
  const { runtime, env } = context;
  const directory = await mkdtemp(join(tmpdir(), "mw-check-"));
  const images = new TaskImages({ images: machines.images, builder: machines.builder, override: options.image, timeoutMultiplier: 1, progress: options.progress, signal: options.signal });
  const backend = options.ignoreLimits ? withoutUnenforceableLimits(machines.backend) : machines.backend;
  const lookupEnv = (name: string): string | undefined => env[name];
  const verifier = createVerifier({ backend, runtime, imageRoot: (environment) => images.root(environment), lookupEnv });
  const expandEnv = (table: Readonly<Record<string, string>>, where: string): Record<string, string> => expandPlaceholders(table, lookupEnv, where);

  const gate = async (task: Task, agent: GateRun["agent"], mode: TaskVerifier["mode"]): Promise<GateRun> => {
    const startedAt = runtime.monotonic();
    const verdicts: Verdict[] = [];
    options.progress(`${task.name}: ${agent === "oracle" ? "the reference" : "doing nothing"}, verified ${mode}`);
    const rollout = newId("ro", runtime);
    const recorder = await RolloutRecorder.open(join(directory, rollout), "process");
    try {
      const result = await runTry(
        {
          runtime,
          backend,
          images,
          verifier: {
            verify: async (request) => {
              const verified = await verifier.verify({ ...request, mode });
              verdicts.push(verified.verdict);
              return verified;
            },
          },
          layers: () => Promise.resolve([]),
          model: null,
          budgets: { turns: 1, tokens: null, commandMs: 3_600_000, outputBytes: 64 * 1024 },
          networkOverride: options.network,
          timeoutMultiplier: 1,
          pauseOnThink: false,
          checkpointEveryMs: null,
          takeOverSeconds: null,
          keepWorkspace: false,
          expandEnv,
        },
        { run: newId("run", runtime), rollout, try: 1, task, harness: makeHarness(agent), seed: "check", setupSeed: "check", branchTurn: null, restored: null, survivor: null, handoverDirectory: join(directory, "handover"), sampling: {}, deadlineMs: null, recorder, emit: () => Promise.resolve(), signal: options.signal },
      );
      const last = verdicts.at(-1);
      return {
        agent,
        mode,
        outcome: result.outcome,
        reward: result.reward,
        source: last?.source ?? null,
        error: result.error === null ? null : result.error.message,
        restored: verdicts.flatMap(({ evidence }) => evidence.restored),
        removed: verdicts.flatMap(({ evidence }) => evidence.removed),
        notes: verdicts.flatMap(({ evidence }) => evidence.notes),
        seconds: (runtime.monotonic() - startedAt) / 1000,
      };
    } finally {
      await recorder.close();
    }
  };

  return {
    async run(task) {
      const modes = allowedModes(task);
      const [own = "fresh"] = modes;
      const hasReference = task.solution.directory !== null || (task.steps.length > 0 && task.steps.every((step) => step.solution !== null));
      try {
        preflight(task, { pauseOnThink: false, harnesses: hasReference ? [makeHarness("oracle")] : [], capabilities: machines.backend.capabilities, networkOverride: options.network, ignoreLimits: options.ignoreLimits, expandEnv });
      } catch (error) {
        return [{ agent: "oracle", mode: own, outcome: "task_error", reward: null, source: null, error: messageOf(error), restored: [], removed: [], notes: [], seconds: 0 }];
      }
      const runs: GateRun[] = [await gate(task, "nop", own)];
      if (hasReference) for (const mode of modes) runs.push(await gate(task, "oracle", mode));
      return runs;
    },
    async close() {
      await machines.close();
      await rm(directory, { recursive: true, force: true });
    },
  };
}

/** The task's own mode first. Where only artifacts cross, nothing else is comparable; what needs living processes has no other way. */
function allowedModes(task: Task): readonly TaskVerifier["mode"][] {
  const mode = (task.steps[0]?.verifier ?? task.verifier).mode;
  return mode === "fresh" && task.steps.length === 0 ? ["fresh", "shared"] : [mode];
}
