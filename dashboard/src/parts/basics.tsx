/** Small parts of every page. */
import { useEffect, useRef, useState, type ReactNode } from "react";
import { Link } from "wouter";
import type { IntervalView, RunStatus } from "../../../src/server/runs/contract/common.ts";
import { ApiError, saveShown, setKey } from "../lib/api.ts";
import { percent, reward as rewardText } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { toneOf, PHASE_WORDS, type Tone } from "../lib/outcomes.ts";

export function Pill({ tone = "", live = false, children }: { readonly tone?: Tone; readonly live?: boolean; readonly children: ReactNode }): ReactNode {
  return (
    <span className={`pill ${tone}${live ? " live" : ""}`}>
      {live && <span className="dot" />}
      {children}
    </span>
  );
}

const STATUS_TONES: Readonly<Record<RunStatus, Tone>> = { running: "accent", finished: "good", interrupted: "warn", killed: "bad", damaged: "bad", reading: "" };

export function StatusPill({ status }: { readonly status: RunStatus }): ReactNode {
  return (
    <Pill tone={STATUS_TONES[status]} live={status === "running"}>
      {status}
    </Pill>
  );
}

/** How a rollout ended, or what it does now. */
export function OutcomePill({ outcome, reward, phase }: { readonly outcome: string | null; readonly reward: number | null; readonly phase: string }): ReactNode {
  if (outcome === null) return <Pill tone={phase === "planned" ? "" : "accent"} live={phase !== "planned"}>{PHASE_WORDS[phase] ?? phase}</Pill>;
  const tone = toneOf(outcome, reward);
  if (outcome !== "scored") return <Pill tone={tone}>{outcome.replaceAll("_", " ")}</Pill>;
  return <Pill tone={tone}>{tone === "good" ? "passed" : reward === 0 ? "failed" : "partial"}</Pill>;
}

export function Reward({ value }: { readonly value: number | null }): ReactNode {
  const tone = value === null ? "faint" : value >= 1 ? "goodtext" : value > 0 ? "warntext" : "badtext";
  return <span className={tone}>{rewardText(value)}</span>;
}

export function Card({ title, actions, children, flush = false, label }: { readonly title?: ReactNode; readonly actions?: ReactNode; readonly children: ReactNode; readonly flush?: boolean; readonly label?: string }): ReactNode {
  return (
    <section className="card" aria-label={label ?? (typeof title === "string" ? title : undefined)}>
      {title !== undefined && (
        <header>
          <h2>{title}</h2>
          {actions}
        </header>
      )}
      {flush ? children : <div className="body">{children}</div>}
    </section>
  );
}

export function Kpi({ label, value, note, tone = "" }: { readonly label: string; readonly value: ReactNode; readonly note?: ReactNode; readonly tone?: Tone }): ReactNode {
  return (
    <div className="kpi">
      <span className="label">{label}</span>
      <span className={`value ${tone === "" ? "" : `${tone}text`}`}>{value}</span>
      <span className="note">{note ?? "\u00a0"}</span>
    </div>
  );
}

export function Crumbs({ path }: { readonly path: readonly (readonly [string, string | null])[] }): ReactNode {
  return (
    <nav className="crumbs" aria-label="Breadcrumbs">
      {path.map(([name, href], index) => (
        <span key={`${index}${name}`}>
          {index > 0 && <span aria-hidden="true">/ </span>}
          {href === null ? visible(name).text : <Link href={href}>{visible(name).text}</Link>}
        </span>
      ))}
    </nav>
  );
}

export function Copy({ text, children = "Copy" }: { readonly text: string; readonly children?: ReactNode }): ReactNode {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      className="button small ghost"
      onClick={() => {
        void navigator.clipboard.writeText(text).then(() => {
          setDone(true);
          setTimeout(() => setDone(false), 1_500);
        });
      }}
    >
      {done ? "Copied" : children}
    </button>
  );
}

/** What is shown, as a file. */
export function SaveShown({ name, documents }: { readonly name: string; readonly documents: unknown }): ReactNode {
  return <button type="button" className="button small" title="What is shown, as a JSON document" onClick={() => saveShown(documents, `${name}.json`)}>Save</button>;
}

