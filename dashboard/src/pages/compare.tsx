/** Runs beside each other. */
import { useQueries } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link } from "wouter";
import type { GroupRow, GroupsPage } from "../../../src/server/runs/contract/lists.ts";
import type { GroupStatisticsView, RunReport, StatisticsView } from "../../../src/server/runs/contract/run.ts";
import { getJson } from "../lib/api.ts";
import { count, dollars, duration, interval, percent, reward, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useParam, useTitle } from "../lib/hooks.ts";
import { outcomeColour } from "../lib/outcomes.ts";
import { BarRow, Card, Crumbs, Empty, Failed, Reward, SaveShown, Skeleton } from "../parts/basics.tsx";
import { Outcomes } from "./runs.tsx";

const COLOURS = ["var(--accent)", "var(--tool)", "var(--good)", "light-dark(#be185d, #f59ac4)", "var(--model)", "var(--warn)"] as const;

export function ComparePage(): ReactNode {
  useTitle("Compare runs");
  const [text] = useParam("runs");
  const ids = text.split(",").filter((id) => id !== "").slice(0, 6);
  const reports = useQueries({ queries: ids.map((id) => ({ queryKey: [`/v1/runs/${id}`, ""], queryFn: () => getJson<RunReport>(`/v1/runs/${id}`) })) });
  const statistics = useQueries({ queries: ids.map((id) => ({ queryKey: [`/v1/runs/${id}/statistics`, ""], queryFn: () => getJson<StatisticsView>(`/v1/runs/${id}/statistics`) })) });
  const groups = useQueries({ queries: ids.map((id) => ({ queryKey: [`/v1/runs/${id}/groups?limit=${TASKS_READ}`, ""], queryFn: () => getJson<GroupsPage>(`/v1/runs/${id}/groups?limit=${TASKS_READ}`) })) });
  if (ids.length < 2) return <Empty title="Nothing to compare"><p>Pick two runs or more in <Link className="link" href="/runs">the list</Link>.</p></Empty>;
  const error = [...reports, ...statistics].find((one) => one.error !== null)?.error;
  if (error != null) return <Failed error={error} />;
  const loaded = ids.flatMap((id, index) => {
    const report = reports[index]?.data;
    const of = statistics[index]?.data;
    return report === undefined || of === undefined ? [] : [{ id, report, of, colour: COLOURS[index] ?? "var(--accent)" }];
  });
  if (loaded.length < ids.length) return <Skeleton lines={10} />;
  const name = (index: number): string => `${String.fromCodePoint(65 + index)} ${shortId(ids[index] ?? "")}`;
  const rows: readonly (readonly [string, (one: (typeof loaded)[number]) => ReactNode])[] = [
    ["Agent and model", ({ report }) => `${visible(report.config?.harnesses.join(", ") ?? "?").text} · ${visible(report.config?.model ?? "no model").text}`],
    ["Tasks × attempts", ({ report }) => `${report.counts.groups} × ${report.config?.attempts ?? "?"}`],
    ["Done", ({ report }) => `${count(report.counts.recorded)} / ${count(report.counts.rollouts)}`],
    ["Outcomes", ({ report }) => <Outcomes outcomes={report.outcomes} total={Math.max(1, report.counts.rollouts)} />],
    ["Mean reward, tasks alike", ({ of }) => <><b>{reward(of.overall.reward.mean)}</b>{of.overall.reward.standardError === null ? "" : ` ± ${(1.96 * of.overall.reward.standardError).toFixed(3)}`}</>],
    ...(loaded.some(({ report }) => report.cost.dollars !== null) ? [["Cost · a rollout", ({ report }: (typeof loaded)[number]) => (report.cost.dollars === null ? <span className="faint">no prices</span> : <>{dollars(report.cost.dollars.total)} <span className="faint">· {dollars(report.cost.dollars.total / Math.max(1, report.counts.recorded))}</span></>)] as const] : []),
    ["Tokens sampled, a rollout", ({ report }) => count(Math.round(report.cost.completionTokens / Math.max(1, report.counts.recorded)))],
    ["Tokens in prompts, a rollout", ({ report }) => count(Math.round(report.cost.promptTokens / Math.max(1, report.counts.recorded)))],
    ["Turns, a rollout", ({ report }) => (report.cost.turns / Math.max(1, report.counts.recorded)).toFixed(1)],
    ["Half of the rollouts within", ({ report }) => duration(report.medianMs)],
    ["Machine time", ({ report }) => duration(report.cost.machineMs)],
  ];
  return (
    <>
      <Crumbs path={[["Runs", "/runs"], ["Compare", null]]} />
      <div className="head">
        <h1>{ids.length} runs</h1>
        <SaveShown name="comparison" documents={loaded.map(({ report, of }) => ({ report, statistics: of }))} />
      </div>
      <section className="card scroll" tabIndex={0} role="group" aria-label="Comparison">
        <table>
          <thead><tr><th>Run</th>{loaded.map(({ id, colour }, index) => <th key={id}><Link className="link mono" href={`/runs/${id}`}><span style={{ color: colour }}>●</span> {name(index)}</Link></th>)}</tr></thead>
          <tbody>{rows.map(([title, cell]) => <tr key={title}><td className="muted">{title}</td>{loaded.map((one) => <td key={one.id}>{cell(one)}</td>)}</tr>)}</tbody>
        </table>
      </section>
      <div className="cards">
        <Card title="pass@k (95 %)">
          {[...new Set(loaded.flatMap(({ of }) => of.overall.passAtK.map(({ k }) => k)))].sort((a, b) => a - b).map((k) => (
            <div key={k} style={{ paddingBottom: 8 }}>
              <h3>pass@{k}</h3>
              {loaded.map(({ id, of, colour }, index) => {
                const pass = of.overall.passAtK.find((one) => one.k === k);
                return pass === undefined ? null : <BarRow key={id} name={name(index)} colour={colour} value={pass.estimate} interval={pass} note={<><b>{percent(pass.estimate)}</b> <span className="faint">{interval(pass)}</span></>} />;
              })}
            </div>
          ))}
        </Card>
        <Sets title="Mean reward by family" sets={loaded.map(({ of }) => of.families)} names={loaded.map((_, index) => name(index))} colours={loaded.map(({ colour }) => colour)} />
        <Sets title="Mean reward by harness" sets={loaded.map(({ of }) => of.harnesses)} names={loaded.map((_, index) => name(index))} colours={loaded.map(({ colour }) => colour)} />
        <Card title="Outcome mix">
          {[...new Set(loaded.flatMap(({ report }) => Object.keys(report.outcomes)))].sort().map((outcome) => (
            <div key={outcome} style={{ paddingBottom: 8 }}>
              <h3><span style={{ color: outcomeColour(outcome) }}>●</span> {outcome}</h3>
              {loaded.map(({ id, report, colour }, index) => {
                const share = (report.outcomes[outcome] ?? 0) / Math.max(1, report.counts.recorded);
                return <BarRow key={id} name={name(index)} colour={colour} value={share} note={`${report.outcomes[outcome] ?? 0} · ${percent(share)}`} />;
              })}
            </div>
          ))}
        </Card>
        <Card title="Time by phase, half within">
          {[...new Set(loaded.flatMap(({ report }) => report.phases.map(({ label }) => label)))].map((label) => {
            const medians = loaded.map(({ report }) => report.phases.find((one) => one.label === label)?.medianMs ?? null);
            const most = Math.max(1, ...medians.map((ms) => ms ?? 0));
            return (
              <div key={label} style={{ paddingBottom: 8 }}>
                <h3>{label}</h3>
                {loaded.map(({ id, colour }, index) => <BarRow key={id} name={name(index)} colour={colour} value={medians[index] == null ? null : medians[index] / most} note={duration(medians[index] ?? null)} />)}
              </div>
            );
          })}
        </Card>
      </div>
      {groups.every(({ data }) => data !== undefined) && <ByTask pages={groups.flatMap(({ data }) => data ?? [])} ids={ids} names={ids.map((_, index) => name(index))} colours={COLOURS} />}
    </>
  );
}

