/** What went wrong in a run, by whose doing it was, each with an example. */
import type { ReactNode } from "react";
import { Link } from "wouter";
import type { RunReport } from "../../../src/server/runs/contract/run.ts";
import { query } from "../lib/api.ts";
import { visible } from "../lib/hostile.ts";
import { Card, Empty, Pill } from "../parts/basics.tsx";

const BOUNDARIES: Readonly<Record<string, string>> = { policy: "the policy", harness: "the harness", model: "the model server", task: "the task", infra: "the machines", trainer: "the trainer" };

export function RunFailures({ report }: { readonly report: RunReport }): ReactNode {
  if (report.failures.length === 0 && report.refused.length === 0) return <Empty title="Nothing has failed"><p>Every rollout that ended was scored, none was tried twice.</p></Empty>;
  return (
    <>
      {report.failures.length > 0 && <FailureList report={report} most={200} />}
      {report.refused.length > 0 && (
        <Card title={`Inputs that are no tasks (${report.counts.refused})`}>
          <div className="stack">
            {report.refused.map(({ source, error }) => (
              <div key={source}>
                <code>{visible(source).text}</code>
                <p className="muted">{visible(error.message).text}{error.fix !== null && <span className="faint"> ({visible(error.fix).text})</span>}</p>
              </div>
            ))}
          </div>
        </Card>
      )}
    </>
  );
}

export function FailureList({ report, most }: { readonly report: RunReport; readonly most: number }): ReactNode {
  return (
    <Card title="Failures" actions={report.failures.length > most ? <Link className="link" href={`/runs/${report.run}/failures`}>all {report.failures.length}</Link> : undefined}>
      <div className="stack">
        {report.failures.slice(0, most).map(({ boundary, outcome, code, count, final, example }) => (
          <div key={`${outcome}${code}`} className="stack" style={{ gap: 4 }}>
            <div className="line">
              <Pill tone={boundary === "task" ? "bad" : boundary === "trainer" ? "" : "infra"}>{outcome.replaceAll("_", " ")}</Pill>
              <span className="muted">{BOUNDARIES[boundary] ?? boundary}</span>
              {code !== "" && <code className="chip">{code}</code>}
              <span className="grow" />
              {final > 0 ? <Link className="link" href={`/runs/${report.run}/rollouts${query({ outcome, code: code === "" ? undefined : code })}`}>{final.toLocaleString("en")} {final === 1 ? "rollout" : "rollouts"}</Link> : <span className="muted">no rollout ended so</span>}
              {count > final && <span className="faint">{(count - final).toLocaleString("en")} {count - final === 1 ? "try" : "tries"} again</span>}
            </div>
            <p className="muted" style={{ overflowWrap: "anywhere" }}>{visible(example.message).text.slice(0, 400)}{example.fix !== null && <span className="faint"> ({visible(example.fix).text.slice(0, 200)})</span>} <Link className="link" href={`/rollouts/${example.rollout}/events`}>example</Link></p>
          </div>
        ))}
      </div>
    </Card>
  );
}
