/** Tasks over all runs: how hard they are, and how that moved from run to run. */
import type { ReactNode } from "react";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useLocation, Link } from "wouter";
import type { TaskRow, TasksPage as TasksDocument } from "../../../src/server/runs/contract/tasks.ts";
import { getJson, query, type ApiError } from "../lib/api.ts";
import { duration, interval, percent } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useParam, useSettled, useTitle } from "../lib/hooks.ts";
import { Empty, Failed, Reward, SaveShown, Skeleton } from "../parts/basics.tsx";

const PAGE = 200;

export function TasksPage(): ReactNode {
  useTitle("Tasks");
  const [q, setQ] = useParam("q");
  const [from, setFrom] = useParam("from", "0");
  const [, navigate] = useLocation();
  const offset = Number(from) || 0;
  const path = `/v1/tasks${query({ q: useSettled(q), offset, limit: PAGE })}`;
  const { data, error } = useQuery<TasksDocument, ApiError>({ queryKey: [path], queryFn: ({ signal }) => getJson<TasksDocument>(path, signal), placeholderData: keepPreviousData, refetchInterval: ({ state }) => ((state.data?.pending ?? 0) > 0 ? 400 : 30_000) });
  return (
    <>
      <h1>Tasks</h1>
      <section className="card" aria-label="Tasks">
        <div className="toolbar">
          <input className="input" type="search" placeholder="Filter by name, family, directory  ( / )" aria-label="Filter tasks" value={q} onChange={({ target }) => { setQ(target.value); setFrom("0"); }} />
          <span className="grow" />
          {data !== undefined && <span className="muted">{data.total.toLocaleString("en")} tasks of the latest {data.runs} runs{data.pending > 0 ? `, ${data.pending} are being read` : ""}</span>}
          {data !== undefined && data.tasks.length > 0 && <SaveShown name="tasks" documents={data.tasks} />}
        </div>
        {data === undefined ? error === null ? <div className="body"><Skeleton lines={8} /></div> : <Failed error={error} /> : data.tasks.length === 0 ? <Empty title={q === "" ? "No run has had a task yet" : "No task is like that"} /> : (
          <div className="scroll" tabIndex={0} role="group" aria-label="List of tasks">
            <table>
              <thead><tr><th>Task</th><th>Passed (95 %)</th><th title="A column a version of the policy, run by run">By version</th><th className="num">Mean</th><th>Family</th><th className="num">Rollouts</th><th className="num">Half within</th></tr></thead>
              <tbody>
                {data.tasks.map((task) => (
                  <tr key={task.directory} className="open" onClick={() => navigate(`/task${query({ directory: task.directory })}`)}>
                    <td><Link className="link" href={`/task${query({ directory: task.directory })}`}>{visible(task.name).text}</Link>{task.digests.length > 1 && <span className="faint"> {task.digests.length} versions</span>}</td>
                    <td className="tight">{task.pass === null ? "" : <>{percent(task.pass.estimate)} <span className="faint">{interval(task.pass)}</span></>}</td>
                    <td><Difficulty versions={task.versions} /></td>
                    <td className="num"><Reward value={task.mean} /></td>
                    <td className="muted">{visible(task.family).text}</td>
                    <td className="num">{task.scored === task.rollouts ? task.rollouts : `${task.scored} / ${task.rollouts}`}</td>
                    <td className="num muted">{task.medianSeconds === null ? "" : duration(task.medianSeconds * 1000)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        {data !== undefined && data.total > PAGE && (
          <div className="toolbar" style={{ borderTop: "1px solid var(--line)", borderBottom: "none" }}>
            <button type="button" className="button small" disabled={offset === 0} onClick={() => setFrom(String(Math.max(0, offset - PAGE)))}>Before</button>
            <button type="button" className="button small" disabled={offset + PAGE >= data.total} onClick={() => setFrom(String(offset + PAGE))}>Next</button>
          </div>
        )}
      </section>
    </>
  );
}

/** A column a run, or a version of its policy where there were several, as high as its pass rate. */
function Difficulty({ versions }: Pick<TaskRow, "versions">): ReactNode {
  const shown = versions.slice(-24);
  const text = shown.map(({ version, passed, scored }) => `${version === null ? "" : `version ${visible(version).text}: `}${passed} of ${scored}`).join(", ");
  return (
    <span role="img" aria-label={text === "" ? "never scored" : `passed ${text}`} title={text} style={{ display: "inline-flex", alignItems: "flex-end", gap: 2, height: 20 }}>
      {shown.map(({ run, version, passed, scored }, index) => (
        <i key={`${run} ${version}`} style={{ width: 7, height: "100%", borderRadius: 2, background: "var(--raised)", display: "flex", alignItems: "flex-end", marginLeft: index > 0 && shown[index - 1]?.run !== run ? 4 : 0 }}>
          <i style={{ width: 7, borderRadius: 2, height: `${Math.max(6, (100 * passed) / scored)}%`, background: passed === scored ? "var(--good)" : passed === 0 ? "var(--bad)" : "var(--warn)" }} />
        </i>
      ))}
    </span>
  );
}
