/**
 * From what was given to groups of rollouts, as a stream: tasks are read when there is room for them. Order, harness and seed of each rollout are drawn from the
 * run's seed, so that the same inputs with the same seed give the same plan.
 */
import { createHash } from "node:crypto";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { seededRandom } from "../core/runtime.ts";
import type { Task } from "../task/task.ts";
import { toFailure, type Failure, type TaskReference } from "./events.ts";

/** One thing that was given as a task. */
export interface TaskInput {
  /** As the user or the dataset named it. */
  readonly source: string;
  /** Absolute directory of the task; null when there is none, with `error` saying why. */
  readonly directory: string | null;
  readonly error: MwError | null;
  load(): Promise<Task>;
}

export interface PlannedAttempt {
  readonly attempt: number;
  readonly seed: string;
  readonly harness: string;
}

/** A task that is there but cannot be honoured: its rollouts end as task errors. */
export interface BrokenItem {
  readonly kind: "broken";
  readonly source: string;
  readonly reference: TaskReference;
  readonly error: Failure;
  readonly attempts: readonly PlannedAttempt[];
}

export type PlanItem = (
  | { readonly kind: "refused"; readonly source: string; readonly error: Failure }
  | BrokenItem
  | { readonly kind: "group"; readonly source: string; readonly task: Task; readonly attempts: readonly PlannedAttempt[] }
) & {
  /** How many inputs there are in all, from the moment on at which that is known. */
  readonly inputs?: number;
};

export interface PlanOptions {
  readonly seed: string;
  readonly attempts: number;
  readonly harnesses: readonly string[];
  /** Sources that an earlier controller has planned already, in order; they are checked and passed over. */
  readonly skip?: readonly string[];
}

export async function* planRun(inputs: AsyncIterable<TaskInput>, options: PlanOptions): AsyncGenerator<PlanItem> {
  const skip = options.skip ?? [];
  let index = 0;
  let read = 0;
  let all = false;
  const counted = async function* (): AsyncGenerator<TaskInput> {
    for await (const input of inputs) {
      read++;
      yield input;
    }
    all = true;
  };
  for await (const input of shuffled(counted(), options.seed)) {
    if (index >= LIMITS.tasksPerRun) {
      throw new MwError("limit_exceeded", `the inputs hold more than ${LIMITS.tasksPerRun} tasks`, { fix: "split them over several runs" });
    }
    const position = index++;
    const planned = skip[position];
    if (planned === undefined) yield { ...(await planItem(input, position, options)), ...(all ? { inputs: read } : {}) };
    else if (planned !== input.source) throw changed(planned, input.source);
  }
  const missing = skip[index];
  if (missing !== undefined) throw changed(missing, null);
}

async function planItem(input: TaskInput, index: number, options: PlanOptions): Promise<PlanItem> {
  const { source, directory } = input;
  if (input.error !== null || directory === null) {
    return { kind: "refused", source, error: toFailure(input.error ?? new MwError("invalid_input", `${source} is no task`)) };
  }
  const attempts = drawAttempts(index, options);
  try {
    return { kind: "group", source, task: await input.load(), attempts };
  } catch (error) {
    const [family = "", name = directory] = directory.split("/").slice(-2);
    return { kind: "broken", source, reference: { name, family, digest: null, directory }, error: toFailure(error), attempts };
  }
}

/** A group as it is, or as a broken one when `check` throws. */
export function checkItem<Item extends PlanItem>(item: Item, check: (task: Task) => void): Item | BrokenItem {
  if (item.kind !== "group") return item;
  try {
    check(item.task);
    return item;
  } catch (error) {
    return { kind: "broken", source: item.source, reference: referenceOf(item.task), error: toFailure(error), attempts: item.attempts };
  }
}

export function referenceOf({ name, family, digest, directory }: Task): TaskReference {
  return { name, family, digest, directory };
}

function drawAttempts(index: number, { seed, attempts, harnesses }: PlanOptions): readonly PlannedAttempt[] {
  return Array.from({ length: attempts }, (_, n) => {
    const attempt = n + 1;
    const own = createHash("sha256").update(`${seed}\0${index}\0${attempt}`).digest("hex").slice(0, 16);
    const pick = Math.floor(seededRandom(`${own}/harness`)() * harnesses.length);
    return { attempt, seed: own, harness: harnesses[pick] ?? harnesses[0] ?? "" };
  });
}

/** A random order through a window: complete for inputs that fit into it, bounded memory for any number. */
async function* shuffled<T>(items: AsyncIterable<T>, seed: string): AsyncGenerator<T> {
  const random = seededRandom(`${seed}/order`);
  const window: T[] = [];
  const take = (): T => {
    const at = Math.floor(random() * window.length);
    const last = window.length - 1;
    [window[at], window[last]] = [window[last] as T, window[at] as T];
    // The window is not empty here.
    return window.pop() as T;
  };
  for await (const item of items) {
    window.push(item);
    if (window.length > LIMITS.shuffleWindow) yield take();
  }
  while (window.length > 0) yield take();
}

function changed(planned: string, found: string | null): MwError {
  return new MwError("conflict", `the inputs have changed since the run began: ${JSON.stringify(planned)} was planned where now ${found === null ? "nothing" : JSON.stringify(found)} is`, {
    fix: "put the inputs back as they were to resume, or start a new run",
  });
}