/** Tasks of a run that are compared: its first ones. */
const TASKS_READ = 1_000;
const TASKS_SHOWN = 100;

/** Mean reward of each task, those that differ most first. */
function ByTask({ pages, ids, names, colours }: { readonly pages: readonly GroupsPage[]; readonly ids: readonly string[]; readonly names: readonly string[]; readonly colours: readonly string[] }): ReactNode {
  const tasks = new Map<string, (GroupRow | undefined)[]>();
  for (const [index, { groups }] of pages.entries()) {
    for (const group of groups) {
      const row = tasks.get(group.task) ?? pages.map(() => undefined);
      row[index] = group;
      tasks.set(group.task, row);
    }
  }
  const rows = [...tasks].map(([task, groups]) => ({ task, groups, difference: differenceOf(groups) })).sort((a, b) => b.difference - a.difference || (a.task < b.task ? -1 : 1));
  const cut = pages.some(({ total }) => total > TASKS_READ);
  return (
    <Card title="Mean reward by task" actions={<span className="faint" style={{ fontSize: 12 }}>{rows.length > TASKS_SHOWN || cut ? `the ${TASKS_SHOWN} that differ most${cut ? ` of the first ${TASKS_READ.toLocaleString("en")} of each run` : ""}` : "largest difference first"}</span>} flush>
      <div className="scroll" style={{ marginTop: 6 }} tabIndex={0} role="group" aria-label="Rewards by task">
        <table>
          <thead><tr><th>Task</th>{names.map((one, index) => <th key={one} className="num"><span style={{ color: colours[index] }}>●</span> {one}</th>)}<th className="num">Difference</th></tr></thead>
          <tbody>
            {rows.slice(0, TASKS_SHOWN).map(({ task, groups, difference }) => (
              <tr key={task}>
                <td>{visible(task).text}</td>
                {groups.map((group, index) => (
                  <td key={names[index]} className="num">{group === undefined ? <span className="faint">none</span> : <Link className="link" href={`/runs/${ids[index]}/groups/${group.group}`}><Reward value={group.mean} /> <span className="faint">{group.passed} / {group.scored}</span></Link>}</td>
                ))}
                <td className="num">{difference < 0 ? "" : reward(difference)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

/** Below 0 where not two of them have a mean. */
function differenceOf(groups: readonly (GroupRow | undefined)[]): number {
  const means = groups.flatMap((group) => group?.mean ?? []);
  return means.length < 2 ? -1 : Math.max(...means) - Math.min(...means);
}

function Sets({ title, sets, names, colours }: { readonly title: string; readonly sets: readonly (readonly GroupStatisticsView[])[]; readonly names: readonly string[]; readonly colours: readonly string[] }): ReactNode {
  const all = [...new Set(sets.flatMap((set) => set.map(({ name }) => name)))].sort();
  return (
    <Card title={title}>
      {all.map((one) => (
        <div key={one} style={{ paddingBottom: 8 }}>
          <h3>{visible(one).text}</h3>
          {sets.map((set, index) => {
            const found = set.find(({ name }) => name === one);
            const { mean = null, standardError = null } = found?.reward ?? {};
            const half = standardError === null ? null : 1.96 * standardError;
            return found === undefined ? null : <BarRow key={names[index]} name={names[index] ?? ""} colour={colours[index] ?? ""} value={mean} interval={mean === null || half === null ? null : { low: mean - half, high: mean + half }} note={<><b>{reward(mean)}</b> <span className="faint">{found.scored} scored</span></>} />;
          })}
        </div>
      ))}
    </Card>
  );
}
