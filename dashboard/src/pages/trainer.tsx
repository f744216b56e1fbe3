/** What trainers are given: versions of the policy, how stale what they consumed was, what waits, what was of no use and why. */
import type { ReactNode } from "react";
import { Link } from "wouter";
import { useQuery } from "@tanstack/react-query";
import type { DeliveryStatus, TerminalRecord } from "../../../src/delivery/contract.ts";
import type { RunReport } from "../../../src/server/runs/contract/run.ts";
import { getJson, type ApiError } from "../lib/api.ts";
import { ago, bytes, count, duration, percent, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useNow, useTitle } from "../lib/hooks.ts";
import { BarRow, Card, Crumbs, Empty, Failed, Kpi, Pill, SaveShown, Skeleton } from "../parts/basics.tsx";
import { Gradient } from "../run/overview.tsx";

const PAGE = 1_000;
/** Lines of the terminal log that are looked at: the latest. */
const LINES = 5_000;

export function TrainerPage({ name }: { readonly name: string | null }): ReactNode {
  useTitle(name ?? "Trainer");
  const { data, error } = useData<{ readonly runs: readonly DeliveryStatus[] }>("/v1/delivery", { refetchMs: 2_000 });
  const now = useNow(2_000);
  if (data === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  const status = data.runs.find((run) => run.name === name);
  if (name !== null) return status === undefined ? <Empty title="No trainer uses that name (any more)"><Link className="link" href="/trainer">To all</Link></Empty> : <One status={status} now={now} />;
  return (
    <>
      <h1>Trainer</h1>
      <section className="card" aria-label="Deliveries">
        {data.runs.length === 0 ? <Empty title="No trainer has asked for anything yet"><p>A trainer names a run with <code>PUT /v1/runs/NAME</code>; the adaptors do it by themselves.</p></Empty> : (
          <div className="scroll" tabIndex={0} role="group" aria-label="List of deliveries">
            <table>
              <thead><tr><th>Name</th><th>State</th><th className="num">Policy</th><th className="num">Waiting</th><th className="num">Running</th><th className="num">Ready</th><th className="num">Leased</th><th className="num">Consumed</th><th className="num">No use</th><th className="num">Last progress</th></tr></thead>
              <tbody>
                {data.runs.map((run) => (
                  <tr key={run.name}>
                    <td><Link className="link" href={`/trainer/${run.name}`}>{run.name}</Link></td>
                    <td><StatePill status={run} /></td>
                    <td className="num">{run.policy.version ?? "none"}</td>
                    <td className="num">{run.groups.waiting}</td>
                    <td className="num">{run.groups.running}</td>
                    <td className="num">{run.groups.ready}</td>
                    <td className="num">{run.groups.leased}</td>
                    <td className="num">{count(run.groups.consumed)}</td>
                    <td className="num">{run.groups.failed + run.groups.expired + run.groups.rejected + run.groups.cancelled}</td>
                    <td className="num muted">{ago(run.last_progress_at, now)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
    </>
  );
}

function StatePill({ status }: { readonly status: DeliveryStatus }): ReactNode {
  return <Pill tone={status.state === "failed" ? "bad" : status.state === "running" ? "accent" : ""} live={status.state === "running"}>{status.state}</Pill>;
}

const QUEUE = [["waiting", "var(--wait)"], ["running", "var(--accent)"], ["ready", "var(--good)"], ["leased", "var(--model)"]] as const;

function One({ status, now }: { readonly status: DeliveryStatus; readonly now: number }): ReactNode {
  const { groups, policy } = status;
  const over = groups.consumed + groups.rejected + groups.failed + groups.cancelled + groups.expired;
  const { data: records } = useTerminal(status.name, over);
  const { data: report } = useData<RunReport>(`/v1/runs/${status.run}`, { version: over });
  const queued = QUEUE.reduce((sum, [key]) => sum + groups[key], 0);
  const consumed = (records ?? []).filter(({ outcome }) => outcome === "consumed");
  const useless = (records ?? []).filter(({ outcome }) => outcome !== "consumed" && outcome !== "restored");
  const causes = countBy(useless, ({ outcome, reason, group }) => `${outcome}: ${reason ?? group.failures.map(({ code }) => code).join(", ")}`);
  const staleness = countBy(consumed.filter(({ trained_version: trained, group }) => trained !== null && group.version_min !== null), ({ trained_version: trained, group }) => String((trained ?? 0) - (group.version_min ?? 0)));
  const versions = countBy(consumed.filter(({ group }) => group.version_max !== null), ({ group }) => String(group.version_max));
  return (
    <>
      <Crumbs path={[["Trainer", "/trainer"], [status.name, null]]} />
      <div className="head">
        <div className="stack" style={{ gap: 6 }}>
          <div className="title"><h1>{status.name}</h1><StatePill status={status} /></div>
          <div className="sub"><span>policy <b>{policy.version ?? "none yet"}</b> ({policy.state})</span>{policy.model !== null && <span>{visible(policy.model).text}</span>}<Link className="link" href={`/runs/${status.run}`}>its rollouts: {shortId(status.run)}</Link></div>
        </div>
        <SaveShown name={status.name} documents={{ status, terminal: records ?? [] }} />
      </div>
      {status.reason !== null && <div className="banner bad" role="alert">{visible(status.reason).text}</div>}
      {status.state === "running" && <div className="banner plain"><b>What it waits for</b> {bottleneck(status)}</div>}
      <div className="kpis">
        <Kpi label="Consumed" value={count(groups.consumed)} note={over === 0 ? "" : `${percent(groups.consumed / over)} of what is over`} />
        <Kpi label="Ready" value={groups.ready} note={`${bytes(status.ready_bytes)}${status.oldest_ready_at === null ? "" : `, oldest ${ago(status.oldest_ready_at, now)}`}`} />
        <Kpi label="Leased" value={groups.leased} note="at the trainer" />
        <Kpi label="Credits" value={count(status.credits.groups)} note={`groups, ${bytes(Math.max(0, status.credits.bytes))}`} tone={status.credits.groups <= 0 ? "bad" : ""} />
        <Kpi label="Rollouts" value={count(status.rollouts.running)} note={`running, ${count(status.rollouts.ended)} ended`} />
        <Kpi label="Last progress" value={ago(status.last_progress_at, now)} note={status.stragglers.count === 0 ? "" : `${status.stragglers.count} stragglers cut, longest ${duration(status.stragglers.longest_ms)}`} />
      </div>
      <div className="cards">
        <Card title="Queue">{QUEUE.map(([key, colour]) => <BarRow key={key} name={key} colour={colour} value={queued === 0 ? 0 : groups[key] / queued} note={<b>{groups[key].toLocaleString("en")}</b>} />)}</Card>
        <Histogram title="Staleness of what was consumed" counts={staleness} unit="versions behind" empty="Nothing was consumed with a version yet." />
        <Histogram title="Versions that sampled it" counts={versions} unit="version" empty="Nothing was consumed yet." />
        <Card title="Groups of no use, by cause">
          {Object.keys(causes).length === 0 ? <p className="muted">None.</p> : Object.entries(causes).sort(([, a], [, b]) => b - a).slice(0, 20).map(([cause, number]) => <BarRow key={cause} name={cause} colour="var(--infra)" value={number / Math.max(1, useless.length)} note={<b>{number.toLocaleString("en")}</b>} />)}
        </Card>
        {report !== undefined && <Gradient report={report} />}
        {Object.keys(status.failures).length > 0 && <Histogram title="Failed members, by whose doing" counts={status.failures as Readonly<Record<string, number>>} unit="" empty="" />}
        {Object.keys(status.datasets).length > 0 && (
          <Card title="Mix">
            {Object.entries(status.datasets).map(([part, { begun, consumed: used, mean_reward: mean }]) => <BarRow key={part} name={part} value={mean} note={<>{used} / {begun} <span className="faint">{mean === null ? "" : mean.toFixed(3)}</span></>} />)}
          </Card>
        )}
        {status.quarantined.length > 0 && <Card title="Quarantined tasks">{status.quarantined.map((task) => <div key={task}><code>{visible(task).text}</code></div>)}</Card>}
      </div>
    </>
  );
}

const HELD: Readonly<Record<NonNullable<DeliveryStatus["waiting_for"]>, string>> = {
  policy: "No further group begins: no version of the policy is there, or one is on its way to the servers.",
  staleness: "No further group begins: it would be too old by its turn. The trainer has to consume, or to publish a newer version.",
  bytes: "No further group begins: what is ready fills its share of memory. The trainer is the slow part.",
  concurrency: "No further group begins: as many rollouts run as may. The rollouts are the slow part.",
};

/** Which side waits for which, from where the groups are. */
function bottleneck({ waiting_for: held, groups: { waiting, running, ready, leased } }: DeliveryStatus): string {
  if (held !== null) return HELD[held];
  if (ready > 0) return `${ready} ready ${ready === 1 ? "group waits" : "groups wait"} for the trainer: it is the slow part.`;
  if (running + waiting > 0) return "The trainer waits for rollouts: nothing is ready.";
  return leased > 0 ? "Nothing is ready, runs or waits: the trainer works on what it has leased, and has asked for nothing after it." : "Nothing is ready, runs or waits: the trainer has to ask for groups.";
}

function Histogram({ title, counts, unit, empty }: { readonly title: string; readonly counts: Readonly<Record<string, number>>; readonly unit: string; readonly empty: string }): ReactNode {
  const entries = Object.entries(counts).sort(([a], [b]) => Number(a) - Number(b)).slice(-24);
  const most = Math.max(1, ...entries.map(([, number]) => number));
  return (
    <Card title={title} actions={unit === "" ? undefined : <span className="faint" style={{ fontSize: 12 }}>{unit}, groups</span>}>
      {entries.length === 0 ? <p className="muted">{empty}</p> : entries.map(([name, number]) => <BarRow key={name} name={name} value={number / most} note={<b>{number.toLocaleString("en")}</b>} />)}
    </Card>
  );
}

/** The latest lines of the terminal log; of a group that was taken back, the last one holds. */
function useTerminal(name: string, over: number): { readonly data: readonly TerminalRecord[] | undefined } {
  return useQuery<readonly TerminalRecord[], ApiError>({
    queryKey: ["terminal", name, over],
    queryFn: async ({ signal }) => {
      const last = new Map<string, TerminalRecord>();
      for (let after = Math.max(0, over - LINES); ; ) {
        const { records, next } = await getJson<{ readonly records: readonly TerminalRecord[]; readonly next: number }>(`/v1/runs/${name}/terminal?after=${after}&limit=${PAGE}`, signal);
        for (const record of records) last.set(record.group_id, record);
        if (records.length < PAGE) return [...last.values()];
        after = next;
      }
    },
    placeholderData: (before) => before,
  });
}

function countBy<T>(items: readonly T[], key: (item: T) => string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const item of items) counts[key(item)] = (counts[key(item)] ?? 0) + 1;
  return counts;
}
