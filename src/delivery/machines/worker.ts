/** Runs the members of a trainer's groups in machines, as rollouts of an ordinary run directory. */
import { MwError, toMwError } from "../../core/errors.ts";
import type { Runtime } from "../../core/runtime.ts";
import { parseUpstreamSpec } from "../../gateway/upstreams/spec.ts";
import { PolicyRegister, specOf } from "../../policy/register.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";
import { fromFailure } from "../../rollout/events.ts";
import type { MemberRecord } from "../../rollout/open-run.ts";
import type { OpenedRun, RunHost } from "../../rollout/run-host.ts";
import type { RolloutState } from "../../rollout/rollout-state.ts";
import { rolloutTokens, rowsOf } from "../../rollout/samples/rollout-samples.ts";
import { loadTask } from "../../task/load-task.ts";
import type { MemberEnd, MemberJob, PolicyState, RolloutWorker, TaskFacts, WorkerFactory, WorkerRequest } from "../worker.ts";

export interface MachineWorkersOptions {
  readonly home: string;
  readonly host: RunHost;
  readonly runtime: Runtime;
}

/** Workers for any number of runs, on one host's machines. */
export function machineWorkers(options: MachineWorkersOptions): WorkerFactory {
  return async (request) => {
    const policy = new PolicyRegister(options.runtime);
    return new MachineWorker(options, request, policy, await openRun(options.host, request, policy));
  };
}

function openRun(host: RunHost, { run, name, epoch, request }: WorkerRequest, policy: PolicyRegister): Promise<OpenedRun> {
  const { budgets, tokenizer, checkpoint_rollouts: checkpoint, prices } = request;
  const parts = request.dataset ?? [];
  return host.openRun(
    run,
    {
      inputs: parts.flatMap(({ inputs }) => inputs),
      attempts: request.group_size,
      seed: request.seed,
      concurrency: request.concurrency,
      keepWorkspace: request.keep_workspaces,
      checkpointEveryMs: checkpoint === "every-turn" ? 0 : checkpoint === null ? null : Math.ceil(checkpoint.every_s * 1000),
      ignoreLimits: request.ignore_limits,
      ...(prices === undefined ? {} : { prices }),
      network: null,
      harnesses: [...new Set([...request.harness, ...parts.flatMap(({ harness = [] }) => harness)])],
      budgets,
      trainer: { name, epoch, tokenizer: tokenizer === null ? null : { ...tokenizer, digest: null }, singleVersion: request.answer_versions === "single" },
    },
    policy,
  );
}

class MachineWorker implements RolloutWorker {
  readonly #options: MachineWorkersOptions;
  readonly #request: WorkerRequest;
  readonly #policy: PolicyRegister;
  readonly #opened: OpenedRun;

  constructor(options: MachineWorkersOptions, request: WorkerRequest, policy: PolicyRegister, opened: OpenedRun) {
    this.#options = options;
    this.#request = request;
    this.#policy = policy;
    this.#opened = opened;
  }

  async check(directory: string, harness: readonly string[]): Promise<TaskFacts> {
    const task = await loadTask(directory);
    for (const name of harness) this.#opened.check(task, name);
    const { name, family, digest } = task;
    return { name, family, digest };
  }

  async setPolicy({ version, state, model, endpoints }: PolicyState): Promise<void> {
    for (const endpoint of endpoints) parseUpstreamSpec(specOf(endpoint), "endpoints");
    this.#policy.set({ version, state, model, endpoints: endpoints.map(({ url, kind }) => ({ url, ...(kind === undefined ? {} : { kind }) })) });
  }

  async run({ groupId, task, dataset, member, attempt, seed, harness, sampling, deadlineMs }: MemberJob, signal: AbortSignal): Promise<MemberEnd> {
    const record = await this.#opened.run.member({ group: groupId, task, dataset, member, replacement: attempt, seed, harnesses: harness, sampling, deadlineMs }, signal);
    return await this.#endOf(record);
  }

  over(groupId: string): void {
    this.#opened.run.over(groupId);
  }

  close(finished?: boolean): Promise<void> {
    return this.#opened.run.close(finished);
  }

  async #endOf({ group, rollout }: MemberRecord): Promise<MemberEnd> {
    const { run, request } = this.#request;
    const { home } = this.#options;
    const { builder, max_tokens: maxTokens } = request.samples;
    let tokens: Awaited<ReturnType<typeof rolloutTokens>> | null = null;
    let error = rollout.error === null ? null : fromFailure(rollout.error);
    // What never began has no calls.
    if (rollout.try > 0) {
      tokens = await rolloutTokens(rolloutDirectory(home, run, rollout.rollout), { builder, ...(maxTokens === null ? {} : { maxTokens }) }).catch((failure: unknown) => {
        // The reward stands, but nothing of it can be trained on.
        error ??= toMwError(failure);
        return null;
      });
    }
    return {
      rollout: rollout.rollout,
      group: group.group,
      task: { name: rollout.task.name, family: rollout.task.family, digest: rollout.task.digest },
      // Recorded rollouts have one.
      outcome: rollout.outcome ?? "sandbox_error",
      reward: rollout.reward,
      rewards: rollout.rewards,
      stopReason: rollout.stopReason,
      error: error === null ? null : { code: error.code, message: error.message, permanent: isPermanent(rollout, error) },
      startedAt: rollout.admittedAt,
      endedAt: rollout.at,
      timings: timingsOf(rollout),
      turns: rollout.turns,
      toolErrors: null,
      model: tokens?.calls.at(-1)?.model ?? this.#opened.model.model,
      tokenizer: this.#opened.model.tokenizer,
      image: rollout.image,
      verifier: rollout.verifier,
      samples: tokens === null ? [] : rowsOf(run, rollout, tokens.set),
    };
  }
}

/** Whether the same rollout would end the same way again: the task's doing, not a machine's or a server's. */
function isPermanent({ outcome }: RolloutState, error: MwError): boolean {
  return outcome === "task_error" || (outcome !== "cancelled" && !error.retryable);
}

function timingsOf({ plannedAt, admittedAt, phaseMs, modelMs, toolMs }: RolloutState): MemberEnd["timings"] {
  const { admitted = 0, leased = 0, prepared = 0, ended = 0, collected = 0, verified = 0 } = phaseMs;
  return {
    queueMs: admittedAt === null ? 0 : Math.max(0, admittedAt - plannedAt),
    bootMs: admitted + leased + prepared,
    generateMs: modelMs,
    toolMs,
    rewardMs: ended + collected + verified,
  };
}
