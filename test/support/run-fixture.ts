/**
 * Run directories of any size, written by the product's own writers: the event log, the recorder of a rollout, its call log. For tests of readers, which need runs that would take hours
 * to make.
 */
import { newId, type GroupId, type RolloutId, type RunId } from "../../src/core/ids.ts";
import { DEFAULT_OUTCOME_RULES, type Outcome, type StopReason } from "../../src/core/outcome.ts";
import { seededRandom, systemRuntime, type Runtime } from "../../src/core/runtime.ts";
import { toLogEvent, type RunEvent } from "../../src/rollout/events.ts";
import type { RunConfig } from "../../src/rollout/run-config.ts";
import { FileLog } from "../../src/store/file-log.ts";
import { createRunDirectory, eventsFile } from "../../src/store/run-directory.ts";

export interface RunFixtureOptions {
  readonly home: string;
  readonly tasks: number;
  readonly attempts: number;
  readonly seed?: string;
  /** Rollouts that are left without an end: this many run, the rest wait. Default 0. */
  readonly unfinished?: number;
  /** Process that seems to conduct the run. Default this one. */
  readonly pid?: number;
  readonly startAt?: number;
  readonly harnesses?: readonly string[];
  readonly config?: Partial<RunConfig>;
}

export interface RunFixture {
  readonly run: RunId;
  readonly groups: readonly { readonly group: GroupId; readonly rollouts: readonly RolloutId[] }[];
  /** More of the log, as the run's controller would write it. */
  append(events: readonly RunEvent[], at?: number): Promise<void>;
  close(): Promise<void>;
}

const FAMILIES = ["build", "data", "git", "repair", "sysadmin"] as const;
const BATCH = 2_000;

export async function writeRun(options: RunFixtureOptions): Promise<RunFixture> {
  const { home, tasks, attempts, seed = "0", unfinished = 0, pid = process.pid, startAt = Date.UTC(2026, 10, 29, 9), harnesses = ["bash", "codex-like"] } = options;
  const random = seededRandom(seed);
  const runtime: Runtime = { ...systemRuntime, now: () => startAt };
  const run = newId("run", runtime);
  const config: RunConfig = { ...baseConfig(run, startAt, attempts, harnesses), ...options.config };
  await createRunDirectory(home, run, config, {}, "process");
  const log = await FileLog.open({ path: eventsFile(home, run), epoch: 1, durability: "process", runtime });
  let batch: { readonly event: RunEvent; readonly at: number }[] = [];
  const flush = async (): Promise<void> => {
    const sent = batch;
    batch = [];
    await Promise.all(sent.map(({ event, at }) => log.append([toLogEvent(event)], { at })));
  };
  const emit = (event: RunEvent, at: number): void => void batch.push({ event, at });

  emit({ type: "run_created", run }, startAt);
  emit({ type: "controller_started", pid, version: config.version }, startAt);
  const groups = Array.from({ length: tasks }, (_, index) => {
    const group = newId("grp", runtime);
    const family = FAMILIES[index % FAMILIES.length] ?? "build";
    const rollouts = Array.from({ length: attempts }, (_, n) => ({ rollout: newId("ro", runtime), attempt: n + 1, seed: `${seed}${index}${n}`, harness: harnesses[Math.floor(random() * harnesses.length)] ?? "bash" }));
    const task = { name: `fixture/${family}-${String(index).padStart(4, "0")}`, family, digest: `sha256:${String(index).padStart(64, "0")}`, directory: `/nowhere/tasks/${family}-${index}` };
    emit({ type: "group_planned", group, index, source: task.directory, task, error: null, rollouts }, startAt + 1);
    return { group, task, skill: random(), rollouts };
  });
  emit({ type: "plan_completed", groups: tasks }, startAt + 2);

  const all = groups.flatMap(({ rollouts, skill }) => rollouts.map((rollout) => ({ ...rollout, skill })));
  let at = startAt + 10;
  for (const [index, { rollout, skill, attempt }] of all.entries()) {
    if (batch.length > BATCH) await flush();
    at += Math.floor(random() * 200);
    if (index >= all.length - unfinished) {
      for (const event of begin(rollout, 1)) emit(event, at);
      continue;
    }
    emitWhole(emit, rollout, at, { random, pass: random() < skill * (0.5 + (0.5 * index) / all.length), attempt });
  }
  if (unfinished === 0) emit({ type: "run_finished" }, at + 60_000);
  await flush();
  return {
    run,
    groups: groups.map(({ group, rollouts }) => ({ group, rollouts: rollouts.map(({ rollout }) => rollout) })),
    append: async (events, when) => void (await log.append(events.map(toLogEvent), { at: when ?? at + 1000 })),
    close: () => log.close(),
  };
}

