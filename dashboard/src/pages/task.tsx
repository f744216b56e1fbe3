/** One task: what it asks, how it is graded, how it went in each run. */
import { useState, type ReactNode } from "react";
import { Link } from "wouter";
import type { TaskReport, TaskRow } from "../../../src/server/runs/contract/tasks.ts";
import { query } from "../lib/api.ts";
import { bytes, duration, interval, moment, percent, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useParam, useTitle } from "../lib/hooks.ts";
import { BarRow, Card, Copy, Crumbs, Failed, Kpi, Out, Reward, Skeleton } from "../parts/basics.tsx";

export function TaskPage(): ReactNode {
  const [directory] = useParam("directory");
  const { data, error } = useData<TaskReport>(`/v1/task${query({ directory })}`);
  const [file, setFile] = useParam("file");
  const [all, setAll] = useState(false);
  useTitle(data?.task.name ?? "Task");
  if (data === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  const { task, files } = data;
  const chosen = files.find(({ path }) => path === file);
  const part = (name: string, start: string): ReactNode => {
    const inside = files.filter(({ path }) => path.startsWith(start));
    return (
      <div>
        <h3>{name} <span className="faint">({inside.length})</span></h3>
        {inside.length === 0 ? <p className="faint">none</p> : inside.slice(0, all ? 500 : 12).map(({ path, bytes: size }) => (
          <div key={path} className="line" style={{ gap: 8 }}>
            <button type="button" className="button small ghost mono" aria-pressed={path === file} onClick={() => setFile(path)}>{visible(path).text}</button>
            <span className="faint" style={{ fontSize: 12 }}>{bytes(size)}</span>
          </div>
        ))}
        {inside.length > 12 && !all && <button type="button" className="button small" onClick={() => setAll(true)}>all of them</button>}
      </div>
    );
  };
  return (
    <>
      <Crumbs path={[["Tasks", "/tasks"], [task.name, null]]} />
      <div className="head">
        <div className="stack" style={{ gap: 6 }}>
          <h1>{visible(task.name).text}</h1>
          <div className="sub"><span>{visible(task.family).text}</span><code className="faint">{visible(task.directory).text}</code></div>
        </div>
        <Copy text={`mw task check --certify ${task.directory}`}>Copy “mw task check”</Copy>
      </div>
      {!data.present && <div className="banner">Its directory is not there any more; what runs recorded is.</div>}
      <div className="kpis">
        <Kpi label="Passed" value={task.pass === null ? "–" : percent(task.pass.estimate)} note={task.pass === null ? "never scored" : `95 %: ${interval(task.pass)}`} />
        <Kpi label="Mean reward" value={<Reward value={task.mean} />} note={`${task.scored} of ${task.rollouts} scored`} />
        <Kpi label="Half of the rollouts within" value={task.medianSeconds === null ? "–" : duration(task.medianSeconds * 1000)} />
        <CertificateKpi report={data} />
      </div>
      <div className="cards">
        {data.instruction !== null && <Card title="Instruction"><Out text={data.instruction} className="prose" /></Card>}
        <ByVersion task={task} />
        {data.certificate !== null && <CertificateCard certificate={data.certificate} />}
        <Card title="Run by run" flush>
          <div className="scroll" tabIndex={0} role="group" aria-label="Runs of this task" style={{ marginTop: 6 }}>
            <table>
              <thead><tr><th>Run</th><th>Agent and model</th><th className="num">Passed</th><th className="num">Mean</th><th className="num">When</th></tr></thead>
              <tbody>
                {task.runs.toReversed().map((run) => (
                  <tr key={run.run}>
                    <td><Link className="link mono" href={`/runs/${run.run}/groups/${run.group}`}>{shortId(run.run)}</Link></td>
                    <td>{visible(run.harnesses.join(", ")).text} <span className="muted">{visible(run.model ?? "").text}</span>{run.groups > 1 && <span className="faint"> {run.groups} groups</span>}</td>
                    <td className="num">{run.passed} / {run.scored}</td>
                    <td className="num"><Reward value={run.mean} /></td>
                    <td className="num muted">{moment(run.createdAt)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Card>
        {data.present && <Card title="Verifier, reference and environment"><div className="stack">{part("Verifier", "tests/")}{part("Reference solution", "solution/")}{part("Environment", "environment/")}</div></Card>}
        {data.config !== null && <Card title="task.toml"><Out text={data.config} box /></Card>}
        {chosen !== undefined && <Card title={<span className="mono">{visible(chosen.path).text}</span>}>{chosen.text === null ? <p className="muted">No text, or too long to be shown.</p> : <Out text={chosen.text} box most={40_000} />}</Card>}
      </div>
    </>
  );
}

function CertificateKpi({ report: { task, certificate } }: { readonly report: TaskReport }): ReactNode {
  if (certificate === null) return <Kpi label="Certificate" value="none" note="mw task check --certify writes one" />;
  // Digests are in the order of the runs.
  const isCurrent = certificate.digest === task.digests.at(-1);
  return <Kpi label="Certificate" value={isCurrent ? (certificate.passed ? "passed" : "failed") : "outdated"} tone={isCurrent ? (certificate.passed ? "good" : "bad") : "warn"} note={isCurrent ? moment(certificate.checkedAt) : "of another content than the latest run had"} />;
}

/** What each gate said. */
function CertificateCard({ certificate }: { readonly certificate: NonNullable<TaskReport["certificate"]> }): ReactNode {
  const { gates, failures, differences, lint, digest, checkedAt, version } = certificate;
  return (
    <Card title="Certificate" actions={<span className="faint" style={{ fontSize: 12 }}>{moment(checkedAt)}, version {visible(version).text}</span>}>
      <div className="scroll" tabIndex={0} role="group" aria-label="Gates of this task">
        <table>
          <thead><tr><th>Gate</th><th>Verified</th><th>Outcome</th><th className="num">Reward</th><th className="num">Took</th></tr></thead>
          <tbody>
            {gates.map(({ agent, mode, outcome, reward, seconds }) => (
              <tr key={`${agent} ${mode}`}><td>{agent === "oracle" ? "the reference" : "doing nothing"}</td><td>{visible(mode).text}</td><td>{visible(outcome).text.replaceAll("_", " ")}</td><td className="num"><Reward value={reward} /></td><td className="num">{duration(seconds * 1000)}</td></tr>
            ))}
            <tr><td>lint</td><td /><td>{lint.errors} {lint.errors === 1 ? "error" : "errors"}, {lint.warnings} {lint.warnings === 1 ? "warning" : "warnings"}</td><td /><td /></tr>
          </tbody>
        </table>
      </div>
      {failures.map((failure) => <p key={failure} className="badtext">{visible(failure).text}</p>)}
      {differences.map((difference) => <p key={difference} className="warntext">differs: {visible(difference).text}</p>)}
      <p className="faint mono ellipsis" style={{ fontSize: 12 }} title={visible(digest ?? "").text}>{visible(digest ?? "no digest").text}</p>
    </Card>
  );
}

/** How hard it was for each version of a policy: pass rate with its 95 % interval, run by run. */
function ByVersion({ task: { versions } }: { readonly task: TaskRow }): ReactNode {
  const runs = [...Map.groupBy(versions, ({ run }) => run)].toReversed();
  return (
    <Card title="Difficulty by version of the policy" actions={<span className="faint" style={{ fontSize: 12 }}>passed, 95 %</span>}>
      {runs.length === 0 ? <p className="muted">No attempt was scored yet.</p> : runs.slice(0, 8).map(([run, ofRun]) => (
        <div key={run} style={{ paddingBottom: 8 }}>
          <h3><Link className="link mono" href={`/runs/${run}`}>{shortId(run)}</Link></h3>
          {ofRun.map(({ version, passed, scored, pass }) => (
            <BarRow key={version} name={version === null ? "no version said" : `version ${version}`} value={pass.estimate} interval={pass} note={<><b>{passed} / {scored}</b> <span className="faint">{interval(pass)}</span></>} />
          ))}
        </div>
      ))}
    </Card>
  );
}
