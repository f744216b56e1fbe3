/** The rollouts of a run by one filter: listed, exported, searched. */
import { Readable } from "node:stream";
import { z } from "zod";
import { exportLines } from "../../../rollout/export.ts";
import { readRunConfig } from "../../../rollout/run-config.ts";
import { endpoint, type AnyEndpoint } from "../../endpoint.ts";
import { pageSchema } from "../contract/common.ts";
import { rolloutFilterSchema, rolloutsPageSchema, type RolloutRow, type RolloutsPage } from "../contract/lists.ts";
import { csvLines } from "../csv.ts";
import { attachment, type ReadContext } from "../http.ts";
import { selectRollouts } from "../rollout-list.ts";
import { rolloutRow } from "../run-rows.ts";
import { searchRun } from "../search.ts";
import { ofRun } from "./run.ts";

export function rolloutListEndpoints({ library, annotations }: ReadContext): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/rollouts",
      id: "listRollouts",
      summary: "Rollouts of a run, filtered, sorted and paged",
      params: ofRun,
      query: pageSchema.extend(rolloutFilterSchema.shape),
      responses: { 200: { description: "A page of rollouts", schema: rolloutsPageSchema } },
      handle: async ({ params, query: { offset, limit, ...filter } }): Promise<RolloutsPage> => {
        const run = await library.open(params.run);
        const marks = await annotations.of(run);
        const rollouts = selectRollouts(run.order, filter, marks, run.config?.prices);
        return { seq: run.seq, rollouts: rollouts.slice(offset, offset + limit).map((rollout) => rolloutRow(rollout, marks, run.config?.prices)), total: rollouts.length, offset };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/export",
      id: "exportRollouts",
      summary: "What a filter lists, as a file: rows as CSV or JSON lines, or `full` with conversations, calls and samples",
      params: ofRun,
      query: rolloutFilterSchema.extend({ format: z.enum(["csv", "jsonl", "full"]).default("csv") }),
      responses: { 200: { description: "The file", contentTypes: ["text/csv", "application/jsonl"] } },
      handle: async ({ params, query: { format, ...filter }, reply }) => {
        const run = await library.open(params.run);
        const marks = await annotations.of(run);
        const rollouts = selectRollouts(run.order, filter, marks, run.config?.prices);
        const rows = function* (): Generator<RolloutRow> {
          for (const rollout of rollouts) yield rolloutRow(rollout, marks, run.config?.prices);
        };
        if (format === "csv") return attachment(reply, `${run.run}.csv`, "text/csv; charset=utf-8", csvLines(rows()));
        if (format === "jsonl") return attachment(reply, `${run.run}.jsonl`, "application/jsonl; charset=utf-8", linesOf(rows()));
        const config = await readRunConfig(run.home, run.run);
        const lines = exportLines(run.home, config, rollouts, { format: "jsonl", scoredOnly: false, builder: "prefix-merge" });
        return attachment(reply, `${run.run}-full.jsonl`, "application/jsonl; charset=utf-8", withNewlines(lines));
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/search",
      id: "searchRun",
      summary: "Text in conversations, commands, outputs and verifiers: a line of JSON a hit, as they are found, and one that says how far it came",
      params: ofRun,
      query: rolloutFilterSchema.extend({ q: z.string().min(2, "at least two characters").max(512) }),
      responses: { 200: { description: "Lines of `SearchLine`", contentTypes: ["application/jsonl"] } },
      handle: async ({ params, query: { q, ...filter }, reply }) => {
        const run = await library.open(params.run);
        const rollouts = selectRollouts(run.order, { ...filter, q: "" }, await annotations.of(run), run.config?.prices);
        const ended = new AbortController();
        reply.raw.on("close", () => ended.abort());
        void reply.type("application/jsonl; charset=utf-8").header("cache-control", "no-store");
        return reply.send(Readable.from(linesOfAsync(searchRun(run, rollouts, q, ended.signal))));
      },
    }),
  ];
}

function* linesOf(values: Iterable<unknown>): Generator<string> {
  for (const value of values) yield `${JSON.stringify(value)}\n`;
}

async function* linesOfAsync(values: AsyncIterable<unknown>): AsyncGenerator<string> {
  for await (const value of values) yield `${JSON.stringify(value)}\n`;
}

async function* withNewlines(lines: AsyncIterable<string>): AsyncGenerator<string> {
  for await (const line of lines) yield `${line}\n`;
}
