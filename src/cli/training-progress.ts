/** What people see of a training: a line a step, and the curve of its rewards. */
import type { StepRecord } from "../trainer/checkpoint.ts";
import { meanReward } from "../trainer/loop.ts";
import type { AppContext } from "./context.ts";
import { note } from "./output.ts";

const BARS = "▁▂▃▄▅▆▇█";
const CURVE_COLUMNS = 60;
const CURVE_ROWS = 8;
/** Lines are told at most so often where nobody looks at a terminal. */
const LINE_MS = 5_000;

export interface TrainingProgress {
  stepped(record: StepRecord, history: readonly StepRecord[]): void;
}

export function trainingProgress(context: AppContext, quiet: boolean): TrainingProgress {
  let toldAt: number | null = null;
  let rollouts = 0;
  return {
    stepped: (record, history) => {
      rollouts += record.rollouts;
      const now = context.runtime.monotonic();
      if (quiet || (context.process.stderr.isTTY !== true && toldAt !== null && now - toldAt < LINE_MS)) return;
      toldAt = now;
      const total = history.reduce((sum, { rollouts: of }) => sum + of, 0);
      const rate = record.seconds <= 0 ? 0 : total / record.seconds;
      const failed = record.failedMembers === 0 ? "" : `, ${record.failedMembers} failed`;
      note(context, `step ${String(record.step).padStart(4)}  ${String(total).padStart(6)} rollouts  reward ${record.meanReward.toFixed(3)} ${sparkline(history, 24)}  staleness ${record.staleness}  ${rate.toFixed(1)}/s${failed}`);
    },
  };
}

/** The last `width` steps, each as high as its mean reward. */
export function sparkline(history: readonly StepRecord[], width: number): string {
  return history
    .slice(-width)
    .map(({ meanReward: mean }) => BARS[Math.min(BARS.length - 1, Math.max(0, Math.floor(mean * BARS.length)))])
    .join("");
}

/** Mean reward over rollouts, as a drawing of at most 60 columns. */
export function curve(history: readonly StepRecord[]): string {
  const columns = Math.min(CURVE_COLUMNS, history.length);
  const bins = Array.from({ length: columns }, (_, at) => meanReward(history.slice(Math.floor((at * history.length) / columns), Math.floor(((at + 1) * history.length) / columns))));
  const total = history.reduce((sum, { rollouts }) => sum + rollouts, 0);
  const rows = Array.from({ length: CURVE_ROWS }, (_, row) => {
    const floor = (CURVE_ROWS - 1 - row) / CURVE_ROWS;
    const label = row === 0 ? "1.0" : row === CURVE_ROWS - 1 ? "0.0" : row === CURVE_ROWS / 2 - 1 ? "0.5" : "";
    const cells = bins.map((mean) => BARS[Math.min(BARS.length - 1, Math.ceil((mean - floor) * CURVE_ROWS * BARS.length) - 1)] ?? " ");
    return `${label.padStart(5)} │${cells.join("")}`;
  });
  const end = `${total} rollouts`;
  return [...rows, `      └${"─".repeat(Math.max(columns, end.length))}`, `       ${end.padStart(columns)}`].join("\n");
}
