/** What a run came to: over time, by family, harness and number of attempts, what it cost, where the time went. */
import type { CSSProperties, ReactNode } from "react";
import { Link } from "wouter";
import type { GroupStatisticsView, RunReport, StatisticsView } from "../../../src/server/runs/contract/run.ts";
import { count, dollars, duration, interval, percent, reward } from "../lib/format.ts";
import { query } from "../lib/api.ts";
import { useData } from "../lib/hooks.ts";
import { outcomeColour } from "../lib/outcomes.ts";
import { BarRow, Card, Empty, Skeleton } from "../parts/basics.tsx";
import { Chart } from "../parts/chart.tsx";
import { FailureList } from "./failures.tsx";

export function RunOverview({ report }: { readonly report: RunReport }): ReactNode {
  const { data: statistics } = useData<StatisticsView>(report.counts.recorded === 0 ? null : `/v1/runs/${report.run}/statistics`);
  if (report.counts.rollouts === 0) return <Empty title="Nothing is planned yet">{report.refused.length > 0 && <p>{report.refused.length} inputs are no tasks: see Failures.</p>}</Empty>;
  const times = report.series.map(({ at }) => at);
  return (
    <>
      {times.length > 1 && (
        <div className="cards">
          <Card title="Reward over time">
            <Chart label="Reward over time" times={times} yMax={Math.max(1, ...report.series.map(({ mean }) => mean ?? 0))} lines={[{ label: "mean of what ended", colour: "--accent", values: report.series.map(({ mean }) => mean), fill: true, format: reward }, { label: "mean of the last tenth", colour: "--good", values: rolling(report.series), format: reward }]} />
          </Card>
          <Card title="Throughput">
            <Chart label="Throughput" times={times} lines={[{ label: "ended a minute", colour: "--model", values: report.series.map((_, index) => paceAt(report.series, index)), fill: true, format: (value) => value.toFixed(1) }, { label: "under way (right)", colour: "--tool", values: report.series.map(({ running }) => running), scale: "y2", format: (value) => String(value) }]} />
          </Card>
        </div>
      )}
      <div className="cards">
        {statistics === undefined ? report.counts.recorded > 0 && <Card title="Statistics"><Skeleton lines={5} /></Card> : <>
          <PassAtK statistics={statistics.overall} />
          <Groups title="By family" groups={statistics.families} href={(family) => `/runs/${report.run}/rollouts${query({ family })}`} />
          {statistics.harnesses.length > 1 && <Groups title="By harness" groups={statistics.harnesses} href={(harness) => `/runs/${report.run}/rollouts${query({ harness })}`} />}
          <OutcomeMix statistics={statistics.overall} run={report.run} />
        </>}
        <Gradient report={report} />
        <Phases report={report} />
        <Cost report={report} />
        {report.failures.length > 0 && <FailureList report={report} most={5} />}
      </div>
    </>
  );
}

/** Rollouts a minute over the stretch of a tenth of the run that ends at a point: ends come in clumps. */
export function paceAt(series: RunReport["series"], index: number): number {
  const window = series.slice(Math.max(0, index + 1 - Math.max(1, Math.round(series.length / 10))), index + 1);
  return window.reduce((sum, { perMinute }) => sum + perMinute, 0) / Math.max(1, window.length);
}

/** The mean over the scored rollouts of the points in a window that moves along. */
function rolling(series: RunReport["series"]): (number | null)[] {
  const width = Math.max(1, Math.round(series.length / 10));
  return series.map((_, index) => {
    let sum = 0;
    let scored = 0;
    for (let at = Math.max(0, index - width + 1); at <= index; at++) {
      const { mean } = series[at] ?? { mean: null };
      const here = (series[at]?.scored ?? 0) - (series[at - 1]?.scored ?? 0);
      if (mean === null) continue;
      sum += mean * here;
      scored += here;
    }
    return scored === 0 ? null : sum / scored;
  });
}

function PassAtK({ statistics }: { readonly statistics: StatisticsView["overall"] }): ReactNode {
  const { passAtK, reward: mean } = statistics;
  return (
    <Card title="pass@k">
      {passAtK.length === 0 ? <p className="muted">No task has a scored attempt yet.</p> : passAtK.map(({ k, estimate, low, high, tasks }) => (
        <BarRow key={k} name={`pass@${k}`} value={estimate} interval={{ low, high }} note={<><b>{percent(estimate)}</b> <span className="faint" title={`95 %, ${tasks} tasks`}>{interval({ low, high })}</span></>} />
      ))}
      <p className="faint" style={{ marginTop: 8, fontSize: 12 }}>
        Mean reward {reward(mean.mean)}{mean.standardError === null ? "" : ` ± ${(1.96 * mean.standardError).toFixed(3)}`}, tasks weigh alike; whiskers are 95 %.
      </p>
    </Card>
  );
}

