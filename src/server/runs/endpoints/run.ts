/** One run: its page, its statistics, its groups, marks and notes, and what it does now. */
import { z } from "zod";
import { MwError } from "../../../core/errors.ts";
import { isId } from "../../../core/ids.ts";
import { endpoint, type AnyEndpoint } from "../../endpoint.ts";
import { groupReportSchema, groupsPageSchema, type GroupsPage } from "../contract/lists.ts";
import { pageSchema } from "../contract/common.ts";
import { markRequestSchema, markSchema, type MarkView } from "../contract/marks.ts";
import { runReportSchema, statisticsSchema } from "../contract/run.ts";
import type { RunUpdate } from "../contract/updates.ts";
import type { Annotations } from "../annotations.ts";
import { groupReport } from "../group-report.ts";
import { lastEventId, type ReadContext } from "../http.ts";
import type { LiveRun } from "../live-run.ts";
import { runReport } from "../run-report.ts";
import { groupRow, rewardTally, rolloutRow } from "../run-rows.ts";
import { StatisticsCache } from "../statistics-cache.ts";
import { wordsOf } from "./words.ts";

/** Changed rollouts that one event tells. */
const CHANGES_TOLD = 500;

/** `latest` is a run's name, too. */
export const ofRun = z.object({ run: z.string().max(64) });

export function runEndpoints(context: ReadContext): readonly AnyEndpoint[] {
  const { library, runtime } = context;
  const statistics = new StatisticsCache();
  return [
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}",
      id: "getRun",
      summary: "What a run came to so far, what it costs, what is under way and what went wrong",
      params: ofRun,
      responses: { 200: { description: "The run", schema: runReportSchema } },
      handle: async ({ params }) => runReport(await library.open(params.run), runtime.now()),
    }),
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/statistics",
      id: "getStatistics",
      summary: "Rewards, pass@k and outcomes with 95 % intervals, over all and by family and harness",
      params: ofRun,
      responses: { 200: { description: "The statistics", schema: statisticsSchema } },
      handle: async ({ params }) => statistics.of(await library.open(params.run)),
    }),
    ...groupEndpoints(context),
    ...markEndpoints(context),
    streamEndpoint(context),
  ];
}

function groupEndpoints({ library, records, annotations }: ReadContext): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/groups",
      id: "listGroups",
      summary: "Groups of a run",
      params: ofRun,
      query: pageSchema.extend({ q: z.string().max(256).default(""), sort: z.enum(["plan", "task", "mean", "deviation", "cost"]).default("plan"), order: z.enum(["asc", "desc"]).default("asc") }),
      responses: { 200: { description: "A page of groups", schema: groupsPageSchema } },
      handle: async ({ params, query: { offset, limit, q, sort, order } }): Promise<GroupsPage> => {
        const run = await library.open(params.run);
        const words = wordsOf(q);
        const kept = run.state.groups.filter(({ task, group }) => words.every((word) => `${task.name} ${task.family} ${group}`.toLowerCase().includes(word)));
        if (sort === "plan") {
          const planned = order === "desc" ? kept.toReversed() : kept;
          return { seq: run.seq, groups: planned.slice(offset, offset + limit).map((group) => groupRow(group, run.config?.prices)), total: kept.length, offset };
        }
        const by = sort === "cost" ? "dollars" : sort;
        const rows = kept.map((group) => groupRow(group, run.config?.prices)).sort((a, b) => compare(a[by], b[by], order === "desc" ? -1 : 1));
        return { seq: run.seq, groups: rows.slice(offset, offset + limit), total: rows.length, offset };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/groups/{group}",
      id: "getGroup",
      summary: "The attempts of a group side by side: rewards, advantages, steps, and where they part",
      params: ofRun.extend({ group: z.string().max(64) }),
      responses: { 200: { description: "The group", schema: groupReportSchema } },
      handle: async ({ params }) => {
        const run = await library.open(params.run);
        return groupReport(run, params.group, records, await annotations.of(run));
      },
    }),
  ];
}

function markEndpoints({ library, annotations, runtime }: ReadContext): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/marks",
      id: "listMarks",
      summary: "Marks and notes on the run, its groups and rollouts",
      params: ofRun,
      responses: { 200: { description: "All of them", schema: z.object({ marks: z.array(markSchema) }) } },
      handle: async ({ params }) => ({ marks: [...(await annotations.of(await library.open(params.run))).values()] }),
    }),
    endpoint({
      method: "PUT",
      path: "/v1/runs/{run}/marks/{target}",
      id: "putMark",
      summary: "Mark or note something; an empty one takes it back. The only thing that this API writes",
      params: ofRun.extend({ target: z.string().max(64) }),
      body: markRequestSchema,
      responses: { 200: { description: "As it is kept", schema: markSchema } },
      handle: async ({ params: { run: name, target }, body }): Promise<MarkView> => {
        const run = await library.open(name);
        const known = target === run.run || run.groupOf.has(target) || (isId("ro", target) && run.state.rollouts.has(target));
        if (!known) throw new MwError("not_found", `there is nothing called ${JSON.stringify(target)} in run ${run.run}`, { fix: "mark the run, one of its groups or one of its rollouts" });
        const mark = { target, ...body, at: new Date(runtime.now()).toISOString() };
        await annotations.put(run, mark);
        return mark;
      },
    }),
  ];
}

function streamEndpoint({ library, annotations, streams }: ReadContext): AnyEndpoint {
  return endpoint({
    method: "GET",
    path: "/v1/runs/{run}/stream",
    id: "followRun",
    summary: "Server-sent events `run`: what has changed since the one before, or since Last-Event-ID",
    params: ofRun,
    responses: { 200: { description: "Events until the run is over", contentTypes: ["text/event-stream"] } },
    handle: async ({ params, request, reply }) => {
      const run = await library.open(params.run);
      let told = lastEventId(request) ?? run.seq;
      let status = "";
      await streams.follow(reply, async () => {
        // Looks again whether the directory is there.
        await library.open(run.run);
        const event = run.seq === told && run.status === status ? null : await updateOf(run, told, annotations);
        told = run.seq;
        ({ status } = run);
        return { events: event === null ? [] : [{ id: String(event.seq), event: "run", data: event }], last: status === "finished" || status === "damaged" };
      });
    },
  });
}

async function updateOf(run: LiveRun, after: number, annotations: Annotations): Promise<RunUpdate> {
  const marks = await annotations.of(run);
  const { rollouts, more } = run.changedSince(after, CHANGES_TOLD);
  const { scored, running, mean } = rewardTally(run.order);
  return { seq: run.seq, status: run.status, rollouts: run.state.rollouts.size, recorded: run.state.recorded, running, scored, mean, changed: rollouts.map((rollout) => rolloutRow(rollout, marks, run.config?.prices)), more };
}

function compare(a: string | number | null, b: string | number | null, sign: number): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  return a < b ? -sign : a > b ? sign : 0;
}
