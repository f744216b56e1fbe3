/** The rollouts of a run: filtered, sorted and paged by the server. */
import { useMemo, type ReactNode } from "react";
import { useQueryClient } from "@tanstack/react-query";
import type { MarkRequest } from "../../../src/server/runs/contract/marks.ts";
import type { RolloutRow, RolloutsPage } from "../../../src/server/runs/contract/lists.ts";
import type { RunReport } from "../../../src/server/runs/contract/run.ts";
import { query, save, sendJson } from "../lib/api.ts";
import { count, dollars, duration, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useParam, useSettled } from "../lib/hooks.ts";
import { Empty, OutcomePill, Reward } from "../parts/basics.tsx";
import { Grid, type Column } from "../parts/grid.tsx";
import { MARK_SIGNS } from "../parts/mark-box.tsx";

const COLUMNS: readonly Column<RolloutRow>[] = [
  { id: "mark", title: "", width: "18px", cell: ({ mark, noted }) => <span className="warntext" title={noted ? "has a note" : undefined}>{mark === null ? (noted ? "✎" : "") : MARK_SIGNS[mark]}</span> },
  { id: "task", title: "Task", width: "minmax(150px, 2fr)", sort: "task", cell: ({ task }) => visible(task).text },
  { id: "attempt", title: "#", width: "28px", sort: "attempt", right: true, cell: ({ attempt }) => attempt },
  { id: "outcome", title: "Outcome", width: "116px", sort: "outcome", cell: (row) => <OutcomePill {...row} /> },
  { id: "reward", title: "Reward", width: "58px", sort: "reward", right: true, cell: ({ reward }) => <Reward value={reward} /> },
  { id: "harness", title: "Harness", width: "minmax(80px, 1fr)", sort: "harness", cell: ({ harness }) => visible(harness).text },
  { id: "stop", title: "Stopped", width: "78px", cell: ({ stopReason }) => <span className="muted">{stopReason?.replaceAll("_", " ") ?? ""}</span> },
  { id: "turns", title: "Turns", width: "46px", sort: "turns", right: true, cell: ({ turns }) => turns || "" },
  { id: "tokens", title: "Tokens", width: "60px", sort: "tokens", right: true, cell: ({ completionTokens }) => (completionTokens === 0 ? "" : count(completionTokens)) },
  { id: "cost", title: "Cost", width: "72px", sort: "cost", right: true, cell: (row) => (row.dollars === null ? "" : dollars(row.dollars)) },
  { id: "seconds", title: "Time", width: "76px", sort: "seconds", right: true, cell: ({ seconds }) => (seconds === 0 ? "" : duration(seconds * 1000)) },
  { id: "tries", title: "Tries", width: "40px", sort: "tries", right: true, cell: ({ tries }) => (tries > 1 ? <span className="warntext">{tries}</span> : tries) },
  { id: "id", title: "Id", width: "76px", cell: ({ rollout }) => <span className="mono faint">{shortId(rollout)}</span> },
];

const UNPRICED = COLUMNS.filter(({ id }) => id !== "cost");

const OUTCOMES = ["passed", "unsolved", "failed", "running", "waiting", "scored", "harness_error", "model_error", "verifier_error", "task_error", "sandbox_error", "cancelled", "stale"] as const;
const FILTERS = ["family", "harness", "outcome", "code", "stop", "marked", "task"] as const;

