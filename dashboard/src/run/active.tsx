/** What is under way, longest first. */
import type { ReactNode } from "react";
import { useLocation, Link } from "wouter";
import type { RunReport } from "../../../src/server/runs/contract/run.ts";
import { duration } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useNow } from "../lib/hooks.ts";
import { PHASE_WORDS } from "../lib/outcomes.ts";
import { Card, Empty, Pill } from "../parts/basics.tsx";

export function RunActive({ report }: { readonly report: RunReport }): ReactNode {
  const now = useNow();
  const [, navigate] = useLocation();
  if (report.active.length === 0) return <Empty title="Nothing is under way"><p>{report.status === "finished" ? "The run is over." : "It may be waiting for room on the host."}</p></Empty>;
  const stragglers = report.active.filter(({ straggler }) => straggler).length;
  return (
    <Card title={`${report.activeTotal.toLocaleString("en")} under way`} actions={stragglers > 0 ? <Pill tone="warn">{stragglers} take three times as long as most</Pill> : undefined} flush>
      <div className="scroll" style={{ marginTop: 8 }} tabIndex={0} role="group" aria-label="Rollouts under way">
        <table>
          <thead><tr><th>Task</th><th>Attempt</th><th>Harness</th><th>Now</th><th className="num">In this phase</th><th className="num">Since it began</th></tr></thead>
          <tbody>
            {report.active.map((one) => (
              <tr key={one.rollout} className="open" onClick={() => navigate(`/rollouts/${one.rollout}`)}>
                <td><Link className="link" href={`/rollouts/${one.rollout}`}>{visible(one.task).text}</Link></td>
                <td>{one.attempt}{one.try > 1 && <span className="faint"> (try {one.try})</span>}</td>
                <td>{visible(one.harness).text}</td>
                <td><Pill tone={one.straggler ? "warn" : "accent"} live>{PHASE_WORDS[one.phase] ?? one.phase}</Pill></td>
                <td className="num">{duration(now - one.phaseAt)}</td>
                <td className="num">{one.admittedAt === null ? "" : duration(now - one.admittedAt)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
