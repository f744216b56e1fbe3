/** A run over time: how many rollouts had ended, what they scored, how many were under way. */
import type { RolloutState } from "../../rollout/rollout-state.ts";
import type { RunReport } from "./contract/run.ts";

type SeriesPoint = RunReport["series"][number];

/** Points of a whole run: as many as a chart has room for. */
const POINTS = 120;

/** Points at equal distances from the beginning to the end. `mean` and `perMinute` are of what ended in the stretch before the point, the counts of everything up to it. */
export function seriesOf(rollouts: readonly RolloutState[], startAt: number, endAt: number): SeriesPoint[] {
  if (startAt === 0 || endAt <= startAt) return [];
  const step = Math.max(1, (endAt - startAt) / POINTS);
  const bins = Array.from({ length: POINTS }, () => ({ recorded: 0, scored: 0, sum: 0, began: 0, ended: 0 }));
  const bin = (at: number): (typeof bins)[number] | undefined => bins[Math.min(POINTS - 1, Math.max(0, Math.ceil((at - startAt) / step) - 1))];
  for (const { admittedAt, at, phase, reward } of rollouts) {
    const began = admittedAt === null ? undefined : bin(admittedAt);
    if (began !== undefined) began.began++;
    if (phase !== "recorded") continue;
    const end = bin(at);
    if (end === undefined) continue;
    end.recorded++;
    if (began !== undefined) end.ended++;
    if (reward === null) continue;
    end.scored++;
    end.sum += reward;
  }
  let recorded = 0;
  let scored = 0;
  let running = 0;
  return bins.map((one, index) => {
    recorded += one.recorded;
    scored += one.scored;
    running += one.began - one.ended;
    return { at: Math.round(startAt + (index + 1) * step), recorded, scored, mean: one.scored === 0 ? null : one.sum / one.scored, running: Math.max(0, running), perMinute: (one.recorded * 60_000) / step };
  });
}
