/** All runs of the data directory. */
import { useState, type ReactNode } from "react";
import { useLocation } from "wouter";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { RunRow, RunsPage as RunsDocument } from "../../../src/server/runs/contract/run.ts";
import { getJson, query, type ApiError } from "../lib/api.ts";
import { ago, count, dollars, moment, percent, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useKeys, useNow, useParam, useSettled, useTitle } from "../lib/hooks.ts";
import { outcomeColour } from "../lib/outcomes.ts";
import { Empty, Failed, Reward, Skeleton, StatusPill } from "../parts/basics.tsx";

const PAGE = 50;

export function RunsPage(): ReactNode {
  useTitle("Runs");
  const [q, setQ] = useParam("q");
  const [status, setStatus] = useParam("status");
  const [from, setFrom] = useParam("from", "0");
  const [picked, setPicked] = useState<readonly string[]>([]);
  const [cursor, setCursor] = useState(-1);
  const [, navigate] = useLocation();
  const now = useNow(10_000);
  const offset = Number(from) || 0;
  const path = `/v1/runs${query({ q: useSettled(q), status, offset, limit: PAGE })}`;
  const { data, error } = useQuery<RunsDocument, ApiError>({
    queryKey: [path],
    queryFn: ({ signal }) => getJson<RunsDocument>(path, signal),
    placeholderData: keepPreviousData,
    // What is being read for the first time is there soon; a run that is under way moves on.
    refetchInterval: ({ state }) => (state.data?.runs.some((run) => run.status === "reading") === true ? 300 : state.data?.runs.some((run) => run.status === "running") === true ? 3_000 : 15_000),
  });
  const runs = data?.runs ?? [];
  const priced = runs.some((run) => run.dollars !== null);
  const atCursor = runs[cursor];
  useKeys({
    j: () => setCursor(Math.min(runs.length - 1, cursor + 1)),
    k: () => setCursor(Math.max(0, cursor - 1)),
    Enter: atCursor === undefined ? undefined : () => navigate(`/runs/${atCursor.run}`),
    x: atCursor === undefined ? undefined : () => toggle(atCursor.run),
  });
  const toggle = (run: string): void => setPicked(picked.includes(run) ? picked.filter((one) => one !== run) : [...picked, run].slice(-6));
  return (
    <>
      <div className="head">
        <h1>Runs</h1>
        <div className="buttons">
          {picked.length > 0 && <span className="muted">{picked.length} picked</span>}
          <button type="button" className="button primary" disabled={picked.length < 2} onClick={() => navigate(`/compare?runs=${picked.join(",")}`)}>Compare</button>
        </div>
      </div>
      <section className="card" aria-label="Runs">
        <div className="toolbar">
          <input className="input" type="search" placeholder="Filter by id, model, harness, task  ( / )" aria-label="Filter runs" value={q} onChange={({ target }) => { setQ(target.value); setFrom("0"); }} />
          <select className="input" aria-label="Status" value={status} onChange={({ target }) => setStatus(target.value)}>
            <option value="">any status</option>
            {["running", "finished", "interrupted", "killed", "damaged"].map((one) => <option key={one}>{one}</option>)}
          </select>
          <span className="grow" />
          {data !== undefined && <span className="muted">{data.total.toLocaleString("en")} {data.total === 1 ? "run" : "runs"}</span>}
        </div>
        {error !== null && data === undefined ? <Failed error={error} /> : data === undefined ? <div className="body"><Skeleton lines={7} /></div> : runs.length === 0 ? <NoRuns filtered={q !== "" || status !== ""} home={data.home} /> : (
          <div className="scroll" tabIndex={0} role="group" aria-label="List of runs">
            <table>
              <thead>
                <tr>
                  <th><span className="faint" title="Pick runs to compare them">⇄</span></th>
                  <th>Run</th><th>Status</th><th className="num">Reward</th><th>Passed (95 %)</th><th className="num">Done</th>{priced && <th className="num" style={{ paddingLeft: 0 }}>Cost</th>}<th>Outcomes</th><th>Tasks</th><th>Agent and model</th><th className="num">Started</th>
                </tr>
              </thead>
              <tbody>
                {runs.map((run, index) => (
                  <Row key={run.run} run={run} now={now} priced={priced} picked={picked.includes(run.run)} cursor={index === cursor} onPick={() => toggle(run.run)} onOpen={() => navigate(`/runs/${run.run}`)} />
                ))}
              </tbody>
            </table>
          </div>
        )}
        {data !== undefined && data.total > PAGE && (
          <div className="toolbar" style={{ borderTop: "1px solid var(--line)", borderBottom: "none" }}>
            <button type="button" className="button small" disabled={offset === 0} onClick={() => setFrom(String(Math.max(0, offset - PAGE)))}>Newer</button>
            <button type="button" className="button small" disabled={offset + PAGE >= data.total} onClick={() => setFrom(String(offset + PAGE))}>Older</button>
            <span className="muted">{offset + 1} to {Math.min(data.total, offset + PAGE)} of {data.total.toLocaleString("en")}</span>
          </div>
        )}
      </section>
    </>
  );
}