function Groups({ title, groups, href }: { readonly title: string; readonly groups: readonly GroupStatisticsView[]; readonly href: (name: string) => string }): ReactNode {
  return (
    <Card title={title} actions={<span className="faint" style={{ fontSize: 12 }}>mean reward, passed{groups.some((group) => group.dollars !== null) && ", cost"}</span>}>
      {groups.slice(0, 24).map(({ name, reward: { mean, standardError }, passAtK: [first], scored, dollars: cost }) => {
        const half = standardError === null ? null : 1.96 * standardError;
        return <BarRow key={name} name={name} href={href(name)} value={mean} interval={mean === null || half === null ? null : { low: mean - half, high: mean + half }} note={<><b>{reward(mean)}</b> <span className="faint" title={`${scored} scored`}>{first === undefined ? "" : percent(first.estimate)}{cost !== null && ` ${dollars(cost)}`}</span></>} />;
      })}
      {groups.length > 24 && <p className="faint">… and {groups.length - 24} more</p>}
    </Card>
  );
}

function OutcomeMix({ statistics, run }: { readonly statistics: StatisticsView["overall"]; readonly run: string }): ReactNode {
  return (
    <Card title="Outcomes">
      {statistics.outcomes.map(({ outcome, count: number, share }) => (
        <BarRow key={outcome} name={outcome} value={share.estimate} colour={outcomeColour(outcome)} note={<><b>{number.toLocaleString("en")}</b> <span className="faint">{percent(share.estimate)}</span></>} {...(outcome.startsWith("(") ? {} : { href: `/runs/${run}/rollouts${query({ outcome })}` })} />
      ))}
    </Card>
  );
}

const GRADIENT = [["useful", "rewards differ", "var(--good)"], ["all_passed", "all passed", "var(--wait)"], ["none_passed", "none passed", "var(--bad)"], ["alike", "alike in between", "var(--warn)"], ["too_few", "fewer than two scored", "var(--infra)"]] as const;

/** What a group-relative policy gradient would make of the groups. Of one attempt each there is nothing to say. */
export function Gradient({ report }: { readonly report: RunReport }): ReactNode {
  const total = Object.values(report.gradient).reduce((sum, number) => sum + number, 0);
  if (total === 0 || (report.config?.attempts === 1 && report.gradient.useful === 0)) return null;
  return (
    <Card title="Groups and their gradient" actions={<Link className="link" href={`/runs/${report.run}/groups?sort=deviation`}>groups by spread</Link>}>
      {GRADIENT.map(([key, name, colour]) => <BarRow key={key} name={name} colour={colour} value={report.gradient[key] / total} note={<><b>{report.gradient[key].toLocaleString("en")}</b> <span className="faint">{percent(report.gradient[key] / total)}</span></>} />)}
    </Card>
  );
}

/** Of bars that have a price beside their figures. */
const WIDE_NOTES = { "--note": "214px" } as CSSProperties;

const PHASE_COLOURS: Readonly<Record<string, string>> = { running: "var(--accent)", collected: "var(--verify)", admitted: "var(--wait)" };

function Phases({ report }: { readonly report: RunReport }): ReactNode {
  const total = report.phases.reduce((sum, { totalMs }) => sum + totalMs, 0);
  if (total === 0) return null;
  return (
    <Card title="Time by phase" actions={<span className="faint" style={{ fontSize: 12 }}>share, median, longest{report.cost.dollars !== null && ", cost"}</span>}>
      <div style={report.cost.dollars === null ? undefined : WIDE_NOTES}>
        {report.phases.map(({ phase, label, totalMs, medianMs, maximumMs, dollars: cost }) => (
          <BarRow key={phase} name={label} value={totalMs / total} colour={PHASE_COLOURS[phase] ?? "var(--tool)"} note={<span title={`longest ${duration(maximumMs)}`}><b>{duration(medianMs)}</b> <span className="faint">{duration(maximumMs)}{cost !== null && cost > 0 && ` ${dollars(cost)}`}</span></span>} />
        ))}
      </div>
    </Card>
  );
}