export function RunRollouts({ run, overlay, total, report }: { readonly run: string; readonly overlay: ReadonlyMap<string, RolloutRow>; readonly total: number; readonly report: RunReport }): ReactNode {
  const client = useQueryClient();
  const [q, setQ] = useParam("q");
  const [family, setFamily] = useParam("family");
  const [harness, setHarness] = useParam("harness");
  const [outcome, setOutcome] = useParam("outcome");
  const [code, setCode] = useParam("code");
  const [stop, setStop] = useParam("stop");
  const [marked, setMarked] = useParam("marked");
  const [task, setTask] = useParam("task");
  const [sort, setSort] = useParam("sort", "plan");
  const [order, setOrder] = useParam("order", "asc");
  const filter = query({ q: useSettled(q), family, harness, outcome, code, stop, marked, task, sort, order });
  const setters: Readonly<Record<(typeof FILTERS)[number], (value: string) => void>> = { family: setFamily, harness: setHarness, outcome: setOutcome, code: setCode, stop: setStop, marked: setMarked, task: setTask };
  const values = { family, harness, outcome, code, stop, marked, task };
  const mark = (name: NonNullable<MarkRequest["mark"]>) => (row: RolloutRow): void => {
    void sendJson("PUT", `/v1/runs/${run}/marks/${row.rollout}`, { mark: row.mark === name ? null : name }).then(() => client.invalidateQueries({ predicate: ({ queryKey: [path] }) => typeof path === "string" && path.includes("/rollouts") }));
  };
  const keys = useMemo(() => ({ s: mark("star"), "+": mark("good"), "-": mark("bad") }), [run]);
  return (
    <section className="card" aria-label="Rollouts">
      <div className="toolbar">
        <input className="input" type="search" placeholder="Filter by task, id, error …  ( / )" aria-label="Filter rollouts" value={q} onChange={({ target }) => setQ(target.value)} />
        <select className="input" aria-label="Outcome" value={outcome} onChange={({ target }) => setOutcome(target.value)}>
          <option value="">any outcome</option>
          {OUTCOMES.map((one) => <option key={one} value={one}>{one === "failed" ? "not scored" : one === "unsolved" ? "scored, not passed" : one.replaceAll("_", " ")}</option>)}
        </select>
        {(report.config?.harnesses.length ?? 0) > 1 && (
          <select className="input" aria-label="Harness" value={harness} onChange={({ target }) => setHarness(target.value)}>
            <option value="">any harness</option>
            {report.config?.harnesses.map((one) => <option key={one}>{one}</option>)}
          </select>
        )}
        <select className="input" aria-label="Marks" value={marked} onChange={({ target }) => setMarked(target.value)}>
          <option value="">marked or not</option>
          <option value="any">marked</option>
          <option value="star">★ star</option>
          <option value="good">✓ good</option>
          <option value="bad">✗ bad</option>
          <option value="question">? look again</option>
        </select>
        {(["family", "task", "code", "stop"] as const).filter((name) => values[name] !== "").map((name) => (
          <button key={name} type="button" className="button small" aria-label={`Remove the filter ${name} ${visible(values[name]).text}`} onClick={() => setters[name]("")}>{name}: {visible(values[name]).text} ✕</button>
        ))}
        <span className="grow" />
        <button type="button" className="button small" title="What is listed, as a table" onClick={() => void save(`/v1/runs/${run}/export${filter === "" ? "?" : `${filter}&`}format=csv`, `${run}.csv`)}>CSV</button>
        <button type="button" className="button small" title="What is listed, with conversations, calls and samples" onClick={() => void save(`/v1/runs/${run}/export${filter === "" ? "?" : `${filter}&`}format=full`, `${run}.jsonl`)}>JSON lines</button>
      </div>
      <Grid<RolloutsPage, RolloutRow>
        label="Rollouts"
        path={`/v1/runs/${run}/rollouts${filter}`}
        version={total}
        rowsOf={({ rollouts }) => rollouts}
        totalOf={(page) => page.total}
        keyOf={({ rollout }) => rollout}
        hrefOf={({ rollout }) => `/rollouts/${rollout}`}
        columns={report.config?.prices == null ? UNPRICED : COLUMNS}
        sort={sort}
        order={order}
        onSort={(by, way) => {
          setSort(by);
          setOrder(way);
        }}
        overlay={overlay}
        keys={keys}
        minWidth={report.config?.prices == null ? 1000 : 1084}
        empty={<Empty title="No rollout is like that"><p>{filter === "" ? "None is planned yet." : "Take a filter away to see more."}</p></Empty>}
      />
    </section>
  );
}
