/** One run: its views, live while it goes on. */
import { useMemo, useRef, useState, type ReactNode } from "react";
import { Link, useLocation } from "wouter";
import { useQueryClient } from "@tanstack/react-query";
import type { RolloutRow } from "../../../src/server/runs/contract/lists.ts";
import type { RunReport } from "../../../src/server/runs/contract/run.ts";
import type { RunUpdate } from "../../../src/server/runs/contract/updates.ts";
import { count, dollars, duration, interval, moment, percent, reward, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useKeys, useNow, useRunStream, useTitle } from "../lib/hooks.ts";
import { outcomeColour } from "../lib/outcomes.ts";
import { Crumbs, Failed, Kpi, Skeleton, StatusPill, Tabs } from "../parts/basics.tsx";
import { MarkBox } from "../parts/mark-box.tsx";
import { RunActive } from "../run/active.tsx";
import { RunConfig } from "../run/config.tsx";
import { RunFailures } from "../run/failures.tsx";
import { RunGroups } from "../run/groups.tsx";
import { RunNotes } from "../run/notes.tsx";
import { paceAt, RunOverview } from "../run/overview.tsx";
import { RunRollouts } from "../run/rollouts.tsx";
import { RunSearch } from "../run/search.tsx";

const VIEWS = ["overview", "rollouts", "groups", "active", "failures", "search", "notes", "config"] as const;

