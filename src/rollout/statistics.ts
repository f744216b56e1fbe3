/**
 * What a set of rollouts says about a policy, with how sure it is.
 *
 * - Only scored rollouts count: a machine that died says nothing about the policy. The others appear in the outcome mix alone.
 * - Attempts at one task are not independent of each other, tasks are drawn from a population: means over several tasks weigh tasks equally, and their
 *   uncertainty is that between tasks.
 * - Everything is a function of the multiset of rollouts and the seed: order does not matter, and the same input gives the same digits.
 */
import { seededRandom } from "../core/runtime.ts";

export interface Sample {
  /** What makes attempts comparable: all samples with one name form one group. */
  readonly task: string;
  readonly family: string;
  /** Null while it has not ended. */
  readonly outcome: string | null;
  /** Null unless scored. */
  readonly reward: number | null;
  /** What it cost. Absent: nobody knows. */
  readonly dollars?: number;
}

/** A 95 % interval around an estimate. */
export interface Interval {
  readonly estimate: number;
  readonly low: number;
  readonly high: number;
}

export interface Mean {
  /** Null when nothing was scored. */
  readonly mean: number | null;
  /** Null when it cannot be estimated: fewer than two values. */
  readonly standardError: number | null;
  /** Values behind it: attempts for one task, tasks for several. */
  readonly count: number;
}

interface PassAtK extends Interval {
  readonly k: number;
  /** Tasks with at least `k` scored attempts; only they count. */
  readonly tasks: number;
  readonly method: "bootstrap" | "wilson" | "normal";
}

export interface Statistics {
  readonly rollouts: number;
  readonly scored: number;
  readonly reward: Mean;
  /** In the order of `ks`, without those for which no task has enough attempts. */
  readonly passAtK: readonly PassAtK[];
  /** How often each outcome occurred, most frequent first, ties by name; `(not done)` for rollouts without one. */
  readonly outcomes: readonly { readonly outcome: string; readonly count: number; readonly share: Interval }[];
  /** What they cost together, whatever their outcome; null where nobody knows. */
  readonly dollars: number | null;
}

export interface GroupStatistics extends Statistics {
  readonly name: string;
}

export interface StatisticsOptions {
  /** Default: 1, 2, 4, ... up to the most attempts of any task, and that number itself. */
  readonly ks?: readonly number[];
  /** Default `PASS_REWARD`. */
  readonly passReward?: number;
  readonly seed?: string;
  readonly resamples?: number;
}

export interface Summary {
  readonly overall: Statistics;
  readonly families: readonly GroupStatistics[];
  readonly tasks: readonly (GroupStatistics & { readonly family: string })[];
}

/** A rollout passes from this reward on. */
export const PASS_REWARD = 1;

const Z95 = 1.959963984540054;
/** Above this many tasks the normal approximation is as good as a bootstrap, and the bootstrap is slow. */
const BOOTSTRAP_TASKS = 400;

export function summarise(samples: readonly Sample[], options: StatisticsOptions = {}): Summary {
  const tasks = [...groupBy(samples, (sample) => sample.task)].sort(byName);
  const families = [...groupBy(samples, (sample) => sample.family)].sort(byName);
  return {
    overall: statisticsOf(samples, options),
    families: families.map(([name, members]) => Object.assign({ name }, statisticsOf(members, options))),
    tasks: tasks.map(([name, members]) => Object.assign({ name, family: members[0]?.family ?? "" }, statisticsOf(members, options))),
  };
}

function statisticsOf(samples: readonly Sample[], options: StatisticsOptions = {}): Statistics {
  const { passReward = PASS_REWARD, seed = "", resamples = 2_000 } = options;
  const tasks = [...groupBy(samples, (sample) => sample.task)].sort(byName).map(([, members]) => members.map((sample) => sample.reward).filter((reward) => reward !== null));
  const scored = tasks.filter((rewards) => rewards.length > 0);
  const [only] = scored;
  const counts = scored.map((rewards) => ({ n: rewards.length, c: rewards.filter((reward) => reward >= passReward).length }));
  const ks = options.ks ?? defaultKs(Math.max(0, ...counts.map(({ n }) => n)));
  return {
    rollouts: samples.length,
    scored: sum(scored.map((rewards) => rewards.length)),
    reward: meanOf(scored.length === 1 && only !== undefined ? only : scored.map((rewards) => sum(rewards) / rewards.length)),
    passAtK: ks.map((k) => estimatePassAtK(counts, k, `${seed}:pass@${k}`, resamples)).filter((entry) => entry !== null),
    outcomes: outcomeMix(samples),
    dollars: samples.some(({ dollars }) => dollars !== undefined) ? sum(samples.map(({ dollars }) => dollars ?? 0)) : null,
  };
}

/**
 * The chance that at least one of `k` attempts passes, estimated without bias from `n` attempts of which `c` passed: 1 - C(n-c, k) / C(n, k)
 * (Chen et al. 2021, arXiv 2107.03374), as a product that does not overflow.
 */
export function passAtK(n: number, c: number, k: number): number {
  if (![n, c, k].every((value) => Number.isSafeInteger(value)) || c < 0 || c > n || k < 1 || k > n) throw new RangeError(`pass@${k} of ${c} in ${n} attempts does not exist`);
  if (n - c < k) return 1;
  let fail = 1;
  for (let i = n - c + 1; i <= n; i++) fail *= 1 - k / i;
  return 1 - fail;
}

