/** Lines over time. uPlot draws; colours are those of the theme, and follow it. */
import { useEffect, useRef, useState, type ReactNode } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, moment } from "../lib/format.ts";

export interface Line {
  readonly label: string;
  /** A custom property of the theme. */
  readonly colour: string;
  readonly values: readonly (number | null)[];
  readonly fill?: boolean;
  readonly scale?: "y" | "y2";
  readonly format?: (value: number) => string;
}

const HEIGHT = 190;
// oxlint-disable-next-line typescript/no-unsafe-enum-assignment -- uPlot declares its sides as an enumeration that exists for the compiler alone
const RIGHT = 1 as uPlot.Axis.Side;

export function Chart({ times, lines, label, yMax }: { readonly times: readonly number[]; readonly lines: readonly Line[]; readonly label: string; readonly yMax?: number }): ReactNode {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useThemeMark();
  const shape = `${theme} ${lines.map(({ label: name }) => name).join()} ${yMax ?? ""}`;
  const data = [times.map((at) => at / 1000), ...lines.map(({ values }) => values as (number | null)[])] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    const element = place.current;
    if (element === null) return undefined;
    const colour = (name: string): string => resolved(element, name);
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" } as const;
    const second = lines.some(({ scale }) => scale === "y2");
    const made = new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height: HEIGHT,
        padding: [10, second ? 0 : 28, 0, 0],
        cursor: { points: { size: 7 }, drag: { x: false, y: false } },
        legend: { show: false },
        scales: { x: { time: true }, y: yMax === undefined ? { range: (_u, _min, max) => [0, max > 0 ? max * 1.1 : 1] } : { range: [0, yMax] }, y2: { range: (_u, _min, max) => [0, max > 0 ? max * 1.15 : 1] } },
        axes: [{ ...axis, values: (_u, splits) => splits.map((at) => timeLabel(at, latest.current[0])), space: 80, size: 30 }, { ...axis, size: 44 }, ...(second ? [{ ...axis, scale: "y2", side: RIGHT, size: 44, grid: { show: false } }] : [])],
        series: [{}, ...lines.map(({ label: name, colour: tone, fill = false, scale = "y" }) => ({ label: name, scale, stroke: colour(tone), width: 1.75, spanGaps: true, points: { show: false }, ...(fill ? { fill: `${colour(tone)}22` } : {}) }))],
      },
      latest.current,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: Math.max(200, element.clientWidth), height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
    // What lines say about themselves is in `shape`.
  }, [shape]);
  useEffect(() => plot.current?.setData(latest.current));

  return (
    <figure aria-label={label}>
      <div className="legend" style={{ paddingBottom: 4 }}>
        {lines.map(({ label: name, colour, values, format }) => {
          const last = values.findLast((value) => value !== null) ?? null;
          return (
            <span key={name}>
              <i style={{ background: `var(${colour})` }} />
              {name}
              {last !== null && format !== undefined && <b> {format(last)}</b>}
            </span>
          );
        })}
      </div>
      <div className="chart" ref={place} aria-hidden="true" />
    </figure>
  );
}

/** As much of the time as tells points of such a span apart; seconds since 1970. */
function timeLabel(at: number, times: ArrayLike<number>): string {
  const span = (times[times.length - 1] ?? 0) - (times[0] ?? 0);
  if (span > 2 * 86_400) return moment(at * 1000);
  return clock(at * 1000).slice(0, span < 600 ? 8 : 5);
}

/** A canvas takes colours that are worked out: as hexadecimal digits, so that transparency can be added. */
export function resolved(element: Element, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = name.startsWith("--") ? `var(${name})` : name;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  const [r = 0, g = 0, b = 0] = (color.match(/[\d.]+/g) ?? []).map(Number);
  return `#${[r, g, b].map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`;
}

/** Changes when the theme does. */
export function useThemeMark(): string {
  const read = (): string => `${document.documentElement.dataset["theme"] ?? ""}${matchMedia("(prefers-color-scheme: dark)").matches}`;
  const [mark, setMark] = useState(read);
  useEffect(() => {
    const update = (): void => setMark(read());
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", update);
    const observer = new MutationObserver(update);
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      media.removeEventListener("change", update);
      observer.disconnect();
    };
  }, []);
  return mark;
}
