/** Files that the agent added, changed and removed. */
import { useMemo, useState, type ReactNode } from "react";
import type { ChangesView, ChangeView } from "../../../src/server/runs/contract/rollout.ts";
import { diffLines } from "../lib/diff.ts";
import { bytes } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData } from "../lib/hooks.ts";
import { Empty, Failed, Pill, Skeleton } from "../parts/basics.tsx";

const TONES = { added: "good", changed: "warn", removed: "bad", unknown: "" } as const;

export function Changes({ rollout, version }: { readonly rollout: string; readonly version: string }): ReactNode {
  const { data, error } = useData<ChangesView>(`/v1/rollouts/${rollout}/changes`, { version });
  if (data === undefined) return error === null ? <Skeleton lines={6} /> : <Failed error={error} />;
  if (data.source === "none") return <Empty title="What it changed was not kept"><p>Run with <code>--keep-workspace</code> to keep everything that an agent adds, changes and removes; the task declares no artifacts that were collected.</p></Empty>;
  if (data.changes.length === 0) return <Empty title="It changed nothing" />;
  return (
    <div className="stack">
      <p className="muted">{data.changes.length} {data.changes.length === 1 ? "file" : "files"}{data.truncated ? " (the first of them)" : ""}{data.source === "artifacts" ? ": what the task declares as the agent’s product. --keep-workspace keeps everything." : ", against the image that the machine started from"}</p>
      {data.changes.map((change, index) => <Change key={`${index}${change.path}`} change={change} open={data.changes.length <= 12} />)}
    </div>
  );
}

function Change({ change, open }: { readonly change: ChangeView; readonly open: boolean }): ReactNode {
  const [shown, setShown] = useState(open);
  const lines = useMemo(() => (shown && (change.before !== null || change.after !== null) ? diffLines(change.before ?? "", change.after ?? "") : []), [shown, change]);
  const plus = lines.filter(({ kind }) => kind === "plus").length;
  const minus = lines.filter(({ kind }) => kind === "minus").length;
  return (
    <section className="card" aria-label={visible(change.path).text}>
      <header style={{ padding: "8px 14px", cursor: "pointer" }} onClick={() => setShown(!shown)}>
        <button type="button" className="button small ghost mono" aria-expanded={shown} style={{ whiteSpace: "normal", textAlign: "left", overflowWrap: "anywhere" }}>{shown ? "▾" : "▸"} /{visible(change.path).text}</button>
        <span className="line">
          {shown && plus > 0 && <span className="goodtext">+{plus}</span>}
          {shown && minus > 0 && <span className="badtext">−{minus}</span>}
          <span className="faint">{bytes(change.bytes)}</span>
          <Pill tone={TONES[change.change]}>{change.change === "unknown" ? change.kind : change.change}</Pill>
        </span>
      </header>
      {shown && change.note !== null && <p className="muted" style={{ padding: "0 14px 10px" }}>{visible(change.note).text}</p>}
      {shown && lines.length > 0 && (
        <div className="diff" style={{ borderTop: "1px solid var(--line)" }}>
          {lines.slice(0, 2_000).map(({ kind, text, before, after }, index) => (
            <div key={index} className={kind}>
              <i>{before ?? ""}</i>
              <i>{after ?? ""}</i>
              <span aria-hidden="true">{kind === "plus" ? "+" : kind === "minus" ? "−" : ""}</span>
              <span>{visible(text).text.slice(0, 2_000)}</span>
            </div>
          ))}
        </div>
      )}
    </section>
  );
}
