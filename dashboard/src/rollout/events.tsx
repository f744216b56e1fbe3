/** The log's own events of this rollout, and how long it took from each to the next. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef, type ReactNode } from "react";
import type { RolloutReport } from "../../../src/server/runs/contract/rollout.ts";
import { duration } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { Card, Copy, Out } from "../parts/basics.tsx";

const ROW = 34;

export function Events({ report }: { readonly report: RolloutReport }): ReactNode {
  const { events } = report;
  const first = Date.parse(events[0]?.at ?? "");
  const scroller = useRef<HTMLDivElement>(null);
  // A rollout that was tried again and again has thousands.
  const virtual = useVirtualizer({ count: events.length, getScrollElement: () => scroller.current, estimateSize: () => ROW, overscan: 12 });
  return (
    <>
      <Card title="Events" flush>
        <div className="eventrow faint" style={{ marginTop: 6 }}><span className="right">At</span><span className="right">After</span><span>Event</span><span>Says</span></div>
        <div ref={scroller} style={{ height: `min(64vh, ${Math.max(events.length * ROW, 60) * 1.35}px)`, overflow: "auto" }} tabIndex={0} role="group" aria-label="Events">
          <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
            {virtual.getVirtualItems().map(({ index, start }) => {
              const event = events[index];
              if (event === undefined) return null;
              const { at, type, fields } = event;
              const before = Date.parse(events[index - 1]?.at ?? at);
              return (
                <div key={index} ref={virtual.measureElement} data-index={index} className="eventrow" style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${start}px)` }}>
                  <span className="right mono" title={at}>{duration(Date.parse(at) - first)}</span>
                  <span className="right faint">{index === 0 ? "" : `+${duration(Date.parse(at) - before)}`}</span>
                  <span className={type === "try_failed" ? "badtext" : ""}>{type.replaceAll("_", " ")}</span>
                  <span className="mono muted" style={{ overflowWrap: "anywhere" }}>{said(fields)}</span>
                </div>
              );
            })}
          </div>
        </div>
      </Card>
      <div className="cards">
        <Card title="Facts">
          <dl className="facts">
            <dt>Directory</dt><dd><code>{report.directory}</code> <Copy text={report.directory} /></dd>
            <dt>Task</dt><dd><code>{visible(report.taskDirectory).text}</code></dd>
            <dt>Task digest</dt><dd><code>{report.taskDigest ?? "none"}</code></dd>
            <dt>Seed</dt><dd><code>{report.seed}</code></dd>
            <dt>CPU time</dt><dd>{duration(report.cpuMs)}</dd>
            <dt>Frozen while thinking</dt><dd>{duration(report.frozenMs)}</dd>
          </dl>
        </Card>
        <Card title="Run it again" actions={<Copy text={report.reproduce} />}><Out text={report.reproduce} box /></Card>
        {report.notes !== null && <Card title="Remarks of the harness"><Out text={report.notes} box /></Card>}
        {report.drawn !== null && <Card title="Drawn for this rollout"><Out text={JSON.stringify(report.drawn, null, 2)} box /></Card>}
      </div>
    </>
  );
}

function said(fields: Readonly<Record<string, unknown>>): string {
  return visible(
    Object.entries(fields)
      .filter(([name, value]) => value !== null && name !== "isolation" && !(name === "try" && value === 1))
      .map(([name, value]) => `${name}=${typeof value === "string" ? value : typeof value === "number" ? Math.round(value * 1000) / 1000 : JSON.stringify(value)}`)
      .join("  "),
  ).text;
}
