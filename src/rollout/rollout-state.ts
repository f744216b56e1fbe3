/**
 * One rollout as a fold over its events, with one table that says which event may follow which. An event that may not is damage or a bug, and is refused both when
 * the log is read and before it is written.
 *
 *     planned -> admitted -> leased -> prepared -> running -> ended -> collected -> verified -> recorded
 *        ^______________________ rollout_try_failed ______________________________|
 *
 * A checkpoint is taken while it is running, and restored when it is leased; a machine that outlives its controller is taken over while it is running, or ended, or collected. `recorded` may follow anything but itself. A task of several steps goes from verified back to running.
 */
import { MwError } from "../core/errors.ts";
import type { GroupId, RolloutId, SandboxId } from "../core/ids.ts";
import type { Outcome, StopReason } from "../core/outcome.ts";
import { NO_TOKENS, plusTokens, type Tokens } from "../gateway/call.ts";
import type { Checkpoint } from "./checkpoint/record.ts";
import type { Failure, PlannedRollout, RunEvent, TaskReference, Untold } from "./events.ts";

export const PHASES = ["planned", "admitted", "leased", "prepared", "running", "ended", "collected", "verified", "recorded"] as const;
export type Phase = (typeof PHASES)[number];

/** What tries took that do not stand, besides what the next one went on with. */
export interface ThrownAway extends Tokens {
  readonly tries: number;
  /** From the moment on at which there was a machine; of a controller that died, until its last word. */
  readonly machineMs: number;
  /** Of those, tries of whose agents nobody knows what they asked for. */
  readonly uncounted: number;
}

export interface RolloutState {
  readonly rollout: RolloutId;
  readonly group: GroupId;
  readonly task: TaskReference;
  readonly attempt: number;
  readonly harness: string;
  readonly seed: string;
  readonly replacement: number;
  readonly sampling: Readonly<Record<string, number>>;
  readonly deadlineMs: number | null;
  /** Wall clock, milliseconds since the epoch. */
  readonly plannedAt: number;
  phase: Phase;
  /** The try that is under way or was the last; 0 before the first. */
  try: number;
  /** Tries that ended through no failure: the controller died or was asked to stop. */
  lostTries: number;
  /** Deaths of controllers, and requests to stop, in a row since the last checkpoint, or since the beginning. */
  vainTries: number;
  readonly branch: NonNullable<PlannedRollout["branch"]> | null;
  /** The last one, where the next try goes on; null: at the beginning. */
  checkpoint: Checkpoint | null;
  /** The checkpoint that it was to branch from is lost: it is an attempt like any other. */
  branchLost: boolean;
  /** What others branch from. */
  branchPoint: Checkpoint | null;
  /** Behind this turn the last try went on, and with so many calls of the rollout that it branches from; null: from the beginning. */
  restored: { readonly turn: number; readonly parent: RolloutId | null; readonly calls: number } | null;
  /** What all its checkpoints cost. */
  checkpoints: { readonly count: number; readonly ms: number; readonly stoppedMs: number; readonly bytes: number };
  sandbox: SandboxId | null;
  /** Digest of what the last try's machine started from. */
  image: string | null;
  /** Digest of the last verifier that spoke. */
  verifier: string | null;
  /** Wall clock of the last try's admission and of the last event, milliseconds since the epoch. */
  admittedAt: number | null;
  at: number;
  /** Milliseconds spent in each phase of the last try, by the phase that was left. */
  phaseMs: Partial<Record<Phase, number>>;
  stopReason: StopReason | null;
  turns: number;
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  /** Of the last try's agent, which came to no end, nobody knows what it asked for. */
  uncounted: boolean;
  thrownAway: ThrownAway;
  modelMs: number;
  toolMs: number;
  /** Null when it was counted in no try. */
  cpuMs: number | null;
  frozenMs: number;
  /** Of the policy, that sampled the last try, oldest first. */
  policyVersions: readonly string[];
  outcome: Outcome | null;
  reward: number | null;
  rewards: Readonly<Record<string, number>>;
  error: Failure | null;
}

type RolloutEvent = Extract<RunEvent, { readonly rollout: RolloutId }>;
export type RolloutEventType = RolloutEvent["type"];

const IN_FLIGHT: readonly Phase[] = ["admitted", "leased", "prepared", "running", "ended", "collected", "verified"];

