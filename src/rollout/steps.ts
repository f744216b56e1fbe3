/** A task as the list of things that an agent is to do: one, or one per step. */
import { MwError } from "../core/errors.ts";
import type { ArtifactRule, CollectHook, HealthCheck, Task, TaskStep, Verdict } from "../task/task.ts";

export interface StepWork {
  /** Null for a task without steps. */
  readonly step: TaskStep | null;
  /** Null for a task without steps. */
  readonly name: string | null;
  readonly instruction: string;
  readonly agentTimeoutMs: number | null;
  readonly agentUser: string | null;
  readonly verifierTimeoutMs: number;
  /** Host directory uploaded into the working directory before the step. */
  readonly files: string | null;
  readonly healthcheck: HealthCheck | null;
  /** Commands run in the machine before its processes end. */
  readonly collect: readonly CollectHook[];
  readonly artifacts: readonly ArtifactRule[];
  readonly solution: { readonly directory: string | null; readonly env: Readonly<Record<string, string>> };
  /** What the agent started lives on while the tests run. */
  readonly keepsProcesses: boolean;
  /** Whether the next step may follow. */
  readonly passes: (verdict: Verdict) => boolean;
}

export function stepsOf(task: Task): readonly StepWork[] {
  if (task.steps.length > 0) return task.steps.map((step) => multiStep(task, step));
  return [
    {
      step: null,
      name: null,
      instruction: task.instruction,
      agentTimeoutMs: task.agent.timeoutMs,
      agentUser: task.agent.user,
      verifierTimeoutMs: task.verifier.timeoutMs,
      files: null,
      healthcheck: null,
      collect: task.verifier.collect,
      artifacts: task.artifacts,
      solution: task.solution,
      keepsProcesses: task.verifier.mode === "shared",
      passes: () => true,
    },
  ];
}

function multiStep(task: Task, step: TaskStep): StepWork {
  return {
    step,
    name: step.name,
    instruction: step.instruction,
    agentTimeoutMs: step.agentTimeoutMs ?? task.agent.timeoutMs,
    agentUser: step.agentUser ?? task.agent.user,
    verifierTimeoutMs: step.verifierTimeoutMs,
    files: step.workdir,
    healthcheck: step.healthcheck,
    collect: step.verifier.collect,
    artifacts: [...task.artifacts, ...step.artifacts],
    solution: { directory: step.solution ?? task.solution.directory, env: task.solution.env },
    keepsProcesses: step.verifier.mode === "shared",
    passes: (verdict) => meets(verdict, step.minReward),
  };
}

/** A missing key counts as minus infinity. */
function meets(verdict: Verdict, minimum: Readonly<Record<string, number>> | null): boolean {
  if (minimum === null) return true;
  return Object.entries(minimum).every(([key, least]) => (verdict.rewards[key] ?? (key === "reward" ? verdict.reward : null) ?? Number.NEGATIVE_INFINITY) >= least);
}

/** The task's reward from its steps': the mean over all steps (those that were never reached count 0), or the last one's. */
export function stepReward(task: Task, verdicts: readonly Verdict[], planned: number): { readonly reward: number; readonly rewards: Readonly<Record<string, number>> } {
  const last = verdicts.at(-1);
  if (last?.reward === null || last === undefined) throw new MwError("internal", "a scored rollout without a verdict");
  if (planned === 1) return { reward: last.reward, rewards: last.rewards };
  const reached = verdicts.length === planned;
  const rewards = verdicts.map((verdict) => verdict.reward ?? 0);
  const byStep = Object.fromEntries(task.steps.map((step, index) => [`step/${step.name}`, rewards[index] ?? 0]));
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / planned;
  return { reward: task.multiStepReward === "mean" ? mean : reached ? last.reward : 0, rewards: byStep };
}