function NoRuns({ filtered, home }: { readonly filtered: boolean; readonly home: string }): ReactNode {
  return filtered ? <Empty title="No run is like that" /> : (
    <Empty title="No runs yet">
      <p>{home} holds none. This makes one with the shipped tasks:</p>
      <code>mw run worlds/terminal --harness oracle</code>
    </Empty>
  );
}

function Row({ run, now, priced, picked, cursor, onPick, onOpen }: { readonly run: RunRow; readonly now: number; readonly priced: boolean; readonly picked: boolean; readonly cursor: boolean; readonly onPick: () => void; readonly onOpen: () => void }): ReactNode {
  const reading = run.status === "reading";
  return (
    <tr className="open" style={cursor ? { background: "var(--accent-bg)" } : undefined} onClick={(event) => { if (!(event.target as HTMLElement).closest("a, input")) onOpen(); }}>
      <td><input type="checkbox" aria-label={`Compare ${run.run}`} checked={picked} onChange={onPick} /></td>
      <td className="mono tight"><a className="link" href={`/ui/runs/${run.run}`} onClick={(event) => { if (!event.metaKey && !event.ctrlKey) { event.preventDefault(); onOpen(); } }}><span className="wide">{run.run}</span><span className="narrow">{shortId(run.run)}</span></a></td>
      <td><StatusPill status={run.status} /></td>
      <td className="num"><Reward value={run.mean} /></td>
      <td className="tight">{run.passed === null ? "" : <>{percent(run.passed.estimate)} <span className="faint">{Math.round(100 * run.passed.low)}–{Math.round(100 * run.passed.high)}</span></>}</td>
      <td className="num">{reading ? "" : `${count(run.recorded)} / ${count(run.rollouts)}`}</td>
      {priced && <td className="num" style={{ paddingLeft: 0 }}>{run.dollars === null ? "" : dollars(run.dollars)}</td>}
      <td>{run.error === null ? <Outcomes outcomes={run.outcomes} total={Math.max(run.rollouts, 1)} /> : <span className="badtext">{visible(run.error.slice(0, 90)).text}</span>}</td>
      <td className="cut" style={{ maxWidth: 112 }}>{reading ? "" : <span title={visible(run.inputs.join("\n")).text}>{run.tasks} <span className="faint">{visible(run.inputs.map((input) => input.split("/").at(-1)).join(", ").slice(0, 40)).text}</span></span>}</td>
      <td className="cut" title={visible(`${run.harnesses.join(", ")} ${run.model ?? ""}`).text}>{run.harnesses.slice(0, 3).map((name) => <span key={name} className="chip" style={{ marginRight: 4 }}>{visible(name).text}</span>)}{run.harnesses.length > 3 && <span className="faint">+{run.harnesses.length - 3} </span>}<span className="muted">{visible(run.model ?? "").text}</span></td>
      <td className="num muted" title={moment(run.createdAt)}>{ago(run.createdAt, now)}</td>
    </tr>
  );
}

export function Outcomes({ outcomes, total }: { readonly outcomes: Readonly<Record<string, number>>; readonly total: number }): ReactNode {
  const entries = Object.entries(outcomes).sort(([, a], [, b]) => b - a);
  const text = entries.map(([name, number]) => `${name} ${number}`).join(", ");
  return (
    <span className="meter" style={{ width: 74 }} role="img" aria-label={text === "" ? "nothing has ended" : text} title={text}>
      {entries.map(([name, number]) => <span key={name} style={{ width: `${(100 * number) / total}%`, background: outcomeColour(name) }} />)}
    </span>
  );
}