/** Text of an agent: never more than text, long ones in pieces. */
export function Out({ text, box = false, most = 4_000, className = "" }: { readonly text: string; readonly box?: boolean; readonly most?: number; readonly className?: string }): ReactNode {
  const [shownTo, setShownTo] = useState(most);
  const { text: plain, sequences } = visible(text.slice(0, shownTo));
  return (
    <>
      <pre className={`out${box ? " box" : ""} ${className}`} tabIndex={box ? 0 : undefined}>
        {plain}
      </pre>
      {(text.length > shownTo || sequences > 0) && (
        <div className="line faint">
          {text.length > shownTo && (
            <button type="button" className="button small" onClick={() => setShownTo(shownTo * 8)}>
              Show more ({(text.length - shownTo).toLocaleString("en")} characters left)
            </button>
          )}
          {sequences > 0 && <small>{sequences} control {sequences === 1 ? "sequence" : "sequences"} not shown</small>}
        </div>
      )}
    </>
  );
}

export function Skeleton({ lines = 4 }: { readonly lines?: number }): ReactNode {
  return (
    <div className="stack" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, index) => (
        <div key={index} className="skeleton" style={{ width: `${92 - ((index * 17) % 40)}%`, height: 16 }} />
      ))}
    </div>
  );
}

export function Empty({ title, children }: { readonly title: string; readonly children?: ReactNode }): ReactNode {
  return (
    <div className="notice">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** What went wrong, and what to do about it. */
export function Failed({ error }: { readonly error: Error }): ReactNode {
  const problem = error instanceof ApiError ? error : null;
  if (problem?.status === 401) return <AskKey />;
  return (
    <div className="notice" role="alert">
      <h2>{problem?.status === 404 ? "It is not there (any more)" : problem?.status === 0 ? "The server does not answer" : "That did not work"}</h2>
      <p>{visible(error.message).text}</p>
      {problem?.fix != null && <p className="faint">{visible(problem.fix).text}</p>}
    </div>
  );
}

function AskKey(): ReactNode {
  const [value, setValue] = useState("");
  return (
    <form
      className="notice"
      onSubmit={(event) => {
        event.preventDefault();
        setKey(value.trim());
        location.reload();
      }}
    >
      <h2>This server asks for its key</h2>
      <p>It said at its start where the key is; it stays in this tab.</p>
      <div className="line">
        <input className="input" type="password" aria-label="Key" autoComplete="off" value={value} onChange={({ target }) => setValue(target.value)} />
        <button className="button primary" type="submit" disabled={value.trim() === ""}>
          Open
        </button>
      </div>
    </form>
  );
}

export function Tabs({ tabs, current, href }: { readonly tabs: readonly (readonly [id: string, name: string, count?: number | null])[]; readonly current: string; readonly href: (id: string) => string }): ReactNode {
  const row = useRef<HTMLElement>(null);
  // On a narrow screen not all of them have room.
  useEffect(() => {
    const { offsetLeft = 0 } = row.current?.querySelector<HTMLElement>("[aria-current]") ?? {};
    row.current?.scrollTo({ left: offsetLeft - row.current.offsetLeft - 60 });
  }, [current]);
  return (
    <nav className="tabs" aria-label="Views" ref={row}>
      {tabs.map(([id, name, number]) => (
        <Link key={id} href={href(id)} aria-current={id === current ? "page" : undefined} replace>
          {name}
          {number != null && <span className="count">{number.toLocaleString("en")}</span>}
        </Link>
      ))}
    </nav>
  );
}

/** A value on a scale from 0 to 1 with how sure it is. */
export function BarRow({ name: given, value, interval, note, colour, href }: { readonly name: string; readonly value: number | null; readonly interval?: Pick<IntervalView, "low" | "high"> | null; readonly note: ReactNode; readonly colour?: string; readonly href?: string }): ReactNode {
  const name = visible(given).text;
  const at = (x: number): string => `${100 * Math.max(0, Math.min(1, x))}%`;
  return (
    <div className="barrow">
      {href === undefined ? (
        <span className="ellipsis" title={name}>{name}</span>
      ) : (
        <Link className="ellipsis link" href={href} title={name}>{name}</Link>
      )}
      <span className="track" role="img" aria-label={`${name}: ${value === null ? "nothing" : percent(value)}${interval == null ? "" : `, between ${percent(interval.low)} and ${percent(interval.high)}`}`}>
        {value !== null && <span className="fill" style={{ width: at(value), ...(colour === undefined ? {} : { background: colour }) }} />}
        {interval != null && <span className="whisker" style={{ left: at(interval.low), width: `calc(${at(interval.high)} - ${at(interval.low)})` }} />}
      </span>
      <span className="right muted">{note}</span>
    </div>
  );
}