const ISOLATION = { profile: "full", userNamespace: true, networkNamespace: true } as never;

/** Up to the agent at work. */
export function begin(rollout: RolloutId, tryNumber: number): RunEvent[] {
  return [
    { type: "rollout_admitted", rollout, try: tryNumber },
    { type: "rollout_leased", rollout, try: tryNumber, sandbox: newId("sbx", systemRuntime), image: "sha256:0", isolation: ISOLATION, network: "none" },
    { type: "rollout_prepared", rollout, try: tryNumber },
    { type: "rollout_running", rollout, try: tryNumber, step: null },
  ];
}

/** From the agent's end to the record. */
export function end(rollout: RolloutId, tryNumber: number, reward: number, random: () => number = () => 0.5): RunEvent[] {
  const turns = 1 + Math.floor(random() * 30);
  const stopReason: StopReason = random() < 0.9 ? "finished" : "turns";
  return [
    { type: "rollout_ended", rollout, try: tryNumber, step: null, stopReason, detail: "done", turns, promptTokens: turns * 1500, completionTokens: turns * 120, modelMs: turns * 900, toolMs: turns * 300, cpuMs: turns * 120, frozenMs: 0, policyVersions: [String(1 + Math.floor(random() * 3))] },
    { type: "rollout_collected", rollout, try: tryNumber, step: null, artifacts: 1, artifactBytes: 100, refused: 0 },
    { type: "rollout_verified", rollout, try: tryNumber, step: null, status: "scored", reward, verifierDigest: "sha256:1" },
    { type: "rollout_recorded", rollout, try: tryNumber, outcome: "scored", reward, rewards: { reward }, stopReason, error: null },
  ];
}

/** By agents that come to no end. */
const ASKED = { promptTokens: 900, cachedTokens: 400, completionTokens: 70 } as const;

function emitWhole(emit: (event: RunEvent, at: number) => void, rollout: RolloutId, at: number, { random, pass }: { readonly random: () => number; readonly pass: boolean; readonly attempt: number }): void {
  let now = at;
  let tryNumber = 1;
  const step = (event: RunEvent, ms: number): void => emit(event, (now += Math.round(ms * (0.5 + random()))));
  const luck = random();
  if (luck < 0.02) {
    for (const event of begin(rollout, 1)) step(event, 200);
    step({ type: "rollout_try_failed", rollout, try: 1, outcome: "sandbox_error", error: { code: "sandbox_failed", message: "the machine died while the agent worked", fix: "look at the host's log" }, cause: "failure", ...ASKED }, 4_000);
    tryNumber = 2;
  }
  for (const event of begin(rollout, tryNumber)) step(event, 300);
  const failed: readonly [Outcome, string, string] | null = luck > 0.99 ? ["verifier_error", "invalid_task", "the verifier wrote no reward"] : luck > 0.975 ? ["model_error", "upstream_failed", "the model server closed the stream after 12 tokens"] : null;
  if (failed === null) {
    const [ended, ...rest] = end(rollout, tryNumber, pass ? 1 : Math.round(random() * 4) / 10, random);
    if (ended !== undefined) step(ended, 30_000 + 60_000 * random() ** 4);
    for (const event of rest) step(event, 800);
    return;
  }
  const [outcome, code, message] = failed;
  step({ type: "rollout_recorded", rollout, try: tryNumber, outcome, reward: null, rewards: {}, stopReason: null, error: { code: code as never, message, fix: "see docs" }, ...ASKED }, 9_000);
}

function baseConfig(run: RunId, at: number, attempts: number, harnesses: readonly string[]): RunConfig {
  return {
    format: 1,
    run,
    createdAt: new Date(at).toISOString(),
    version: "0.1.0",
    inputs: ["/nowhere/tasks"],
    attempts,
    seed: "7",
    harnesses: harnesses.map((name) => ({ name, version: "1", settings: {} })),
    script: null,
    harnessCommand: null,
    harnessUser: null,
    agent: {},
    trainer: null,
    upstream: { url: "vllm=http://127.0.0.1:8000", model: "fixture-model", sampling: {}, requireTokens: false, tokenizer: null },
    apiKeyFile: null,
    budgets: { turns: 50, tokens: null, commandMs: 300_000, outputBytes: 16_384 },
    network: null,
    image: null,
    ignoreLimits: false,
    keepWorkspace: false,
    pauseOnThink: false,
    checkpointEveryMs: null,
    takeOverSeconds: null,
    branch: null,
    backend: "native",
    timeoutMultiplier: 1,
    concurrency: 64,
    durability: "process",
    rules: DEFAULT_OUTCOME_RULES,
  };
}
