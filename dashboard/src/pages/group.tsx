/** The attempts at one task side by side. */
import { useState, type ReactNode } from "react";
import { Link, useLocation } from "wouter";
import type { AttemptView, GroupReport } from "../../../src/server/runs/contract/lists.ts";
import { duration, percent, reward, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useKeys, useTitle } from "../lib/hooks.ts";
import { Card, Crumbs, Empty, Failed, Kpi, OutcomePill, Reward, SaveShown, Skeleton } from "../parts/basics.tsx";
import { MarkBox } from "../parts/mark-box.tsx";

const STEPS = 40;

export function GroupPage({ run, group }: { readonly run: string; readonly group: string }): ReactNode {
  const { data, error } = useData<GroupReport>(`/v1/runs/${run}/groups/${group}`, { refetchMs: 5_000 });
  const [, navigate] = useLocation();
  const [shown, setShown] = useState(STEPS);
  useTitle(data?.group.task ?? "Group");
  useKeys({
    "[": data?.previous == null ? undefined : () => navigate(`/runs/${run}/groups/${data.previous}`),
    "]": data?.next == null ? undefined : () => navigate(`/runs/${run}/groups/${data.next}`),
  });
  if (data === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  const { group: row, attempts } = data;
  const divergesAt = attempts[0]?.divergesAt ?? null;
  const longest = Math.max(0, ...attempts.map(({ stepsTotal }) => stepsTotal));
  return (
    <>
      <Crumbs path={[["Runs", "/runs"], [shortId(data.run), `/runs/${data.run}`], ["Groups", `/runs/${data.run}/groups`], [row.task, null]]} />
      <div className="head">
        <div className="stack" style={{ gap: 6 }}>
          <h1>{visible(row.task).text}</h1>
          <div className="sub"><span>{visible(row.family).text}</span><span>group {row.index + 1}</span><Link className="link" href={`/task?directory=${encodeURIComponent(row.directory)}`}>the task</Link></div>
        </div>
        <div className="buttons">
          <button type="button" className="button small" disabled={data.previous === null} onClick={() => navigate(`/runs/${run}/groups/${data.previous}`)} title="Previous group ( [ )">←</button>
          <button type="button" className="button small" disabled={data.next === null} onClick={() => navigate(`/runs/${run}/groups/${data.next}`)} title="Next group ( ] )">→</button>
          <SaveShown name={group} documents={data} />
          <MarkBox run={data.run} target={group} />
        </div>
      </div>
      {row.error !== null && <div className="banner bad">{visible(row.error.message).text}</div>}
      <div className="kpis">
        <Kpi label="Mean reward" value={reward(row.mean)} note={`${row.scored} of ${row.rollouts} scored`} />
        <Kpi label="Passed" value={`${row.passed} / ${row.scored}`} note={row.scored === 0 ? "" : percent(row.passed / row.scored)} />
        <Kpi label="Spread" value={reward(row.deviation)} note={row.deviation === 0 ? "all alike: no gradient" : "standard deviation"} tone={row.deviation === 0 ? "warn" : ""} />
        <Kpi label="Attempts part" value={divergesAt === null ? "–" : divergesAt === 0 ? "at once" : `step ${divergesAt + 1}`} note={divergesAt === null ? "nowhere" : "first step that differs"} />
      </div>
      {row.scored > 1 && <Advantages attempts={attempts} />}
      {attempts.length === 0 ? <Empty title="No attempts" /> : (
        <div className="attempts" tabIndex={0} role="group" aria-label="Attempts">
          {attempts.map((attempt) => <Attempt key={attempt.rollout} attempt={attempt} shown={shown} />)}
        </div>
      )}
      {longest > shown && <button type="button" className="button" style={{ alignSelf: "center" }} onClick={() => setShown(shown + 200)}>More steps ({longest - shown} left)</button>}
    </>
  );
}

/** Rewards against their mean, as a policy gradient weighs them. */
function Advantages({ attempts }: { readonly attempts: readonly AttemptView[] }): ReactNode {
  const most = Math.max(0.001, ...attempts.map(({ advantage }) => Math.abs(advantage ?? 0)));
  return (
    <Card title="Rewards and advantages">
      <div className="stack" style={{ gap: 2 }}>
        {attempts.map(({ rollout, attempt, reward: value, advantage, outcome, phase }) => (
          <div key={rollout} style={{ display: "grid", gridTemplateColumns: "70px 56px minmax(60px, 1fr) 64px", gap: 12, alignItems: "center", fontSize: 13 }}>
            <Link className="link" href={`/rollouts/${rollout}`}>attempt {attempt}</Link>
            <span className="right">{value === null ? <span className="faint" title={outcome ?? phase}>–</span> : <Reward value={value} />}</span>
            <span style={{ position: "relative", height: 12, background: "var(--raised)", borderRadius: 4 }}>
              <span style={{ position: "absolute", left: "50%", top: -2, bottom: -2, width: 1, background: "var(--line-strong)" }} />
              {advantage !== null && <span style={{ position: "absolute", top: 0, bottom: 0, borderRadius: 3, ...(advantage >= 0 ? { left: "50%" } : { right: "50%" }), width: `${(50 * Math.abs(advantage)) / most}%`, background: advantage >= 0 ? "var(--good)" : "var(--bad)" }} />}
            </span>
            <span className="right muted">{advantage === null ? "" : `${advantage >= 0 ? "+" : "−"}${Math.abs(advantage).toFixed(2)}`}</span>
          </div>
        ))}
      </div>
    </Card>
  );
}

function Attempt({ attempt, shown }: { readonly attempt: AttemptView; readonly shown: number }): ReactNode {
  const { rollout, attempt: number, harness, outcome, reward: value, phase, seconds, steps, stepsTotal, divergesAt } = attempt;
  return (
    <article className="attempt" aria-label={`Attempt ${number}`}>
      <header>
        <div className="line" style={{ justifyContent: "space-between" }}>
          <Link className="link" href={`/rollouts/${rollout}`}><b>Attempt {number}</b></Link>
          <OutcomePill outcome={outcome} reward={value} phase={phase} />
        </div>
        <div className="line faint" style={{ fontSize: 12 }}>
          <span>{harness}</span>
          <span>{stepsTotal} steps</span>
          {seconds > 0 && <span>{duration(seconds * 1000)}</span>}
          <span>reward <Reward value={value} /></span>
        </div>
      </header>
      {steps.slice(0, shown).map(({ kind, text, ok }, index) => (
        <div key={index} className={`step${divergesAt !== null && index < divergesAt ? " same" : ""}${index === divergesAt ? " split" : ""}`}>
          <span className="n">{index + 1}</span>
          <span className={kind === "act" ? "out" : "prose muted"} style={{ maxHeight: "5em", overflow: "hidden" }}>
            {ok === false && <span className="badtext">✗ </span>}
            {visible(text).text.slice(0, 300)}
          </span>
        </div>
      ))}
      {steps.length === 0 && <p className="faint" style={{ padding: 12 }}>{outcome === null ? "Nothing yet." : "It did nothing."}</p>}
    </article>
  );
}
