/** The groups of a run: all attempts at a task in one row. */
import type { ReactNode } from "react";
import type { GroupRow, GroupsPage } from "../../../src/server/runs/contract/lists.ts";
import { query } from "../lib/api.ts";
import { dollars, reward } from "../lib/format.ts";
import { useParam, useParams, useSettled } from "../lib/hooks.ts";
import { visible } from "../lib/hostile.ts";
import { toneOf } from "../lib/outcomes.ts";
import { Empty, Reward } from "../parts/basics.tsx";
import { Grid, type Column } from "../parts/grid.tsx";

const COLUMNS = (run: string, priced: boolean): readonly Column<GroupRow>[] => [
  { id: "task", title: "Task", width: "minmax(200px, 2fr)", sort: "task", cell: ({ task }) => visible(task).text },
  { id: "family", title: "Family", width: "minmax(80px, 1fr)", cell: ({ family }) => <span className="muted">{visible(family).text}</span> },
  { id: "attempts", title: "Attempts", width: "minmax(150px, 2fr)", cell: (group) => <Attempts group={group} key={run} /> },
  { id: "passed", title: "Passed", width: "76px", right: true, cell: ({ passed, scored }) => `${passed} / ${scored}` },
  { id: "mean", title: "Mean", width: "66px", sort: "mean", right: true, cell: ({ mean }) => <Reward value={mean} /> },
  { id: "deviation", title: "Spread", width: "72px", sort: "deviation", right: true, cell: ({ deviation }) => (deviation === null ? "" : deviation === 0 ? <span className="warntext" title="All rewards are alike: no gradient">0</span> : reward(deviation)) },
  ...(priced ? [{ id: "cost", title: "Cost", width: "66px", sort: "cost", right: true, cell: (group: GroupRow) => dollars(group.dollars) }] : []),
  { id: "done", title: "Done", width: "70px", right: true, cell: ({ recorded, rollouts }) => `${recorded} / ${rollouts}` },
];

export function RunGroups({ run, seq, priced }: { readonly run: string; readonly seq: number; readonly priced: boolean }): ReactNode {
  const [q, setQ] = useParam("q");
  const [, setSort] = useParam("sort", "plan");
  const [, setOrder] = useParam("order", "asc");
  // Both change together, so they are read together.
  const params = useParams();
  const sort = ["task", "mean", "deviation", "cost"].includes(params.get("sort") ?? "") ? (params.get("sort") ?? "plan") : "plan";
  const order = params.get("order") ?? "asc";
  return (
    <section className="card" aria-label="Groups">
      <div className="toolbar">
        <input className="input" type="search" placeholder="Filter by task or family  ( / )" aria-label="Filter groups" value={q} onChange={({ target }) => setQ(target.value)} />
        <span className="faint">a square an attempt; spread 0 means that a group gives no gradient</span>
      </div>
      <Grid<GroupsPage, GroupRow>
        label="Groups"
        path={`/v1/runs/${run}/groups${query({ q: useSettled(q), sort, order })}`}
        version={seq}
        rowsOf={({ groups }) => groups}
        totalOf={(page) => page.total}
        keyOf={({ group }) => group}
        hrefOf={({ group }) => `/runs/${run}/groups/${group}`}
        columns={COLUMNS(run, priced)}
        sort={sort}
        order={order}
        onSort={(by, way) => {
          setSort(by);
          setOrder(way);
        }}
        minWidth={820}
        empty={<Empty title="No group is like that" />}
      />
    </section>
  );
}

const TONES: Readonly<Record<string, string>> = { good: "var(--good)", warn: "var(--warn)", bad: "var(--bad)", infra: "var(--infra)", accent: "var(--accent)", "": "var(--wait)" };
const SHOWN = 24;

export function Attempts({ group: { rewards, outcomes } }: { readonly group: Pick<GroupRow, "rewards" | "outcomes"> }): ReactNode {
  const text = rewards.map((value, index) => (value === null ? (outcomes[index] ?? "") : reward(value))).join(", ");
  return (
    <span role="img" aria-label={text} title={text} style={{ display: "inline-flex", gap: 3, verticalAlign: "middle" }}>
      {rewards.slice(0, SHOWN).map((value, index) => {
        const outcome = outcomes[index] ?? "";
        const running = !["scored", "planned"].includes(outcome) && !outcome.includes("_") && outcome !== "cancelled" && outcome !== "stale";
        const tone = outcome === "planned" ? "" : running ? "accent" : toneOf(outcome, value);
        return <i key={index} style={{ width: 12, height: 12, borderRadius: 3, background: TONES[tone], opacity: outcome === "planned" ? 0.5 : 1 }} />;
      })}
      {rewards.length > SHOWN && <small className="faint">+{rewards.length - SHOWN}</small>}
    </span>
  );
}