function Cost({ report }: { readonly report: RunReport }): ReactNode {
  const { cost, counts } = report;
  const each = Math.max(1, counts.recorded);
  const agent = cost.modelMs + cost.toolMs + cost.waitMs;
  const { thrownAway: lost } = cost;
  const share = (ms: number): string => `${(100 * ms) / Math.max(1, agent)}%`;
  const parts = [["model", cost.modelMs, "var(--model)"], ["tools", cost.toolMs, "var(--tool)"], ["neither", cost.waitMs, "var(--wait)"]] as const;
  return (
    <Card title="Cost" actions={<span className="faint" style={{ fontSize: 12 }}>of what has ended</span>}>
      <dl className="facts">
        {cost.dollars !== null && counts.recorded > 0 && <Money cost={cost.dollars} report={report} />}
        <dt>Tokens in prompts</dt><dd>{count(cost.promptTokens)} <span className="faint">· {count(Math.round(cost.promptTokens / each))} a rollout{cost.cachedTokens > 0 && ` · ${percent(cost.cachedTokens / cost.promptTokens)} cached`}</span><Lost part={lost.promptTokens} text={count(lost.promptTokens)} /></dd>
        <dt>Tokens sampled</dt><dd>{count(cost.completionTokens)} <span className="faint">· {count(Math.round(cost.completionTokens / each))} a rollout</span><Lost part={lost.completionTokens} text={count(lost.completionTokens)} /></dd>
        <dt>Turns</dt><dd>{count(cost.turns)} <span className="faint">· {(cost.turns / each).toFixed(1)} a rollout</span></dd>
        <dt>Machine time</dt><dd>{duration(cost.machineMs)} <span className="faint">· {duration(cost.machineMs / each)} a rollout</span><Lost part={lost.machineMs} text={duration(lost.machineMs)} /></dd>
        {cost.cpuMs !== null && <><dt>CPU time</dt><dd>{duration(cost.cpuMs)} <span className="faint">· {percent(cost.cpuMs / Math.max(1, cost.machineMs))} of machine time</span></dd></>}
        {cost.frozenMs > 0 && <><dt>Frozen while thinking</dt><dd>{duration(cost.frozenMs)}</dd></>}
      </dl>
      {agent > 0 && (
        <div style={{ marginTop: 12 }}>
          <h3 style={{ marginBottom: 6 }}>Time of agents</h3>
          <div className="meter" role="img" aria-label={parts.map(([name, ms]) => `${name} ${percent(ms / agent)}`).join(", ")}>{parts.map(([name, ms, colour]) => <span key={name} style={{ width: share(ms), background: colour }} />)}</div>
          <div className="legend" style={{ marginTop: 6 }}>{parts.map(([name, ms, colour]) => <span key={name}><i style={{ background: colour }} />{name} {duration(ms)} ({percent(ms / agent)})</span>)}</div>
        </div>
      )}
      {counts.recorded > 0 && <p style={{ marginTop: 10 }}><Link className="link" href={`/runs/${report.run}/rollouts?sort=seconds&order=desc`}>Longest rollouts</Link>{cost.dollars !== null && <> · <Link className="link" href={`/runs/${report.run}/rollouts?sort=cost&order=desc`}>dearest rollouts</Link></>}</p>}
    </Card>
  );
}

/** What is paid for, and stands for nothing. */
function Lost({ part, text }: { readonly part: number; readonly text: string }): ReactNode {
  return part > 0 && <span className="faint"> · of which {text} in tries that were thrown away</span>;
}

const PARTS = [["input", "prompts"], ["cached", "cached prompts"], ["output", "sampled"], ["machine", "machines"]] as const;

function Money({ cost, report: { counts, passed } }: { readonly cost: NonNullable<RunReport["cost"]["dollars"]>; readonly report: RunReport }): ReactNode {
  const solved = passed === null ? 0 : Math.round(passed.estimate * counts.scored);
  return (
    <>
      <dt>Money</dt><dd><b>{dollars(cost.total)}</b> <span className="faint">· {dollars(cost.total / counts.recorded)} a rollout{solved > 0 && ` · ${dollars(cost.total / solved)} for each that passed`}</span><Lost part={cost.thrownAway} text={dollars(cost.thrownAway)} /></dd>
      <dt>of that</dt><dd>{PARTS.filter(([part]) => cost[part] > 0).map(([part, name]) => `${name} ${dollars(cost[part])}`).join(" · ") || "nothing"}{cost.unknown > 0 && <span className="warntext"> without the tokens of {cost.unknown.toLocaleString("en")} whose agents came to no end</span>}</dd>
    </>
  );
}
