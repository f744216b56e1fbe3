/** One rollout: when what happened, and each thing that is recorded of it. */
import { lazy, Suspense, useMemo, type ReactNode } from "react";
import { Link, useLocation } from "wouter";
import type { RolloutReport } from "../../../src/server/runs/contract/rollout.ts";
import { count, dollars, duration, moment, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useKeys, useParam, useRolloutStream, useTitle } from "../lib/hooks.ts";
import { Copy, Crumbs, Failed, OutcomePill, Reward, Skeleton, Tabs } from "../parts/basics.tsx";
import { MarkBox } from "../parts/mark-box.tsx";
import { CallDrawer } from "../rollout/call-drawer.tsx";
import { Changes } from "../rollout/changes.tsx";
import { Commands } from "../rollout/commands.tsx";
import { ConversationView } from "../rollout/conversation.tsx";
import { Events } from "../rollout/events.tsx";
import { Files } from "../rollout/files.tsx";
import { Timeline } from "../rollout/timeline.tsx";
import { Tokens } from "../rollout/tokens.tsx";
import { Trace } from "../rollout/trace.tsx";
import { Verdict } from "../rollout/verdict.tsx";

const Playback = lazy(async () => ({ default: (await import("../rollout/playback.tsx")).Playback }));

const VIEWS = ["conversation", "commands", "terminal", "changes", "verdict", "trace", "tokens", "events", "files"] as const;

export function RolloutPage({ rollout, view }: { readonly rollout: string; readonly view: string }): ReactNode {
  const first = useData<RolloutReport>(`/v1/rollouts/${rollout}`);
  const live = first.data !== undefined && first.data.row.rollout === rollout && first.data.row.phase !== "recorded";
  const { update, calls, link } = useRolloutStream(rollout, live);
  const { data: report, error } = useData<RolloutReport>(`/v1/rollouts/${rollout}`, update === null ? {} : { version: `${update.version}${update.phase}` });
  const [, navigate] = useLocation();
  const [t, setT] = useParam("t");
  const [call, setCall] = useParam("call");
  const search = window.location.search;
  const go = (to: string | null | undefined): (() => void) | undefined => (to == null ? undefined : () => navigate(`/rollouts/${to}/${view}`));
  useTitle(report === undefined ? "Rollout" : `${report.row.task} #${report.row.attempt}`);
  useKeys({ ...Object.fromEntries(VIEWS.map((name, index) => [String(index + 1), () => navigate(`/rollouts/${rollout}/${name}${search}`)])), "[": go(report?.previous), "]": go(report?.next), Escape: call === "" ? undefined : () => setCall("") });
  const at = t === "" ? null : Number(t);
  const version = report?.version ?? "";
  const stretches = useMemo(() => report?.stretches ?? [], [report]);
  if (report === undefined || report.row.rollout !== rollout) return error === null || report !== undefined ? <Skeleton lines={8} /> : <Failed error={error} />;
  const { row } = report;
  return (
    <>
      <Crumbs path={[["Runs", "/runs"], [shortId(report.run), `/runs/${report.run}`], ["Rollouts", `/runs/${report.run}/rollouts`], [`${row.task} #${row.attempt}`, null]]} />
      <div className="head">
        <div className="stack" style={{ gap: 6 }}>
          <div className="title">
            <h1>{visible(row.task).text} <span className="faint">#{row.attempt}</span></h1>
            <OutcomePill outcome={row.outcome} reward={row.reward} phase={update?.phase ?? row.phase} />
            {row.reward !== null && <span style={{ fontSize: 18, fontWeight: 640 }}><Reward value={row.reward} /></span>}
            {link === "lost" && <span className="warntext">connection lost, trying again</span>}
          </div>
          <div className="sub">
            <span>{visible(row.harness).text}</span>
            {row.stopReason !== null && <span>stopped: <b>{row.stopReason.replaceAll("_", " ")}</b></span>}
            <span>{row.turns} turns</span>
            <span>{count(row.completionTokens)} tokens sampled</span>
            {row.dollars !== null && <span>{dollars(row.dollars)}{row.thrownAway.dollars !== null && row.thrownAway.dollars > 0 && <span className="faint"> of which {dollars(row.thrownAway.dollars)} in tries that were thrown away</span>}</span>}
            {row.seconds > 0 && <span>{duration(row.seconds * 1000)}</span>}
            <span>{moment(row.admittedAt)}</span>
            {row.tries > 1 && <span className="warntext">try {row.tries}</span>}
            <Link className="link" href={`/runs/${report.run}/groups/${row.group}`}>its group</Link>
          </div>
        </div>
        <div className="line">
          <Copy text={report.reproduce}>Copy command</Copy>
          <button type="button" className="button small" disabled={report.previous === null} onClick={go(report.previous)} title="Previous rollout ( [ )" aria-label="Previous rollout">←</button>
          <button type="button" className="button small" disabled={report.next === null} onClick={go(report.next)} title="Next rollout ( ] )" aria-label="Next rollout">→</button>
          <MarkBox run={report.run} target={rollout} keys />
        </div>
      </div>
      {row.error !== null && <div className="banner bad" role="alert"><b>{row.error.code}</b> {visible(row.error.message).text}{row.error.fix !== null && <span> ({visible(row.error.fix).text})</span>}</div>}
      {report.damage !== null && <div className="banner bad" role="alert">Its calls cannot be read: {visible(report.damage).text}</div>}
      <section className="card" aria-label="Timeline"><div className="body"><Timeline stretches={stretches} at={at} onAt={(value) => setT(value === null ? "" : String(Math.round(value)))} onOpen={(lane, ref) => (lane === "model" ? setCall(String(ref)) : lane === "tool" ? navigate(`/rollouts/${rollout}/commands?n=${ref}`) : undefined)} report={report} /></div></section>
      <Tabs
        current={view}
        href={(name) => `/rollouts/${rollout}/${name}${t === "" ? "" : `?t=${t}`}`}
        tabs={[["conversation", "Conversation", report.messages], ["commands", "Commands", report.commands], ["terminal", "Terminal"], ["changes", "Changes"], ["verdict", "Verdict"], ["trace", "Trace", report.calls], ["tokens", "Tokens"], ["events", "Events", report.events.length], ["files", "Files"]]}
      />
      <Suspense fallback={<Skeleton lines={6} />}>
        {view === "conversation" ? <ConversationView rollout={rollout} version={version} at={at} instruction={report.instruction} live={calls} onCall={(number) => setCall(String(number))} />
          : view === "commands" ? <Commands rollout={rollout} version={version} at={at} />
          : view === "terminal" ? <Playback rollout={rollout} version={version} at={at} onAt={(value) => setT(String(Math.round(value)))} />
          : view === "changes" ? <Changes rollout={rollout} version={version} />
          : view === "verdict" ? <Verdict report={report} />
          : view === "trace" ? <Trace rollout={rollout} version={version} onCall={(number) => setCall(String(number))} current={call === "" ? null : Number(call)} />
          : view === "tokens" ? <Tokens rollout={rollout} version={version} onCall={(number) => setCall(String(number))} />
          : view === "events" ? <Events report={report} />
          : <Files rollout={rollout} />}
      </Suspense>
      {call !== "" && <CallDrawer rollout={rollout} number={Number(call)} onClose={() => setCall("")} />}
    </>
  );
}
