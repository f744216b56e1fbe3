/** Statistics of runs, worked out once for each state of a run: intervals are drawn, and that takes time. */
import { byHarness, statisticsOf } from "../../rollout/run-statistics.ts";
import type { GroupStatistics, Summary } from "../../rollout/statistics.ts";
import type { StatisticsView } from "./contract/run.ts";
import type { LiveRun } from "./live-run.ts";

interface Entry {
  readonly recorded: number;
  readonly planned: number;
  readonly seq: number;
  readonly summary: Summary;
  readonly harnesses: readonly GroupStatistics[];
}

export class StatisticsCache {
  readonly #entries = new WeakMap<LiveRun, Entry>();

  of(run: LiveRun): StatisticsView {
    const { seq, summary, harnesses } = this.#entry(run);
    return { seq, overall: view(summary.overall), families: summary.families.map(named), harnesses: harnesses.map(named) };
  }

  tasksOf(run: LiveRun): Summary["tasks"] {
    return this.#entry(run).summary.tasks;
  }

  #entry(run: LiveRun): Entry {
    const { recorded, rollouts } = run.state;
    const known = this.#entries.get(run);
    // Only ends change what is said.
    if (known !== undefined && known.recorded === recorded && known.planned === rollouts.size) return known;
    const entry = { recorded, planned: rollouts.size, seq: run.seq, summary: statisticsOf(run.state, run.config?.prices), harnesses: byHarness(run.state, run.config?.prices) };
    this.#entries.set(run, entry);
    return entry;
  }
}

function view({ rollouts, scored, reward, passAtK, outcomes, dollars }: Summary["overall"]): StatisticsView["overall"] {
  return { rollouts, scored, reward, passAtK: [...passAtK], outcomes: [...outcomes], dollars };
}

function named(statistics: GroupStatistics): StatisticsView["families"][number] {
  return { name: statistics.name, ...view(statistics) };
}
