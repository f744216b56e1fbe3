/** How the calls hang together: a line a call, conversations as lanes beside them. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, type ReactNode } from "react";
import type { TraceNodeView, TraceView } from "../../../src/server/runs/contract/calls.ts";
import { count, duration } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData } from "../lib/hooks.ts";
import { KIND_COLOURS } from "../lib/outcomes.ts";
import { Empty, Failed, Skeleton } from "../parts/basics.tsx";

const ROW = 34;
const LANE = 18;
const MOST_LANES = 12;

export function Trace({ rollout, version, onCall, current }: { readonly rollout: string; readonly version: string; readonly onCall: (call: number) => void; readonly current: number | null }): ReactNode {
  const { data, error } = useData<TraceView>(`/v1/rollouts/${rollout}/trace`, { version });
  const scroller = useRef<HTMLDivElement>(null);
  const nodes = useMemo(() => data?.nodes ?? [], [data]);
  const layout = useMemo(() => lanesOf(nodes), [nodes]);
  const virtual = useVirtualizer({ count: nodes.length, getScrollElement: () => scroller.current, estimateSize: () => ROW, overscan: 10 });
  if (data === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  if (nodes.length === 0) return <Empty title="No model call was made" />;
  const lanes = Math.min(MOST_LANES, layout.lanes);
  const kinds = [...new Set(nodes.map(({ kind }) => kind))];
  return (
    <section className="card" aria-label="Trace" style={{ "--lanes": `${lanes * LANE + 18}px` } as React.CSSProperties}>
      <div className="toolbar">
        <div className="legend">{kinds.map((kind) => <span key={kind}><i style={{ background: KIND_COLOURS[kind] }} />{kind} {nodes.filter((node) => node.kind === kind).length}</span>)}</div>
        <span className="grow" />
        <span className="faint">a call opens as it went over the wire</span>
      </div>
      <div ref={scroller} style={{ height: `min(72vh, ${nodes.length * ROW + 40}px)`, overflow: "auto" }} tabIndex={0} role="group" aria-label="Calls">
        <div className="tracerow faint" style={{ cursor: "default", position: "sticky", top: 0, background: "var(--panel)", zIndex: 1 }}>
          <span /><span>call</span><span>kind</span><span>says</span><span className="right">prompt</span><span className="right">sampled</span><span className="right">time</span><span>version</span>
        </div>
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map(({ index, start }) => {
            const node = nodes[index];
            if (node === undefined) return null;
            return (
              <button key={node.call} type="button" className={`tracerow${node.call === current ? " at" : ""}`} style={{ position: "absolute", top: 0, left: 0, transform: `translateY(${start}px)` }} onClick={() => onCall(node.call)}>
                <Gutter node={node} index={index} layout={layout} lanes={lanes} />
                <span className="mono">{node.call}</span>
                <span style={{ color: KIND_COLOURS[node.kind] }}>{node.kind}{node.relation === "compacted" ? " ↺" : node.relation === "edits" ? " ✎" : ""}</span>
                <span className={node.status === "complete" ? "" : "badtext"}>{node.status === "complete" ? visible(node.says).text : `${node.status}: ${visible(node.failure ?? "").text}`}</span>
                <span className="right muted">{count(node.promptTokens)}</span>
                <span className="right">{count(node.completionTokens)}</span>
                <span className="right muted">{duration(node.durationMs)}</span>
                <span className="faint">{visible(node.versions.join(", ")).text || (node.capture === "tokens" ? "" : node.capture)}</span>
              </button>
            );
          })}
        </div>
      </div>
    </section>
  );
}

interface Layout {
  readonly lanes: number;
  readonly laneOf: ReadonlyMap<number, number>;
  /** Stretches of rows that a lane runs through: from a parent's row to its child's. */
  readonly runs: readonly { readonly lane: number; readonly from: number; readonly to: number; readonly kind: string }[];
  readonly rowOf: ReadonlyMap<number, number>;
}

/** A lane a thread, branches beside the line that they left. */
function lanesOf(nodes: readonly TraceNodeView[]): Layout {
  const rowOf = new Map(nodes.map(({ call }, row) => [call, row]));
  const laneOf = new Map<number, number>();
  const threads = new Map<string, number>();
  for (const node of nodes) {
    const key = `${node.thread}${node.kind === "branch" ? " branch" : ""}`;
    const lane = threads.get(key) ?? threads.size;
    threads.set(key, lane);
    laneOf.set(node.call, Math.min(MOST_LANES - 1, lane));
  }
  const runs = nodes.flatMap((node, row) => {
    const from = node.parent ?? node.spawnedBy;
    const parentRow = from === null ? undefined : rowOf.get(from);
    return parentRow === undefined ? [] : [{ lane: laneOf.get(node.call) ?? 0, from: parentRow, to: row, kind: node.kind }];
  });
  return { lanes: Math.max(1, threads.size), laneOf, runs, rowOf };
}

function Gutter({ node, index, layout, lanes }: { readonly node: TraceNodeView; readonly index: number; readonly layout: Layout; readonly lanes: number }): ReactNode {
  const x = (lane: number): number => 14 + lane * LANE;
  const own = layout.laneOf.get(node.call) ?? 0;
  const from = node.parent ?? node.spawnedBy;
  const fromLane = from === null ? null : (layout.laneOf.get(from) ?? null);
  const through = layout.runs.filter((run) => run.from < index && run.to > index);
  const down = layout.runs.filter((run) => run.from === index);
  const parentRow = from === null ? undefined : layout.rowOf.get(from);
  return (
    <svg width={lanes * LANE + 18} height={ROW} aria-hidden="true" style={{ display: "block" }}>
      {through.map((run, at) => <line key={at} x1={x(run.lane)} x2={x(run.lane)} y1={0} y2={ROW} stroke={KIND_COLOURS[run.kind]} strokeWidth={1.5} opacity={0.55} />)}
      {down.map((run, at) => <path key={`d${at}`} d={run.lane === own ? `M${x(own)} ${ROW / 2} V${ROW}` : `M${x(own)} ${ROW / 2} C ${x(own)} ${ROW - 4}, ${x(run.lane)} ${ROW / 2 + 4}, ${x(run.lane)} ${ROW}`} fill="none" stroke={KIND_COLOURS[run.kind]} strokeWidth={1.5} opacity={0.55} />)}
      {parentRow !== undefined && fromLane !== null && <line x1={x(own)} x2={x(own)} y1={0} y2={ROW / 2} stroke={KIND_COLOURS[node.kind]} strokeWidth={1.5} opacity={0.55} />}
      <circle cx={x(own)} cy={ROW / 2} r={5} fill={node.status === "complete" ? KIND_COLOURS[node.kind] : "var(--panel)"} stroke={node.status === "complete" ? "var(--panel)" : "var(--bad)"} strokeWidth={2} />
    </svg>
  );
}
