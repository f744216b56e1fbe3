/** Each command with its output, as it ran. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState, type ReactNode } from "react";
import type { CommandsPage, CommandView, Position } from "../../../src/server/runs/contract/rollout.ts";
import { request } from "../lib/api.ts";
import { bytes, clock, duration } from "../lib/format.ts";
import { useData, useKeys, useParam, useSettled } from "../lib/hooks.ts";
import { usePages } from "../lib/pages-of.ts";
import { useAverageSize } from "../lib/sizes.ts";
import { Copy, Empty, Failed, Out, Pill, Skeleton } from "../parts/basics.tsx";

const PAGE = 50;
const RANGE = 256 * 1024;

export function Commands({ rollout, version, at }: { readonly rollout: string; readonly version: string; readonly at: number | null }): ReactNode {
  const [n, setN] = useParam("n");
  const path = `/v1/rollouts/${rollout}/commands`;
  const pages = usePages<CommandsPage, CommandView>(path, version, PAGE, ({ commands }) => commands);
  const scroller = useRef<HTMLDivElement>(null);
  const total = pages.total ?? 0;
  const virtual = useVirtualizer({ count: total, getScrollElement: () => scroller.current, ...useAverageSize(120), overscan: 4 });
  const items = virtual.getVirtualItems();
  pages.see(items[0]?.index ?? 0, items.at(-1)?.index ?? 0);
  const current = n === "" ? -1 : Number(n) - 1;
  const go = (to: number): void => setN(String(1 + Math.max(0, Math.min(total - 1, to))));
  useKeys({ j: () => go(current + 1), k: () => go(current - 1) });
  const settled = useSettled(at, 120);
  const { data: position } = useData<Position>(settled === null ? null : `${path}-position?at=${settled}`, { version });
  const found = settled === null ? -1 : (position?.index ?? -1);
  const target = found >= 0 ? found : current;
  useEffect(() => {
    if (target >= 0 && target < total) virtual.scrollToIndex(target, { align: "start" });
  }, [target, total > 0]);
  if (pages.error !== null && pages.total === null) return <Failed error={pages.error} />;
  if (pages.total === null) return <Skeleton lines={8} />;
  if (total === 0) return <Empty title="No command was recorded"><p>Agent CLIs run their own; what they did stands in the conversation.</p></Empty>;
  return (
    <section className="card" aria-label="Commands">
      <div ref={scroller} tabIndex={0} role="group" aria-label="Commands" style={{ height: "min(76vh, 1000px)", overflow: "auto" }}>
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {items.map(({ index, start, key }) => {
            const command = pages.at(index);
            return (
              <div key={key} ref={virtual.measureElement} data-index={index} style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${start}px)` }}>
                {command === undefined ? <div className="message"><Skeleton lines={2} /></div> : <Command rollout={rollout} command={command} current={index === target} />}
              </div>
            );
          })}
        </div>
      </div>
    </section>
  );
}

function Command({ rollout, command, current }: { readonly rollout: string; readonly command: CommandView; readonly current: boolean }): ReactNode {
  const good = command.ended === "exited" && command.code === 0;
  const cause = typeof command.cause === "string" ? command.cause : command.cause === null ? "" : JSON.stringify(command.cause);
  return (
    <article className={`message${current ? " at" : ""}`} aria-label={`Command ${command.number}`}>
      <div className="who">
        <span className="mono">{command.number}</span>
        <small>{clock(command.at)}</small>
        <small>{duration(command.durationMs)}</small>
      </div>
      <div className="parts">
        <div className="line" style={{ alignItems: "flex-start", flexWrap: "nowrap" }}>
          <span className="faint mono">$</span>
          <div className="grow"><Out text={command.command} /></div>
          <Pill tone={good ? "good" : "bad"}>{command.ended === "exited" ? `exit ${command.code}` : command.ended}{cause === "" ? "" : ` ${cause}`}</Pill>
          <Copy text={command.command} />
        </div>
        <Output rollout={rollout} command={command} stream="stdout" />
        <Output rollout={rollout} command={command} stream="stderr" />
      </div>
    </article>
  );
}

function Output({ rollout, command, stream }: { readonly rollout: string; readonly command: CommandView; readonly stream: "stdout" | "stderr" }): ReactNode {
  const [more, setMore] = useState("");
  const [read, setRead] = useState<number | null>(null);
  const first = stream === "stdout" ? command.stdout : command.stderr;
  const kept = stream === "stdout" ? command.stdoutKept : command.stderrKept;
  const written = stream === "stdout" ? command.stdoutBytes : command.stderrBytes;
  if (kept === 0) return written === 0 ? null : <span className="faint">{stream}: {bytes(written)}, of which nothing was kept</span>;
  const done = read ?? Math.min(kept, 4096);
  const load = async (): Promise<void> => {
    const from = read ?? 0;
    const part = await (await request(`/v1/rollouts/${rollout}/commands/${command.number}/${stream}?offset=${from}&length=${RANGE}`)).arrayBuffer();
    setMore(more + new TextDecoder().decode(part));
    setRead(from + part.byteLength);
  };
  return (
    <div className="stack" style={{ gap: 4 }}>
      {stream === "stderr" && <span className="warntext" style={{ fontSize: 12 }}>stderr</span>}
      <Out text={read === null ? first : more} box most={read === null ? 8_192 : 40_000} />
      <div className="line faint" style={{ fontSize: 12 }}>
        {kept > done && <button type="button" className="button small" onClick={() => void load()}>Read on ({bytes(kept - done)} left)</button>}
        {written > kept && <span>{bytes(written)} were written, the agent saw {bytes(kept)}</span>}
      </div>
    </div>
  );
}
