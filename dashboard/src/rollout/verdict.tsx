/** What the verifier said, and why it is to be believed. */
import type { ReactNode } from "react";
import type { RolloutReport } from "../../../src/server/runs/contract/rollout.ts";
import { duration, reward } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { Card, Empty, Out, Pill, Reward } from "../parts/basics.tsx";

const NAMES: Readonly<Record<string, string>> = { status: "Status", source: "Reward came from", mode: "Verified in", isolation: "Isolation", writtenAt: "Reward written", verifierDigest: "Verifier", exitCode: "Exit code", durationMs: "Took", error: "Error" };

export function Verdict({ report }: { readonly report: RolloutReport }): ReactNode {
  const { verdict, verifierOutput, row, rewards } = report;
  if (verdict === null && verifierOutput === null) return <Empty title="No verdict"><p>{row.phase === "recorded" ? "The rollout ended before it was verified." : "It has not been verified yet."}</p></Empty>;
  const evidence = recordOf(verdict?.["evidence"]);
  return (
    <div className="cards">
      <Card title="Verdict">
        <div className="line" style={{ marginBottom: 12 }}>
          <span style={{ fontSize: 26, fontWeight: 650 }}><Reward value={row.reward} /></span>
          {verdict !== null && <Pill tone={verdict["status"] === "scored" ? "good" : "bad"}>{String(verdict["status"])}</Pill>}
        </div>
        {Object.keys(rewards).length > 1 && <dl className="facts" style={{ marginBottom: 12 }}>{Object.entries(rewards).map(([name, value]) => <div key={name} style={{ display: "contents" }}><dt>{visible(name).text}</dt><dd>{reward(value)}</dd></div>)}</dl>}
        {verdict !== null && (
          <dl className="facts">
            {Object.entries(NAMES).filter(([key]) => verdict[key] != null).map(([key, name]) => (
              <div key={key} style={{ display: "contents" }}>
                <dt>{name}</dt>
                <dd>{key === "durationMs" ? duration(Number(verdict[key])) : key === "isolation" ? isolationOf(verdict[key]) : textOf(verdict[key])}</dd>
              </div>
            ))}
          </dl>
        )}
      </Card>
      {evidence !== null && (
        <Card title="Evidence">
          <div className="stack">
            <Listed title="Restored from the image for the verifier" items={evidence["restored"]} />
            <Listed title="Removed before it ran" items={evidence["removed"]} />
            <Listed title="Notes" items={evidence["notes"]} />
            <dl className="facts">
              <dt>On a pristine machine</dt><dd>{textOf(evidence["pristine"]).replaceAll("_", " ")}</dd>
              <dt>Two rewards that differ</dt><dd>{evidence["conflict"] === true ? "yes" : "no"}</dd>
            </dl>
          </div>
        </Card>
      )}
      {verifierOutput !== null && <div style={{ gridColumn: "1 / -1" }}><Card title={`Verifier output${verifierOutput.truncated ? " (its beginning)" : ""}`}><Out text={verifierOutput.text} box most={20_000} /></Card></div>}
    </div>
  );
}

function Listed({ title, items }: { readonly title: string; readonly items: unknown }): ReactNode {
  const list = Array.isArray(items) ? items.map(String) : [];
  return (
    <div>
      <h3>{title} <span className="faint">({list.length})</span></h3>
      {list.length === 0 ? <p className="faint">nothing</p> : <Out text={list.join("\n")} most={3_000} />}
    </div>
  );
}

function recordOf(value: unknown): Readonly<Record<string, unknown>> | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Readonly<Record<string, unknown>>) : null;
}

/** Which walls stood, and which limits were enforced. */
function isolationOf(value: unknown): string {
  const { backend, profile, enforced } = recordOf(value) ?? {};
  if (typeof profile !== "string") return textOf(value);
  const limits = Object.entries(recordOf(enforced) ?? {}).filter(([, on]) => on === true).map(([name]) => name);
  return visible(`${typeof backend === "string" ? `${backend}, ` : ""}${profile}${limits.length === 0 ? "" : `; limits: ${limits.join(", ")}`}`).text;
}

function textOf(value: unknown): string {
  return visible(typeof value === "string" ? value : JSON.stringify(value)).text;
}
