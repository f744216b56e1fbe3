/**
 * A run as it goes, on stderr: on a terminal a table that is drawn over itself, in a pipe a line now and then and one for each rollout that did not score.
 */
import type { RunController, RunObserver } from "../rollout/controller.ts";
import type { RunEvent } from "../rollout/events.ts";
import type { RunState } from "../rollout/run-state.ts";
import type { AppContext } from "./context.ts";
import { PHASE_LABELS } from "../rollout/run-statistics.ts";
import { formatDuration, formatTable, note, printable, styler } from "./output.ts";

const REDRAW_MS = 200;
const LINE_MS = 10_000;
/** Rows of the table by task; the rest is one row. */
const TASK_ROWS = 12;
/** In a pipe, what is under way is told no more often than this; on a terminal it is shown for as long. */
const ACTIVITY_MS = 5_000;

export interface Progress extends RunObserver {
  activity(text: string): void;
  /** Draws the last state and stops. */
  finish(): void;
  attach(controller: Pick<RunController, "active">): void;
}

export function startProgress(context: AppContext, quiet: boolean): Progress {
  return context.process.stderr.isTTY === true && context.env["TERM"] !== "dumb" && !quiet ? new LiveTable(context) : new Lines(context, quiet);
}

/** Mean reward and counts of one task. */
interface TaskTally {
  planned: number;
  done: number;
  scored: number;
  sum: number;
}

class Tally {
  readonly tasks = new Map<string, TaskTally>();
  readonly #startedAt: number;
  /** Recorded before this controller began. */
  #before: number | null = null;
  readonly #context: AppContext;

  constructor(context: AppContext) {
    this.#context = context;
    this.#startedAt = context.runtime.monotonic();
  }

  add(state: RunState, event: RunEvent): void {
    if (this.#before === null) this.#catchUp(state, event);
    else if (event.type === "group_planned") this.#task(event.task.name).planned += event.rollouts.length;
    else if (event.type === "rollout_recorded") this.#record(state.rollout(event.rollout).task.name, event.reward);
  }

  #catchUp(state: RunState, event: RunEvent): void {
    this.#before = state.recorded - (event.type === "rollout_recorded" ? 1 : 0);
    for (const group of state.groups) {
      this.#task(group.task.name).planned += group.rollouts.length;
      for (const rollout of group.rollouts) if (rollout.phase === "recorded") this.#record(group.task.name, rollout.reward);
    }
  }