/** For each event: the phases that it may follow, and the phase that it leads to; null: it stays in the one that it was in. */
export const TRANSITIONS: Readonly<Record<RolloutEventType, { readonly from: readonly Phase[]; readonly to: Phase | null }>> = {
  rollout_admitted: { from: ["planned"], to: "admitted" },
  rollout_leased: { from: ["admitted"], to: "leased" },
  rollout_restored: { from: ["leased"], to: "leased" },
  rollout_prepared: { from: ["leased"], to: "prepared" },
  rollout_running: { from: ["prepared", "verified"], to: "running" },
  rollout_taken_over: { from: ["running", "ended", "collected"], to: null },
  rollout_checkpointed: { from: ["running"], to: "running" },
  rollout_ended: { from: ["running"], to: "ended" },
  rollout_collected: { from: ["ended"], to: "collected" },
  rollout_verified: { from: ["collected"], to: "verified" },
  rollout_try_failed: { from: IN_FLIGHT, to: "planned" },
  rollout_recorded: { from: ["planned", ...IN_FLIGHT], to: "recorded" },
};

const NO_CHECKPOINTS: RolloutState["checkpoints"] = { count: 0, ms: 0, stoppedMs: 0, bytes: 0 };

const NOTHING: ThrownAway = { ...NO_TOKENS, tries: 0, machineMs: 0, uncounted: 0 };

export function newRollout(fields: PlannedRollout & Pick<RolloutState, "group" | "task" | "at">): RolloutState {
  // Field by field: a copy by spreading costs thirty times as much, and a run has as many of these as rollouts.
  const { rollout, group, task, attempt, harness, seed, replacement = 0, sampling = {}, deadlineMs = null, branch = null, at } = fields;
  return {
    rollout,
    group,
    task,
    attempt,
    harness,
    seed,
    replacement,
    sampling,
    deadlineMs,
    plannedAt: at,
    at,
    phase: "planned",
    try: 0,
    lostTries: 0,
    vainTries: 0,
    branch,
    checkpoint: null,
    branchLost: false,
    branchPoint: null,
    restored: null,
    checkpoints: NO_CHECKPOINTS,
    sandbox: null,
    image: null,
    verifier: null,
    admittedAt: null,
    phaseMs: {},
    stopReason: null,
    turns: 0,
    promptTokens: 0,
    cachedTokens: 0,
    completionTokens: 0,
    uncounted: false,
    thrownAway: NOTHING,
    modelMs: 0,
    toolMs: 0,
    cpuMs: null,
    frozenMs: 0,
    policyVersions: [],
    outcome: null,
    reward: null,
    rewards: {},
    error: null,
  };
}

/** Throws `corrupt` for an event that may not happen here. */
export function checkRolloutEvent(state: RolloutState, event: RolloutEvent): void {
  const { from } = TRANSITIONS[event.type];
  const expectedTry = event.type === "rollout_admitted" ? state.try + 1 : state.try;
  if (!from.includes(state.phase)) throw illegal(state, event, `it is ${state.phase}`);
  // A rollout that never began has no try of its own.
  if (event.try !== expectedTry) throw illegal(state, event, `try ${expectedTry} was expected, not ${event.try}`);
  if (event.type === "rollout_recorded" && (event.outcome === "scored") !== (event.reward !== null)) throw illegal(state, event, "only a scored rollout has a reward");
}

/** Throws `corrupt` for an event that may not happen here; then the state is unchanged. */
export function applyRolloutEvent(state: RolloutState, event: RolloutEvent, at: number): void {
  checkRolloutEvent(state, event);
  const { to } = TRANSITIONS[event.type];
  const left = state.phase;
  // A machine ends with its controller, whenever the next one comes.
  const dead = event.type === "rollout_try_failed" && event.cause === "controller_lost";
  if (left !== "planned" && !dead) state.phaseMs[left] = (state.phaseMs[left] ?? 0) + Math.max(0, at - state.at);
  if (left === "running" && (event.type === "rollout_try_failed" || event.type === "rollout_recorded")) countUntold(state, event);
  state.phase = to ?? left;
  state.at = at;
  update(state, event, at);
}

function countUntold(state: RolloutState, { promptTokens, cachedTokens = 0, completionTokens = 0 }: Untold): void {
  state.uncounted = promptTokens === undefined;
  state.promptTokens += promptTokens ?? 0;
  state.cachedTokens += cachedTokens;
  state.completionTokens += completionTokens;
}

/** What the last try took, and those before it. */
function thrownAway(state: RolloutState): ThrownAway {
  const { tries, machineMs, uncounted } = state.thrownAway;
  return { ...plusTokens(state.thrownAway, state), tries: tries + 1, machineMs: machineMs + machineMsOf(state), uncounted: uncounted + Number(state.uncounted) };
}

