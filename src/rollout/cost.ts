/** What rollouts cost in money, at the prices that their run was given. Where no prices are, there is no money either: tokens and time are told as they are. */
import { z } from "zod";
import { NO_TOKENS, plusTokens, type Tokens } from "../gateway/call.ts";
import { machineMsOf, type Phase, type RolloutState, type ThrownAway } from "./rollout-state.ts";

const price = z.number().min(0);

/** In dollars: of a million tokens in prompts, of those that the server had cached, of a million sampled tokens, and of an hour of a machine. */
export const pricesSchema = z.strictObject({ input: price, cached: price, output: price, machine: price });
export type Prices = Readonly<z.infer<typeof pricesSchema>>;

const PARTS = ["input", "cached", "output", "machine"] as const;

/** In dollars, by what was paid for: `input` are tokens in prompts that were not cached. */
type Parts = Readonly<Record<(typeof PARTS)[number], number>>;

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
  const last = partsOf({ ...tokensOfLast(rollout), machineMs: machineMsOf(rollout) }, prices);
  const before = partsOf(rollout.thrownAway, prices);
  const sum = { total: 0, thrownAway: 0, input: 0, cached: 0, output: 0, machine: 0 };
  for (const part of PARTS) {
    sum[part] = last[part] + before[part];
    sum.total += sum[part];
    sum.thrownAway += before[part];
  }
  return sum;
}

/** `unknown`: rollouts of which only the time of the machine is in it, for one of their tries: its agent came to no end, and the log does not say what it asked for. */
export function totalCost(rollouts: Iterable<Used>, prices: Prices): Cost & { readonly unknown: number } {
  const sum = { total: 0, thrownAway: 0, input: 0, cached: 0, output: 0, machine: 0, unknown: 0 };
  for (const rollout of rollouts) {
    const cost = costOf(rollout, prices);
    if (rollout.uncounted || rollout.thrownAway.uncounted > 0) sum.unknown++;
    for (const part of ["total", "thrownAway", ...PARTS] as const) sum[part] += cost[part];
  }
  return sum;
}

/** In dollars, of the last try. Tokens are paid for while the agent works, the machine in every phase in which there is one. */
export function costOfPhase(phase: Phase, rollout: Used, prices: Prices): number {
  if (phase === "admitted") return 0;
  const { input, cached, output, machine } = partsOf({ ...(phase === "running" ? tokensOfLast(rollout) : NO_TOKENS), machineMs: rollout.phaseMs[phase] ?? 0 }, prices);
  return input + cached + output + machine;
}

/** Of all tries, and of that what is thrown away. */
export function tokensUsed(rollouts: Iterable<Used>): Tokens & { readonly thrownAway: ThrownAway } {
  let [all, thrown, tries, machineMs, uncounted] = [NO_TOKENS, NO_TOKENS, 0, 0, 0];
  for (const rollout of rollouts) {
    const { thrownAway } = rollout;
    all = plusTokens(all, rollout);
    if (thrownAway.tries === 0) continue;
    all = plusTokens(all, thrownAway);
    thrown = plusTokens(thrown, thrownAway);
    tries += thrownAway.tries;
    machineMs += thrownAway.machineMs;
    uncounted += thrownAway.uncounted;
  }
  return { ...all, thrownAway: { ...thrown, tries, machineMs, uncounted } };
}

function tokensOfLast({ promptTokens, cachedTokens, completionTokens }: Used): Tokens {
  return { promptTokens, cachedTokens, completionTokens };
}

function partsOf({ promptTokens, cachedTokens, completionTokens, machineMs }: Tokens & { readonly machineMs: number }, prices: Prices): Parts {
  return {
    input: ((promptTokens - cachedTokens) * prices.input) / MILLION,
    cached: (cachedTokens * prices.cached) / MILLION,
    output: (completionTokens * prices.output) / MILLION,
    machine: (machineMs * prices.machine) / HOUR_MS,
  };
}