  #task(name: string): TaskTally {
    const known = this.tasks.get(name);
    if (known !== undefined) return known;
    const fresh = { planned: 0, done: 0, scored: 0, sum: 0 };
    this.tasks.set(name, fresh);
    return fresh;
  }

  #record(name: string, reward: number | null): void {
    const task = this.#task(name);
    task.done++;
    if (reward === null) return;
    task.scored++;
    task.sum += reward;
  }

  /** `12/40 done, 8 running (6 agent, 2 verification), 20.1 s, 2.4/s, 11.0 s left` and `scored 11, task_error 1, mean 0.820`. */
  summary(state: RunState, running: number): readonly string[] {
    const { expected } = state;
    const total = expected ?? state.rollouts.size;
    const elapsed = (this.#context.runtime.monotonic() - this.#startedAt) / 1000;
    const rate = elapsed <= 0 ? 0 : (state.recorded - (this.#before ?? 0)) / elapsed;
    const pace = rate === 0 ? "" : rate >= 1 ? `, ${rate.toFixed(1)}/s` : `, ${(rate * 60).toFixed(1)}/min`;
    const left = rate > 0 && expected !== null && state.recorded < total ? `, ${formatDuration(((total - state.recorded) / rate) * 1000)} left` : "";
    const outcomes = [...state.outcomes].map(([outcome, count]) => `${outcome} ${count}`).join(", ");
    let scored = 0;
    let sum = 0;
    for (const task of this.tasks.values()) {
      scored += task.scored;
      sum += task.sum;
    }
    const mean = scored === 0 ? "" : `, mean ${(sum / scored).toFixed(3)}`;
    const where = running === 0 ? "" : inFlight(state);
    const counts = `${state.recorded}/${total}${expected === null ? "+" : ""} done, ${running} running${where}, ${formatDuration(elapsed * 1000)}${pace}${left}`;
    return outcomes === "" ? [counts] : [counts, `${outcomes}${mean}`];
  }
}

/** ` (6 agent, 2 verification)`: what the rollouts under way are at. */
function inFlight(state: RunState): string {
  const counts = new Map<string, number>();
  for (const { phase } of state.rollouts.values()) {
    if (phase !== "planned" && phase !== "recorded") counts.set(PHASE_LABELS[phase], (counts.get(PHASE_LABELS[phase]) ?? 0) + 1);
  }
  return counts.size === 0 ? "" : ` (${[...counts].map(([label, count]) => `${count} ${label}`).join("; ")})`;
}

class Lines implements Progress {
  readonly #context: AppContext;
  readonly #quiet: boolean;
  readonly #tally: Tally;
  #controller: Pick<RunController, "active"> | null = null;
  #last: number;
  /** When an activity was told last. */
  #told: number | null = null;
  #state: RunState | null = null;

  constructor(context: AppContext, quiet: boolean) {
    this.#context = context;
    this.#quiet = quiet;
    this.#tally = new Tally(context);
    this.#last = context.runtime.monotonic();
  }

  attach(controller: Pick<RunController, "active">): void {
    this.#controller = controller;
  }

  changed(state: RunState, event: RunEvent): void {
    this.#state = state;
    this.#tally.add(state, event);
    const failure = describeFailure(state, event);
    if (failure !== null) this.note(failure);
    const now = this.#context.runtime.monotonic();
    if (this.#quiet || now - this.#last < LINE_MS) return;
    this.#last = now;
    note(this.#context, this.#tally.summary(state, this.#controller?.active ?? 0).join(": "));
  }

  note(text: string): void {
    note(this.#context, printable(text));
  }

  activity(text: string): void {
    const now = this.#context.runtime.monotonic();
    if (this.#quiet || (this.#told !== null && now - this.#told < ACTIVITY_MS)) return;
    this.#told = now;
    this.note(text);
  }

  finish(): void {
    if (this.#state !== null && !this.#quiet) note(this.#context, this.#tally.summary(this.#state, 0).join(": "));
  }
}

class LiveTable implements Progress {
  readonly #context: AppContext;
  readonly #tally: Tally;
  #controller: Pick<RunController, "active"> | null = null;
  #state: RunState | null = null;
  #lines = 0;
  #activity: { readonly text: string; readonly at: number } | null = null;
  #timer: NodeJS.Timeout | null;

  constructor(context: AppContext) {
    this.#context = context;
    this.#tally = new Tally(context);
    this.#timer = setInterval(() => this.#draw(), REDRAW_MS);
    this.#timer.unref();
  }

  attach(controller: Pick<RunController, "active">): void {
    this.#controller = controller;
  }

  changed(state: RunState, event: RunEvent): void {
    this.#state = state;
    this.#tally.add(state, event);
    const failure = describeFailure(state, event);
    if (failure !== null) this.note(failure);
  }

  note(text: string): void {
    this.#erase();
    note(this.#context, printable(text));
    this.#draw();
  }

  activity(text: string): void {
    this.#activity = { text: printable(text).split("\n")[0] ?? "", at: this.#context.runtime.monotonic() };
    this.#draw();
  }

  finish(): void {
    this.#activity = null;
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
    this.#draw();
  }

  #erase(): void {
    if (this.#lines > 0) this.#context.process.stderr.write(`\u001b[${this.#lines}A\u001b[J`);
    this.#lines = 0;
  }

  #draw(): void {
    if (this.#state === null) {
      // Before the first event there is only what is under way, such as an image that is being made.
      if (this.#activity === null) return this.#erase();
      this.#erase();
      this.#context.process.stderr.write(`${clip(this.#activity.text, (this.#context.process.stderr.columns ?? 80) - 1)}\n`);
      this.#lines = 1;
      return undefined;
    }
    const { stderr } = this.#context.process;
    const text = this.#render(this.#state, stderr.columns ?? 80);
    this.#erase();
    stderr.write(`${text}\n`);
    this.#lines = text.split("\n").length;
  }

  #render(state: RunState, columns: number): string {
    const paint = styler(this.#context.process.stderr, this.#context.env);
    // What is under way or ended last is of interest; the rest is counted.
    const all = [...this.#tally.tasks];
    const open = all.filter(([, task]) => task.done < task.planned);
    const shown = (open.length > 0 ? open : all).slice(0, TASK_ROWS);
    const rows = shown.map(([name, task]) => [clip(printable(name), columns - 40), `${task.done}/${task.planned}`, task.scored === 0 ? "" : (task.sum / task.scored).toFixed(3)]);
    if (all.length > shown.length) rows.push([`... ${all.length - shown.length} more`, "", ""]);
    const table = formatTable([{ title: "task" }, { title: "done", align: "right" }, { title: "mean reward", align: "right" }], rows, paint);
    const lines = [...this.#tally.summary(state, this.#controller?.active ?? 0)];
    if (this.#activity !== null && this.#context.runtime.monotonic() - this.#activity.at < ACTIVITY_MS) lines.push(this.#activity.text);
    return [table, ...lines.map((line) => clip(line, columns - 1))].join("\n");
  }
}

/** A line for a rollout that did not score; of tasks that could not even begin, the plan has said so once. */
function describeFailure(state: RunState, event: RunEvent): string | null {
  if (event.type !== "rollout_recorded" || event.outcome === "scored") return null;
  const { task, attempt, admittedAt } = state.rollout(event.rollout);
  if (admittedAt === null) return null;
  return `${task.name} (attempt ${attempt}): ${event.outcome}${event.error === null ? "" : `: ${event.error.message}`}`;
}

function clip(text: string, columns: number): string {
  return text.length <= columns ? text : `${text.slice(0, Math.max(1, columns - 1))}…`;
}
