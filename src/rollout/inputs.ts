/** What was given to a run, as a stream of places where tasks should be. */
import { isAbsolute, resolve } from "node:path";
import { locateTasks, readLocated } from "../task/dataset.ts";
import type { TaskInput } from "./plan.ts";

export async function* readInputs(inputs: readonly string[]): AsyncGenerator<TaskInput> {
  for await (const entry of locateTasks(inputs)) {
    if ("kind" in entry) {
      if (entry.kind === "task") yield { source: entry.input, directory: entry.task.directory, error: null, load: () => Promise.resolve(entry.task) };
      else yield { source: entry.input, directory: null, error: entry.error, load: () => Promise.reject(entry.error) };
      continue;
    }
    yield {
      source: entry.input,
      directory: entry.directory,
      error: null,
      load: async () => {
        const read = await readLocated(entry);
        if (read.kind === "broken") throw read.error;
        return read.task;
      },
    };
  }
}

/** An input as it is kept: it means the same from any working directory. */
export function absoluteInput(cwd: string, input: string): string {
  return isAbsolute(input) ? input : resolve(cwd, input);
}
