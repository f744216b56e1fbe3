/** What rollouts cost in money, at the prices that their run was given. Where no prices are, there is no money either: tokens and time are told as they are. */
import { z } from "zod";
import type { Phase, RolloutState } from "./rollout-state.ts";

const price = z.number().min(0);

/** In dollars: of a million tokens in prompts, of those that the server had cached, of a million sampled tokens, and of an hour of a machine. */
export const pricesSchema = z.strictObject({ input: price, cached: price, output: price, machine: price });
export type Prices = Readonly<z.infer<typeof pricesSchema>>;

/** In dollars, by what was paid for. */
export interface Cost {
  readonly total: number;
  /** Tokens in prompts that were not cached. */
  readonly input: number;
  readonly cached: number;
  readonly output: number;
  readonly machine: number;
}

const MILLION = 1e6;
const HOUR_MS = 3_600_000;

type Used = Pick<RolloutState, "promptTokens" | "cachedTokens" | "completionTokens" | "phaseMs" | "stopReason">;

/** Of the last try of a rollout; earlier ones that were tried again are not told apart in the log. */
export function costOf(rollout: Used, prices: Prices): Cost {
  const { promptTokens, cachedTokens, completionTokens } = rollout;
  const input = ((promptTokens - cachedTokens) * prices.input) / MILLION;
  const cached = (cachedTokens * prices.cached) / MILLION;
  const output = (completionTokens * prices.output) / MILLION;
  const machine = (machineMs(rollout) * prices.machine) / HOUR_MS;
  return { total: input + cached + output + machine, input, cached, output, machine };
}

/** Whether the log says what the agent used: of one that came to no end, because its model server failed or its machine died, it does not. */
export function hasUsage({ phaseMs, stopReason }: Used): boolean {
  return phaseMs.running === undefined || stopReason !== null;
}

/** `unknown`: rollouts of which only the time of the machine is in it. */
export function totalCost(rollouts: Iterable<Used>, prices: Prices): Cost & { readonly unknown: number } {
  const sum = { total: 0, input: 0, cached: 0, output: 0, machine: 0, unknown: 0 };
  for (const rollout of rollouts) {
    const cost = costOf(rollout, prices);
    if (!hasUsage(rollout)) sum.unknown++;
    for (const part of ["total", "input", "cached", "output", "machine"] as const) sum[part] += cost[part];
  }
  return sum;
}

/** In dollars. Tokens are paid for while the agent works, the machine in every phase in which there is one. */
export function costOfPhase(phase: Phase, rollout: Used, prices: Prices): number {
  const { total, machine } = costOf(rollout, prices);
  const held = phase === "admitted" ? 0 : ((rollout.phaseMs[phase] ?? 0) * prices.machine) / HOUR_MS;
  return phase === "running" ? held + total - machine : held;
}

/** From the moment on at which there is a machine. */
function machineMs({ phaseMs }: Used): number {
  return Object.entries(phaseMs).reduce((sum, [phase, ms]) => (phase === "admitted" ? sum : sum + ms), 0);
}
