/** When what happened: phases, model calls and commands on lanes of their own, and a needle that the views follow. Drawn on a canvas, because there may be thousands. */
import { useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import type { RolloutReport, Stretch } from "../../../src/server/runs/contract/rollout.ts";
import { duration } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useKeys } from "../lib/hooks.ts";
import { resolved, useThemeMark } from "../parts/chart.tsx";

const LANES = [["phase", "Phases"], ["model", "Model"], ["tool", "Tools"]] as const;
const LANE = 22;
const GAP = 6;
const HEIGHT = LANES.length * (LANE + GAP) + 16;
const PHASE_COLOURS: Readonly<Record<string, string>> = { agent: "--accent", verification: "--verify", done: "--line" };

interface Props {
  readonly stretches: readonly Stretch[];
  readonly at: number | null;
  readonly onAt: (at: number | null) => void;
  readonly onOpen: (lane: Stretch["lane"], ref: number) => void;
  readonly report: RolloutReport;
}

export function Timeline({ stretches, at, onAt, onOpen, report }: Props): ReactNode {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(800);
  const [hover, setHover] = useState<{ readonly x: number; readonly text: string } | null>(null);
  const theme = useThemeMark();
  const [start, end] = useMemo(() => rangeOf(stretches), [stretches]);
  const span = Math.max(1, end - start);
  const steps = useMemo(() => stretches.filter(({ lane }) => lane !== "phase").map(({ start: begins }) => begins).sort((a, b) => a - b), [stretches]);
  useKeys({
    ArrowRight: () => onAt(steps.find((step) => step > (at ?? start - 1)) ?? end),
    ArrowLeft: () => onAt(steps.findLast((step) => step < (at ?? end + 1)) ?? start),
  });
  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (element == null) return undefined;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const element = canvas.current;
    if (element === null) return;
    draw(element, width, stretches, start, span);
  }, [width, stretches, start, span, theme]);
  if (stretches.length === 0) return <p className="muted">It has not begun.</p>;
  const timeAt = (x: number): number => start + (Math.max(0, Math.min(width, x)) / Math.max(1, width)) * span;
  const found = (x: number, y: number): Stretch | undefined => {
    const lane = LANES[Math.floor(y / (LANE + GAP))]?.[0];
    const slack = (3 * span) / Math.max(1, width);
    const here = timeAt(x);
    return stretches.findLast((one) => one.lane === lane && one.start - slack <= here && one.end + slack >= here);
  };
  const scrub = (event: React.PointerEvent): void => {
    const box = event.currentTarget.getBoundingClientRect();
    const x = event.clientX - box.left;
    const one = found(x, event.clientY - box.top);
    const text = one === undefined ? duration(timeAt(x) - start) : `${duration(one.start - start)} · ${visible(one.label).text.slice(0, 80)} · ${duration(one.end - one.start)}${one.detail === "" ? "" : ` · ${visible(one.detail).text}`}`;
    setHover({ x, text });
    if (event.buttons === 1) onAt(timeAt(x));
  };
  const { modelMs, toolMs, waitMs } = report;
  return (
    <>
      <div
        className="timeline"
        role="slider"
        tabIndex={0}
        aria-label="Time in the rollout"
        aria-valuemin={0}
        aria-valuemax={Math.round(span)}
        aria-valuenow={at === null ? 0 : Math.round(at - start)}
        aria-valuetext={at === null ? "the whole" : `${duration(at - start)} of ${duration(span)}`}
        onPointerMove={scrub}
        onPointerDown={scrub}
        onPointerLeave={() => setHover(null)}
        onDoubleClick={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          const one = found(event.clientX - box.left, event.clientY - box.top);
          if (one?.ref != null) onOpen(one.lane, one.ref);
        }}
      >
        <canvas ref={canvas} height={HEIGHT} style={{ height: HEIGHT }} aria-hidden="true" />
        {at !== null && <span className="needle" style={{ left: `${(100 * (at - start)) / span}%` }} />}
        {hover !== null && <span className="tip" style={{ left: Math.max(90, Math.min(width - 90, hover.x)) }}>{hover.text}</span>}
      </div>
      <div className="line" style={{ justifyContent: "space-between", marginTop: 8 }}>
        <div className="legend">
          <span><i style={{ background: "var(--accent)" }} />agent</span>
          <span><i style={{ background: "var(--model)" }} />model {duration(modelMs)}</span>
          <span><i style={{ background: "var(--tool)" }} />tools {duration(toolMs)}</span>
          <span><i style={{ background: "var(--wait)" }} />neither {duration(waitMs)}</span>
          <span><i style={{ background: "var(--verify)" }} />verification</span>
          <span><i style={{ background: "var(--bad)" }} />failed</span>
        </div>
        <span className="faint" style={{ fontSize: 12 }}>
          {at === null ? "drag to scrub, double click to open" : <>at {duration(at - start)} <button type="button" className="button small ghost" onClick={() => onAt(null)}>whole</button></>}
        </span>
      </div>
    </>
  );
}

function rangeOf(stretches: readonly Stretch[]): readonly [number, number] {
  let start = Infinity;
  let end = -Infinity;
  for (const one of stretches) {
    if (one.start < start) ({ start } = one);
    if (one.end > end) ({ end } = one);
  }
  return stretches.length === 0 ? [0, 1] : [start, end];
}

function draw(element: HTMLCanvasElement, width: number, stretches: readonly Stretch[], start: number, span: number): void {
  const ratio = window.devicePixelRatio || 1;
  element.width = width * ratio;
  element.height = HEIGHT * ratio;
  const context = element.getContext("2d");
  if (context === null) return;
  context.scale(ratio, ratio);
  const holder = element.parentElement ?? element;
  const colour = Object.fromEntries(["--accent", "--model", "--tool", "--wait", "--verify", "--bad", "--raised", "--faint", "--line", "--panel"].map((name) => [name, resolved(holder, name)]));
  const x = (time: number): number => ((time - start) / span) * width;
  for (const [lane] of LANES.entries()) {
    context.fillStyle = colour["--raised"] ?? "";
    context.fillRect(0, lane * (LANE + GAP), width, LANE);
  }
  context.font = "11px system-ui";
  context.textBaseline = "middle";
  for (const one of stretches) {
    const lane = LANES.findIndex(([name]) => name === one.lane);
    const left = x(one.start);
    const wide = Math.max(1.5, x(one.end) - left - (one.lane === "phase" ? 1 : 0));
    const tone = !one.ok ? "--bad" : one.lane === "model" ? "--model" : one.lane === "tool" ? "--tool" : (PHASE_COLOURS[one.label] ?? "--wait");
    context.fillStyle = colour[tone] ?? "";
    context.globalAlpha = one.lane === "phase" ? 0.9 : 0.85;
    context.fillRect(left, lane * (LANE + GAP), wide, LANE);
    context.globalAlpha = 1;
    if (one.lane === "phase" && wide > 70) {
      context.fillStyle = tone === "--wait" ? (colour["--faint"] ?? "") : (colour["--panel"] ?? "");
      context.fillText(one.label, left + 7, lane * (LANE + GAP) + LANE / 2, wide - 12);
    }
  }
  context.fillStyle = colour["--faint"] ?? "";
  const ticks = Math.max(2, Math.floor(width / 130));
  for (let tick = 0; tick <= ticks; tick++) {
    context.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
    context.fillText(duration((span * tick) / ticks), (width * tick) / ticks, HEIGHT - 7);
  }
}