/** Wilson's score interval for a rate: unlike the usual approximation it is sensible for few trials and at 0 and 1. Successes may be fractional. */
export function wilson(successes: number, trials: number): Interval {
  if (!(trials > 0) || successes < 0 || successes > trials) throw new RangeError(`${successes} successes in ${trials} trials is no rate`);
  const p = successes / trials;
  const z2 = Z95 * Z95;
  const centre = (p + z2 / (2 * trials)) / (1 + z2 / trials);
  const half = (Z95 / (1 + z2 / trials)) * Math.sqrt((p * (1 - p)) / trials + z2 / (4 * trials * trials));
  // At 0 and 1 the bounds are exact; rounding must not move the interval off its estimate.
  return { estimate: p, low: p === 0 ? 0 : Math.min(p, Math.max(0, centre - half)), high: p === 1 ? 1 : Math.max(p, Math.min(1, centre + half)) };
}

/** Percentile bootstrap of a mean: resamples the values with replacement, by seed. The values' order matters to the draw, so they are sorted first. */
export function bootstrapMean(values: readonly number[], seed: string, resamples: number): Interval {
  if (values.length === 0 || resamples < 1) throw new RangeError("a bootstrap needs values and resamples");
  const sorted = Float64Array.from(values).sort();
  const random = seededRandom(`bootstrap:${seed}`);
  const means = new Float64Array(resamples);
  for (let i = 0; i < resamples; i++) {
    let total = 0;
    for (let j = 0; j < sorted.length; j++) total += sorted[Math.floor(random() * sorted.length)] ?? 0;
    means[i] = total / sorted.length;
  }
  means.sort();
  const estimate = sum(values) / values.length;
  // With few resamples the percentiles can miss the estimate itself.
  return { estimate, low: Math.min(estimate, quantile(means, 0.025)), high: Math.max(estimate, quantile(means, 0.975)) };
}

/** Mean and standard error of independent values. */
export function meanOf(values: readonly number[]): Mean {
  const count = values.length;
  if (count === 0) return { mean: null, standardError: null, count };
  const mean = sum(values) / count;
  if (count === 1) return { mean, standardError: null, count };
  const variance = sum(values.map((value) => (value - mean) ** 2)) / (count - 1);
  return { mean, standardError: Math.sqrt(variance / count), count };
}

function estimatePassAtK(counts: readonly { readonly n: number; readonly c: number }[], k: number, seed: string, resamples: number): PassAtK | null {
  const usable = counts.filter(({ n }) => n >= k);
  const [first] = usable;
  if (first === undefined) return null;
  const values = usable.map(({ n, c }) => passAtK(n, c, k));
  const tasks = values.length;
  if (tasks === 1) return { k, tasks, method: "wilson", ...singleTask(first, k) };
  const value = values[0] ?? 0;
  // Resampling equal values says that they are certain, which they are not.
  if (values.every((other) => other === value)) return { k, tasks, method: "wilson", ...wilson(value * tasks, tasks) };
  if (tasks <= BOOTSTRAP_TASKS) return { k, tasks, method: "bootstrap", ...bootstrapMean(values, seed, resamples) };
  const { mean, standardError } = meanOf(values);
  const estimate = mean ?? 0;
  const half = Z95 * (standardError ?? 0);
  return { k, tasks, method: "normal", estimate, low: Math.max(0, estimate - half), high: Math.min(1, estimate + half) };
}

/** One task: the uncertainty is that of its pass rate, carried through 1 - (1 - p)^k. */
function singleTask({ n, c }: { readonly n: number; readonly c: number }, k: number): Interval {
  const rate = wilson(c, n);
  const estimate = passAtK(n, c, k);
  const carried = (p: number): number => 1 - (1 - p) ** k;
  return { estimate, low: Math.min(estimate, carried(rate.low)), high: Math.max(estimate, carried(rate.high)) };
}

function outcomeMix(samples: readonly Sample[]): Statistics["outcomes"] {
  return [...groupBy(samples, (sample) => sample.outcome ?? "(not done)")]
    .map(([outcome, members]) => ({ outcome, count: members.length, share: wilson(members.length, samples.length) }))
    .sort((a, b) => b.count - a.count || (a.outcome < b.outcome ? -1 : 1));
}

function defaultKs(most: number): readonly number[] {
  const ks: number[] = [];
  for (let k = 1; k < most; k *= 2) ks.push(k);
  return most === 0 ? [] : [...ks, most];
}

function quantile(sorted: Float64Array, at: number): number {
  const position = at * (sorted.length - 1);
  const below = sorted[Math.floor(position)] ?? 0;
  const above = sorted[Math.ceil(position)] ?? 0;
  return below + (above - below) * (position - Math.floor(position));
}

/** In ascending order, so that the rounding does not depend on the order of the input. */
function sum(values: readonly number[]): number {
  return Float64Array.from(values)
    .sort()
    .reduce((total, value) => total + value, 0);
}

function groupBy(samples: readonly Sample[], key: (sample: Sample) => string): Map<string, Sample[]> {
  const groups = new Map<string, Sample[]>();
  for (const sample of samples) {
    const name = key(sample);
    const group = groups.get(name);
    if (group === undefined) groups.set(name, [sample]);
    else group.push(sample);
  }
  return groups;
}

function byName(a: readonly [string, unknown], b: readonly [string, unknown]): number {
  return a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0;
}
