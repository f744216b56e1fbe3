/** Over all runs of the data directory: their list, and the tasks that they had. */
import { z } from "zod";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { endpoint, type AnyEndpoint } from "../../endpoint.ts";
import { pageSchema } from "../contract/common.ts";
import { runsPageSchema, type RunsPage } from "../contract/run.ts";
import { taskReportSchema, tasksPageSchema, type TasksPage } from "../contract/tasks.ts";
import type { ReadContext } from "../http.ts";
import type { LiveRun } from "../live-run.ts";
import type { RunLibrary } from "../run-library.ts";
import { runRow, unreadRow } from "../run-rows.ts";
import { taskReport, taskRows } from "../task-list.ts";
import { wordsOf } from "./words.ts";

/** A list of runs waits so long for runs that were never read; the rest come with the next request. */
const LIST_BUDGET_MS = 700;
/** Latest runs whose tasks are listed. */
const TASK_RUNS = 200;

export function listEndpoints({ library, runtime, home }: ReadContext): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "GET",
      path: "/v1/runs",
      id: "listRuns",
      summary: "Runs, newest first; those that were never read may still be `reading`",
      query: pageSchema.extend({ q: z.string().max(256).default(""), status: z.string().max(32).default("") }),
      responses: { 200: { description: "A page of runs", schema: runsPageSchema } },
      handle: async ({ query: { offset, limit, q, status } }): Promise<RunsPage> => {
        const all = await library.list();
        const filtered = q !== "" || status !== "";
        const rows = [];
        const until = runtime.monotonic() + LIST_BUDGET_MS;
        for (const id of filtered ? all : all.slice(offset, offset + limit)) {
          const known = library.known(id);
          if (known === undefined && runtime.monotonic() > until) rows.push(unreadRow(id, null));
          else rows.push(await library.open(id).then(runRow, (error: unknown) => unreadRow(id, error instanceof Error ? error.message : String(error))));
        }
        if (!filtered) return { home, runs: rows, total: all.length, offset };
        const words = wordsOf(q);
        const kept = rows.filter((row) => (status === "" || row.status === status || row.status === "reading") && words.every((word) => row.status === "reading" || `${row.run} ${row.model ?? ""} ${row.harnesses.join(" ")} ${row.inputs.join(" ")} ${row.status}`.toLowerCase().includes(word)));
        return { home, runs: kept.slice(offset, offset + limit), total: kept.length, offset };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/tasks",
      id: "listTasks",
      summary: "Tasks of the latest runs: how often each was passed, run by run and by the policy's version",
      query: pageSchema.extend({ q: z.string().max(256).default("") }),
      responses: { 200: { description: "A page of tasks", schema: tasksPageSchema } },
      handle: async ({ query: { offset, limit, q } }): Promise<TasksPage> => {
        const { runs, pending } = await recentRuns(library, runtime);
        const words = wordsOf(q);
        const rows = taskRows(runs).filter(({ name, family, directory }) => words.every((word) => `${name} ${family} ${directory}`.toLowerCase().includes(word)));
        return { tasks: rows.slice(offset, offset + limit), total: rows.length, offset, runs: runs.length, pending };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/task",
      id: "getTask",
      summary: "One task, by the directory that a run has for it, with its texts as they are now",
      query: z.object({ directory: z.string().max(4096) }),
      responses: { 200: { description: "The task", schema: taskReportSchema } },
      handle: async ({ query: { directory } }) => taskReport(taskRows((await recentRuns(library, runtime)).runs), directory),
    }),
  ];
}

async function recentRuns(library: RunLibrary, runtime: Runtime): Promise<{ readonly runs: readonly LiveRun[]; readonly pending: number }> {
  const ids = (await library.list()).slice(0, Math.min(TASK_RUNS, LIMITS.viewedRuns));
  const until = runtime.monotonic() + LIST_BUDGET_MS;
  const runs: LiveRun[] = [];
  let pending = 0;
  for (const id of ids) {
    if (library.known(id) === undefined && runtime.monotonic() > until) pending++;
    else await library.open(id).then((run) => runs.push(run), () => undefined);
  }
  return { runs, pending };
}