/** What is gone on with is not thrown away. */
function goneOnWith({ thrownAway: before }: RolloutState, { promptTokens = 0, cachedTokens = 0, completionTokens = 0 }: Partial<Tokens>): ThrownAway {
  return { ...before, promptTokens: Math.max(0, before.promptTokens - promptTokens), cachedTokens: Math.max(0, before.cachedTokens - cachedTokens), completionTokens: Math.max(0, before.completionTokens - completionTokens) };
}

/** Of the last try: from the moment on at which there is a machine. */
export function machineMsOf({ phaseMs }: Pick<RolloutState, "phaseMs">): number {
  let sum = 0;
  for (const phase of PHASES) if (phase !== "admitted") sum += phaseMs[phase] ?? 0;
  return sum;
}

function update(state: RolloutState, event: RolloutEvent, at: number): void {
  switch (event.type) {
    case "rollout_admitted":
      if (state.try > 0) state.thrownAway = thrownAway(state);
      state.uncounted = false;
      state.try = event.try;
      state.admittedAt = at;
      state.phaseMs = {};
      state.stopReason = null;
      state.turns = 0;
      state.promptTokens = 0;
      state.cachedTokens = 0;
      state.completionTokens = 0;
      state.modelMs = 0;
      state.toolMs = 0;
      state.cpuMs = null;
      state.frozenMs = 0;
      state.policyVersions = [];
      state.error = null;
      state.image = null;
      state.verifier = null;
      state.restored = null;
      break;
    case "rollout_restored":
      state.restored = { turn: event.turn, parent: event.parent, calls: event.calls };
      state.thrownAway = goneOnWith(state, event);
      break;
    case "rollout_checkpointed":
      state.checkpoint = event.checkpoint;
      if (event.kept) state.branchPoint = event.checkpoint;
      state.checkpoints = { count: state.checkpoints.count + 1, ms: state.checkpoints.ms + event.ms, stoppedMs: state.checkpoints.stoppedMs + event.stoppedMs, bytes: state.checkpoints.bytes + event.bytes };
      state.vainTries = 0;
      break;
    case "rollout_taken_over":
      state.vainTries++;
      break;
    case "rollout_leased":
      state.sandbox = event.sandbox;
      state.image = event.image;
      break;
    case "rollout_ended":
      state.stopReason = event.stopReason;
      state.turns += event.turns;
      state.promptTokens += event.promptTokens;
      state.cachedTokens += event.cachedTokens ?? 0;
      state.completionTokens += event.completionTokens;
      state.modelMs += event.modelMs;
      state.toolMs += event.toolMs;
      if (typeof event.cpuMs === "number") state.cpuMs = (state.cpuMs ?? 0) + event.cpuMs;
      state.frozenMs += event.frozenMs ?? 0;
      if (event.policyVersions !== undefined) state.policyVersions = [...new Set([...state.policyVersions, ...event.policyVersions])];
      break;
    case "rollout_try_failed":
      if (event.cause !== "failure") {
        state.lostTries++;
        state.vainTries++;
      }
      if (event.cause === "checkpoint_lost" && state.checkpoint === null) state.branchLost = true;
      // What only the machine or the model server failed of is no worse for what came before; a bug of the harness may be.
      if (event.cause === "checkpoint_lost" || (event.cause === "failure" && event.outcome !== "sandbox_error" && event.outcome !== "model_error")) {
        state.checkpoint = null;
        state.branchPoint = null;
      }
      state.error = event.error;
      state.sandbox = null;
      break;
    case "rollout_recorded":
      state.outcome = event.outcome;
      state.reward = event.reward;
      state.rewards = event.rewards;
      state.error = event.error;
      break;
    case "rollout_verified":
      state.verifier = event.verifierDigest;
      break;
    case "rollout_prepared":
    case "rollout_running":
    case "rollout_collected":
      break;
  }
}

/** Seconds from the last try's admission to the record; 0 for a rollout that never began. */
export function secondsOf(state: RolloutState): number {
  return state.admittedAt === null ? 0 : Math.max(0, state.at - state.admittedAt) / 1000;
}

function illegal(state: RolloutState, event: RolloutEvent, why: string): MwError {
  return new MwError("corrupt", `rollout ${state.rollout}: ${event.type} may not happen now: ${why}`, { facts: { rollout: state.rollout, event: event.type, phase: state.phase } });
}