export function RunPage({ run, view }: { readonly run: string; readonly view: string }): ReactNode {
  useTitle(`Run ${shortId(run)}`);
  const { data: report, error } = useData<RunReport>(`/v1/runs/${run}`);
  const [, navigate] = useLocation();
  const { overlay, update, link } = useLive(report);
  useKeys(Object.fromEntries(VIEWS.map((name, index) => [String(index + 1), () => navigate(`/runs/${run}/${name}`)])));
  if (report === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  const id = report.run;
  return (
    <>
      <Crumbs path={[["Runs", "/runs"], [id, null]]} />
      <div className="head">
        <div className="stack" style={{ gap: 6 }}>
          <div className="title">
            <h1 className="mono" style={{ fontSize: 18 }}>{id}</h1>
            <StatusPill status={update?.status ?? report.status} />
            {link === "lost" && <span className="warntext">connection lost, trying again</span>}
          </div>
          <div className="sub">
            {report.config !== null && <span>{visible(report.config.harnesses.join(", ")).text}{report.config.model !== null && <> · <b>{visible(report.config.model).text}</b></>}</span>}
            <span>started {moment(report.createdAt)}</span>
            <span>{report.counts.groups.toLocaleString("en")} {report.counts.groups === 1 ? "task" : "tasks"} × {report.config?.attempts ?? "?"}{report.expected !== report.counts.rollouts && " so far"}</span>
          </div>
        </div>
        <div className="buttons">
          <Link className="button" href={`/runs/${id}/search`}>Search text</Link>
          <MarkBox run={id} target={id} />
        </div>
      </div>
      {report.error !== null && <div className="banner bad" role="alert">The log cannot be read to its end, so this is not all: {visible(report.error).text}</div>}
      {report.status === "killed" && <div className="banner">The process that ran it is gone. What was under way is tried again by <code>mw resume {id}</code></div>}
      {report.interruption !== null && report.status === "interrupted" && <div className="banner">Stopped: {visible(report.interruption).text}. <code>mw resume {id}</code> goes on with it.</div>}
      <Figures report={report} update={update} />
      <Tabs
        current={view}
        href={(name) => `/runs/${id}/${name}`}
        tabs={[
          ["overview", "Overview"],
          ["rollouts", "Rollouts", update?.rollouts ?? report.counts.rollouts],
          ["groups", "Groups", report.counts.groups],
          ["active", "Running", update?.running ?? report.counts.running],
          ["failures", "Failures", report.failures.length + report.refused.length],
          ["search", "Search"],
          ["notes", "Notes"],
          ["config", "Configuration"],
        ]}
      />
      {view === "overview" ? <RunOverview report={report} />
        : view === "rollouts" ? <RunRollouts run={id} overlay={overlay} total={update?.rollouts ?? report.counts.rollouts} report={report} />
        : view === "groups" ? <RunGroups run={id} seq={report.status === "running" ? report.counts.recorded : report.seq} priced={report.config?.prices != null} />
        : view === "active" ? <RunActive report={report} />
        : view === "failures" ? <RunFailures report={report} />
        : view === "search" ? <RunSearch run={id} />
        : view === "notes" ? <RunNotes run={id} />
        : <RunConfig report={report} />}
    </>
  );
}

/** What the stream has told since the report was fetched. */
function useLive(report: RunReport | undefined): { readonly overlay: ReadonlyMap<string, RolloutRow>; readonly update: RunUpdate | null; readonly link: string } {
  const changed = useRef(new Map<string, RolloutRow>());
  const [update, setUpdate] = useState<RunUpdate | null>(null);
  const client = useQueryClient();
  const live = report !== undefined && (report.status === "running" || report.status === "killed" || report.status === "interrupted");
  const link = useRunStream(report?.run ?? "", live, (next) => {
    for (const row of next.changed) changed.current.set(row.rollout, row);
    // Of a long run not everything that ever changed is kept: lists are fetched anew now and then.
    if (changed.current.size > 20_000 || next.more) {
      changed.current = new Map();
      void client.invalidateQueries({ predicate: ({ queryKey: [path] }) => typeof path === "string" && path.includes("/rollouts?") });
    }
    setUpdate(next);
  });
  const overlay = useMemo(() => new Map(changed.current), [update]);
  return { overlay, update, link };
}

function Figures({ report, update }: { readonly report: RunReport; readonly update: RunUpdate | null }): ReactNode {
  const now = useNow();
  const { counts, cost, passed } = report;
  const recorded = update?.recorded ?? counts.recorded;
  const planned = update?.rollouts ?? counts.rollouts;
  const rollouts = Math.max(1, planned, report.expected ?? 0);
  const mean = update === null ? report.mean : update.mean;
  const pace = counts.recorded === 0 ? null : paceAt(report.series, report.series.length - 1);
  const ends = report.estimatedEndAt;
  const took = report.createdAt === null || report.lastAt === null ? null : Date.parse(report.lastAt) - Date.parse(report.createdAt);
  return (
    <div className="stack" style={{ gap: 10 }}>
      <div className="kpis">
        <Kpi label="Mean reward" value={reward(mean)} note={`${count(update?.scored ?? counts.scored)} scored`} />
        <Kpi label="Passed" value={passed === null ? "–" : percent(passed.estimate)} note={passed === null ? "" : `95 %: ${interval(passed)}`} />
        <Kpi label="Done" value={<>{count(recorded)} <small>/ {report.expected === null ? `${count(planned)}+` : count(Math.max(planned, report.expected))}</small></>} note={`${count(update?.running ?? counts.running)} running, ${count(Math.max(0, rollouts - recorded - (update?.running ?? counts.running)))} to go`} />
        {report.status === "running"
          ? <Kpi label="Estimated end in" value={ends === null ? "–" : ends - now < 2_000 ? "moments" : duration(ends - now)} note={pace === null ? "" : `${pace < 10 ? pace.toFixed(1) : Math.round(pace)} a minute`} />
          : <Kpi label="Took" value={duration(took)} note={`half within ${duration(report.medianMs)}`} />}
        <Kpi label="Tokens sampled" value={count(cost.completionTokens)} note={`${count(cost.promptTokens)} in prompts`} />
        {cost.dollars === null
          ? <Kpi label="Machine time" value={duration(cost.machineMs)} note={cost.cpuMs === null ? "" : `${duration(cost.cpuMs)} of CPU`} />
          : <Kpi label="Cost" value={dollars(cost.dollars.total)} note={counts.recorded === 0 ? "" : `${dollars(cost.dollars.total / counts.recorded)} a rollout`} />}
      </div>
      <div className="meter" role="img" aria-label={Object.entries(report.outcomes).map(([name, number]) => `${name}: ${number}`).join(", ") || "nothing has ended"}>
        {Object.entries(report.outcomes).sort(([, a], [, b]) => b - a).map(([name, number]) => <span key={name} title={`${name} ${number}`} style={{ width: `${(100 * number) / rollouts}%`, background: outcomeColour(name) }} />)}
      </div>
    </div>
  );
}
