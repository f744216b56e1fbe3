/** Reads a task again that was planned before: rollouts of one group are of one task, byte for byte. */
import { MwError, toMwError } from "../core/errors.ts";
import type { Task } from "../task/task.ts";
import type { TaskReference } from "./events.ts";

export interface ReloadOptions {
  readonly loadTask: (directory: string) => Promise<Task>;
  /** Throws what makes a task impossible here. */
  readonly preflight: (task: Task) => void;
}

/** The task, or why there is none any more. */
export async function reloadTask({ directory, digest }: TaskReference, { loadTask, preflight }: ReloadOptions): Promise<Task | MwError> {
  try {
    const task = await loadTask(directory);
    if (task.digest !== digest) {
      return new MwError("invalid_task", `the task in ${directory} has changed since the run began (${task.digest}, planned was ${digest})`, { fix: "put it back as it was, or start a new run" });
    }
    preflight(task);
    return task;
  } catch (error) {
    return toMwError(error);
  }
}
