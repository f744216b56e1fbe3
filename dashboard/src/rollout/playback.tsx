/** The commands of a rollout as somebody at its terminal would have seen them: played at their own pace or faster, with the needle of the timeline. */
import { useEffect, useRef, useState, type ReactNode } from "react";
import type { CommandsPage, CommandView } from "../../../src/server/runs/contract/rollout.ts";
import { request } from "../lib/api.ts";
import { duration } from "../lib/format.ts";
import { inOrder } from "../lib/hostile.ts";
import { useData } from "../lib/hooks.ts";
import { Empty, Failed, Skeleton } from "../parts/basics.tsx";
import { openTerminal, type OpenTerminal } from "../parts/terminal.tsx";

const SPEEDS = [1, 4, 16, 64] as const;
/** Waiting for the model is not worth looking at. */
const LONGEST_PAUSE_MS = 2_000;
const OUTPUT_BYTES = 256 * 1024;

export function Playback({ rollout, version, at, onAt }: { readonly rollout: string; readonly version: string; readonly at: number | null; readonly onAt: (at: number) => void }): ReactNode {
  const { data, error } = useData<CommandsPage>(`/v1/rollouts/${rollout}/commands?limit=1000`, { version });
  const place = useRef<HTMLDivElement>(null);
  const open = useRef<OpenTerminal | null>(null);
  /** Commands that are on the screen. */
  const written = useRef(0);
  const [shown, setShown] = useState(0);
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState<number>(16);
  const commands = data?.commands ?? [];
  const total = commands.length;

  useEffect(() => {
    if (place.current === null || total === 0) return undefined;
    open.current = openTerminal(place.current, { interactive: false });
    open.current.fit();
    written.current = 0;
    setShown(total);
    return () => {
      open.current?.close();
      open.current = null;
    };
  }, [total > 0, rollout]);

  // The needle of the timeline says how much is shown.
  useEffect(() => {
    if (at === null || playing) return;
    setShown(commands.findLastIndex((command) => Date.parse(command.at) <= at) + 1);
  }, [at, total, playing]);

  useEffect(() => {
    const { terminal } = open.current ?? { terminal: null };
    if (terminal === null) return undefined;
    const stopped = new AbortController();
    if (shown < written.current) {
      terminal.reset();
      written.current = 0;
    }
    void (async () => {
      for (const command of commands.slice(written.current, shown)) {
        const output = await outputOf(rollout, command);
        // Somebody has gone elsewhere meanwhile; what was written stays.
        if (stopped.signal.aborted) return;
        terminal.write(promptOf(command));
        terminal.write(inOrder(new TextDecoder().decode(output)));
        terminal.write(endOf(command));
        written.current++;
      }
    })();
    return () => stopped.abort();
  }, [shown, total]);

  useEffect(() => {
    if (!playing) return undefined;
    if (shown >= total) {
      setPlaying(false);
      return undefined;
    }
    const now = commands[shown - 1];
    const next = commands[shown];
    const pause = now === undefined || next === undefined ? 0 : Math.min(LONGEST_PAUSE_MS, Math.max(0, Date.parse(next.at) - Date.parse(now.at)));
    const timer = setTimeout(() => {
      setShown(shown + 1);
      if (next !== undefined) onAt(Date.parse(next.at));
    }, Math.max(60, pause / speed));
    return () => clearTimeout(timer);
  }, [playing, shown, speed, total]);

  if (data === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  if (total === 0) return <Empty title="There is nothing to play"><p>No command was recorded of this rollout.</p></Empty>;
  const begin = Date.parse(commands[0]?.at ?? "");
  const here = commands[Math.max(0, shown - 1)];
  return (
    <section className="card" aria-label="Terminal">
      <div className="toolbar">
        <button type="button" className="button primary small" onClick={() => { if (!playing && shown >= total) setShown(0); setPlaying(!playing); }}>{playing ? "Pause" : "Play"}</button>
        <div className="buttons" role="group" aria-label="Speed">{SPEEDS.map((one) => <button key={one} type="button" className="button small" aria-pressed={speed === one} onClick={() => setSpeed(one)}>{one}×</button>)}</div>
        <input type="range" className="grow" aria-label="Command" min={0} max={total} value={shown} onChange={({ target }) => { setPlaying(false); setShown(Number(target.value)); const command = commands[Number(target.value) - 1]; if (command !== undefined) onAt(Date.parse(command.at)); }} />
        <span className="muted">{shown} / {total}{here === undefined ? "" : `, at ${duration(Date.parse(here.at) - begin)}`}</span>
      </div>
      <div ref={place} data-terminal style={{ height: "min(64vh, 760px)", padding: 8, background: "#14151b", borderRadius: "0 0 9px 9px" }} />
    </section>
  );
}

// oxlint-disable-next-line no-control-regex -- control characters are what this looks for
const CONTROLS = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/g;

function promptOf({ command }: CommandView): string {
  return `\u001b[38;5;141m$\u001b[0m \u001b[1m${inOrder(command.replaceAll(CONTROLS, ""))}\u001b[0m\n`;
}

/** Whatever the output has left switched on ends with it. */
function endOf({ code, ended }: CommandView): string {
  return `\u001b[0m\u001b[?25h\u001b[?1049l${code === 0 ? "" : `\u001b[38;5;203m[${ended === "exited" ? `exit ${code}` : ended}]\u001b[0m\n`}`;
}

async function outputOf(rollout: string, command: CommandView): Promise<Uint8Array> {
  const read = async (stream: "stdout" | "stderr", kept: number, first: string): Promise<Uint8Array> => {
    if (kept === 0) return new Uint8Array();
    if (kept <= 4_096 && !first.includes("\ufffd")) return new TextEncoder().encode(first);
    return new Uint8Array(await (await request(`/v1/rollouts/${rollout}/commands/${command.number}/${stream}?length=${OUTPUT_BYTES}`)).arrayBuffer());
  };
  const parts = [await read("stdout", command.stdoutKept, command.stdout), await read("stderr", command.stderrKept, command.stderr)];
  const all = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  all.set(parts[0] ?? new Uint8Array());
  all.set(parts[1] ?? new Uint8Array(), parts[0]?.length ?? 0);
  return all.length > 0 && all.at(-1) !== 10 ? new Uint8Array([...all, 10]) : all;
}
