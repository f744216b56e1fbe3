/** What rollouts cost in money, at the prices that their run was given. Where no prices are, there is no money either: tokens and time are told as they are. */
import { z } from "zod";
import { NO_TOKENS, plusTokens, type Tokens } from "../gateway/call.ts";
import { machineMsOf, type Phase, type RolloutState, type ThrownAway } from "./rollout-state.ts";

const price = z.number().min(0);

/** In dollars: of a million tokens in prompts, of those that the server had cached, of a million sampled tokens, and of an hour of a machine. */
export const pricesSchema = z.strictObject({ input: price, cached: price, output: price, machine: price });
export type Prices = Readonly<z.infer<typeof pricesSchema>>;

/** In dollars, by what was paid for: `input` are tokens in prompts that were not cached. */
type Parts = Readonly<Record<"input" | "cached" | "output" | "machine", number>>;

export interface Cost extends Parts {
  readonly total: number;
  /** Of the total: in tries that do not stand. */
  readonly thrownAway: number;
}

const MILLION = 1e6;
const HOUR_MS = 3_600_000;

type Used = Pick<RolloutState, keyof Tokens | "phaseMs" | "uncounted" | "thrownAway">;

/** Of all tries of a rollout. */
export function costOf(rollout: Used, prices: Prices): Cost {
  const { unknown: _unknown, ...cost } = totalCost([rollout], prices);
  return cost;
}

/** `unknown`: rollouts of which only the time of the machine is in it, for one of their tries: its agent came to no end, and the log does not say what it asked for. */
export function totalCost(rollouts: Iterable<Used>, prices: Prices): Cost & { readonly unknown: number } {
  const { unknown, thrownAway, ...used } = usageOf(rollouts);
  const parts = partsOf(used, prices);
  return { total: sumOf(parts), thrownAway: sumOf(partsOf(thrownAway, prices)), ...parts, unknown };
}

/** In dollars, of the last try. Tokens are paid for while the agent works, the machine in every phase in which there is one. */
export function costOfPhase(phase: Phase, rollout: Used, prices: Prices): number {
  if (phase === "admitted") return 0;
  const { promptTokens, cachedTokens, completionTokens } = phase === "running" ? rollout : NO_TOKENS;
  return sumOf(partsOf({ promptTokens, cachedTokens, completionTokens, machineMs: rollout.phaseMs[phase] ?? 0 }, prices));
}

/** Of all tries, and of that what is thrown away. */
export function tokensUsed(rollouts: Iterable<Used>): Tokens & { readonly thrownAway: ThrownAway } {
  const { unknown: _unknown, machineMs: _machineMs, ...tokens } = usageOf(rollouts);
  return tokens;
}

/** Of all tries. Number by number: a list of runs asks it of each of their rollouts. */
function usageOf(rollouts: Iterable<Used>): Tokens & { readonly machineMs: number; readonly thrownAway: ThrownAway; readonly unknown: number } {
  const last = { promptTokens: 0, cachedTokens: 0, completionTokens: 0, machineMs: 0 };
  const before = { ...last, tries: 0, uncounted: 0 };
  let unknown = 0;
  for (const rollout of rollouts) {
    const { thrownAway } = rollout;
    if (rollout.uncounted || thrownAway.uncounted > 0) unknown++;
    last.machineMs += machineMsOf(rollout);
    for (const name of TOKENS) last[name] += rollout[name];
    if (thrownAway.tries > 0) for (const name of [...TOKENS, "machineMs", "tries", "uncounted"] as const) before[name] += thrownAway[name];
  }
  return { ...plusTokens(last, before), machineMs: last.machineMs + before.machineMs, thrownAway: before, unknown };
}

const TOKENS = ["promptTokens", "cachedTokens", "completionTokens"] as const;

function partsOf({ promptTokens, cachedTokens, completionTokens, machineMs }: Tokens & { readonly machineMs: number }, prices: Prices): Parts {
  return {
    input: ((promptTokens - cachedTokens) * prices.input) / MILLION,
    cached: (cachedTokens * prices.cached) / MILLION,
    output: (completionTokens * prices.output) / MILLION,
    machine: (machineMs * prices.machine) / HOUR_MS,
  };
}

function sumOf({ input, cached, output, machine }: Parts): number {
  return input + cached + output + machine;
}
