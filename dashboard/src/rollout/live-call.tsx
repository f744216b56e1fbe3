/** The answer of a model call while it is made. */
import type { ReactNode } from "react";
import { clock, duration } from "../lib/format.ts";
import { useNow } from "../lib/hooks.ts";
import { visible } from "../lib/hostile.ts";
import type { LiveCall } from "../lib/live-calls.ts";

/** Characters of a block that are drawn while it grows: its end. */
const TAIL = 8_000;

export function LiveAnswer({ call: { call, at, blocks, ended } }: { readonly call: LiveCall }): ReactNode {
  const now = useNow();
  return (
    <article className="message assistant" aria-label={`agent, call ${call}, under way`} aria-busy={!ended}>
      <div className="who">
        <span>agent</span>
        <small>{clock(new Date(at).toISOString())}</small>
        {!ended && <span className="pill accent live" style={{ alignSelf: "flex-start" }}><span className="dot" />call {call}</span>}
      </div>
      <div className="parts">
        {blocks.length === 0 && <span className="faint">nothing has come of the answer yet, for {duration(Math.max(0, now - at))}</span>}
        {blocks.map(({ block, type, name, text }) =>
          type === "tool_call" ? <div className="call" key={block}><div><span className="goodtext">▸</span> {visible(name ?? "").text}</div><Growing text={text} /></div>
            : type === "reasoning" ? <div className="thought" key={block}><Growing text={text} /></div>
            : <Growing key={block} text={text} />,
        )}
      </div>
    </article>
  );
}

function Growing({ text }: { readonly text: string }): ReactNode {
  return <pre className="out">{text.length > TAIL ? "… " : ""}{visible(text.slice(-TAIL)).text}</pre>;
}
