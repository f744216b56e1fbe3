/** The conversation as the agent saw it. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState, type ReactNode, type RefObject } from "react";
import type { Conversation, MessageView, Position, RolloutReport } from "../../../src/server/runs/contract/rollout.ts";
import type { TraceNodeView, TraceView } from "../../../src/server/runs/contract/calls.ts";
import { getJson, query } from "../lib/api.ts";
import { clock } from "../lib/format.ts";
import { useData, useKeys, useParam, useSettled } from "../lib/hooks.ts";
import type { LiveCall } from "../lib/live-calls.ts";
import { usePages } from "../lib/pages-of.ts";
import { useAverageSize } from "../lib/sizes.ts";
import { Empty, Failed, Out, Skeleton } from "../parts/basics.tsx";
import { visible } from "../lib/hostile.ts";
import { LiveAnswer } from "./live-call.tsx";

const PAGE = 100;
/** Among so many messages at the end stands the last answer: what comes after it are results of its tools. */
const TAIL = 64;

interface Props {
  readonly rollout: string;
  readonly version: string;
  readonly at: number | null;
  readonly instruction: RolloutReport["instruction"];
  /** Model calls under way. */
  readonly live: readonly LiveCall[];
  readonly onCall: (call: number) => void;
}

export function ConversationView({ rollout, version, at, instruction, live, onCall }: Props): ReactNode {
  const [thread, setThread] = useParam("thread");
  const [find] = useParam("find");
  const { data: trace } = useData<TraceView>(`/v1/rollouts/${rollout}/trace`, { version });
  const threads = [...new Set(trace?.nodes.map((node) => node.thread) ?? [])];
  const pages = usePages<Conversation, MessageView>(`/v1/rollouts/${rollout}/conversation${query({ thread })}`, version, PAGE, ({ messages }) => messages);
  const scroller = useRef<HTMLDivElement>(null);
  const [cursor, setCursor] = useState(-1);
  const total = pages.total ?? 0;
  const virtual = useVirtualizer({ count: total, getScrollElement: () => scroller.current, ...useAverageSize(130), overscan: 5 });
  const items = virtual.getVirtualItems();
  pages.see(items[0]?.index ?? 0, items.at(-1)?.index ?? 0);
  const go = (to: number): void => {
    const next = Math.max(0, Math.min(total - 1, to));
    setCursor(next);
    virtual.scrollToIndex(next, { align: "start" });
  };
  useKeys({ j: () => go(cursor + 1), k: () => go(cursor - 1) });
  const settled = useSettled(at, 120);
  const target = useIndexAt(rollout, version, thread, settled, find);
  useEffect(() => {
    if (target !== null && target < total) go(target);
  }, [target, total > 0]);
  const answers = unrecorded(live, Array.from({ length: TAIL }, (_, back) => pages.at(total - 1 - back)?.call ?? -1)).map((call) => <LiveAnswer key={`${call.call} ${call.at}`} call={call} />);
  useTail(scroller, live);
  if (pages.error !== null && pages.total === null) return <Failed error={pages.error} />;
  if (pages.total === null) return <Skeleton lines={8} />;
  if (total === 0) {
    if (answers.length > 0) return <section className="card" aria-label="Conversation">{instruction !== null && <div className="message"><div className="who">task</div><div className="parts"><Out text={instruction.text} className="prose" /></div></div>}{answers}</section>;
    return instruction === null ? <Empty title="Nothing was said yet" /> : (
      <section className="card"><div className="message"><div className="who">task</div><div className="parts"><Out text={instruction.text} className="prose" /></div></div><Empty title="No conversation"><p>No model was called. What was done stands under Commands, how it went under Events.</p></Empty></section>
    );
  }
  return (
    <section className="card" aria-label="Conversation">
      {threads.length > 1 && (
        <div className="toolbar">
          <span className="muted">Conversation</span>
          <select className="input" aria-label="Conversation" value={thread} onChange={({ target: field }) => setThread(field.value)}>
            <option value="">main line</option>
            {threads.map((one) => {
              const nodes = trace?.nodes.filter((node) => node.thread === one) ?? [];
              return <option key={one} value={one}>thread {one}: {nodes[0]?.kind}, {nodes.length} {nodes.length === 1 ? "call" : "calls"}</option>;
            })}
          </select>
        </div>
      )}
      <div ref={scroller} tabIndex={0} role="group" aria-label="Messages" style={{ height: "min(76vh, 1000px)", overflow: "auto" }}>
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {items.map(({ index, start, key }) => {
            const message = pages.at(index);
            return (
              <div key={key} ref={virtual.measureElement} data-index={index} style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${start}px)` }}>
                {message === undefined ? <div className="message"><Skeleton lines={2} /></div> : <Message rollout={rollout} thread={thread} message={message} current={index === cursor} find={find} begun={message.role === "assistant" ? begunBy(trace, message.call) : []} onThread={setThread} onCall={onCall} />}
              </div>
            );
          })}
        </div>
        {answers}
      </div>
    </section>
  );
}

/** What is under way, or has ended and is not among the messages yet. */
function unrecorded(live: readonly LiveCall[], calls: readonly number[]): readonly LiveCall[] {
  const recorded = Math.max(...calls);
  return live.filter(({ call, ended }) => !ended || call > recorded);
}

/** Stays at the end where somebody has gone there. */
function useTail(scroller: RefObject<HTMLDivElement | null>, live: readonly LiveCall[]): void {
  const atEnd = useRef(true);
  useEffect(() => {
    const element = scroller.current;
    if (element === null) return undefined;
    const note = (): void => void (atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 48);
    element.addEventListener("scroll", note, { passive: true });
    return () => element.removeEventListener("scroll", note);
  });
  useEffect(() => {
    if (live.length > 0 && atEnd.current) scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  }, [live]);
}

/** The message that was said last at a time, or the first that holds a text. Asked of the server only when there is something to look for. */
function useIndexAt(rollout: string, version: string, thread: string, at: number | null, find: string): number | null {
  const wanted = at === null ? (find === "" ? null : query({ thread, find })) : query({ thread, at });
  const { data } = useData<Position>(wanted === null ? null : `/v1/rollouts/${rollout}/conversation-position${wanted}`, { version });
  return wanted === null ? null : (data?.index ?? null);
}

const WHO: Readonly<Record<string, string>> = { system: "system", user: "user", assistant: "agent", tool: "tool" };

function Message({ rollout, thread, message: cut, current, find, begun, onThread, onCall }: { readonly rollout: string; readonly thread: string; readonly message: MessageView; readonly current: boolean; readonly find: string; readonly begun: readonly TraceNodeView[]; readonly onThread: (thread: string) => void; readonly onCall: (call: number) => void }): ReactNode {
  const [whole, setWhole] = useState<MessageView | null>(null);
  const message = whole ?? cut;
  const isCut = message.characters > message.text.length || message.toolCalls.some((call) => call.characters > call.arguments.length);
  return (
    <article className={`message ${message.role}${current ? " at" : ""}`} aria-label={`${WHO[message.role]} ${message.index + 1}`}>
      <div className="who">
        <span>{WHO[message.role]}{message.isError && <span className="badtext"> error</span>}</span>
        <small>{clock(message.at)}</small>
        {message.call !== null && message.role === "assistant" && <button type="button" className="button small ghost" style={{ justifySelf: "start", padding: "0 6px", alignSelf: "flex-start" }} onClick={() => onCall(message.call ?? 0)}>call {message.call}</button>}
      </div>
      <div className="parts">
        {message.reasoning !== null && <details className="thought"><summary>thinking ({message.reasoning.length.toLocaleString("en")} characters)</summary><Out text={message.reasoning} className="prose" /></details>}
        {message.text !== "" && (find !== "" && message.text.toLowerCase().includes(find.toLowerCase()) ? <Marked text={message.text} find={find} /> : <Out text={message.text} most={6_000} />)}
        {message.images > 0 && <span className="chip">{message.images} {message.images === 1 ? "image" : "images"}</span>}
        {message.toolCalls.map((call, index) => (
          <div className="call" key={`${call.id}${index}`}>
            <div><span className="goodtext">▸</span> {visible(call.name).text}<span className="grow" /><span className="faint mono" style={{ fontSize: 11 }}>{visible(call.id).text.slice(0, 24)}</span></div>
            <ToolArguments text={call.arguments} />
          </div>
        ))}
        {begun.map(({ thread: of, kind }) => <button key={of} type="button" className="button small" style={{ alignSelf: "flex-start" }} onClick={() => onThread(String(of))}>began thread {of} ({kind})</button>)}
        {isCut && whole === null && <button type="button" className="button small" style={{ alignSelf: "flex-start" }} onClick={() => void getJson<MessageView>(`/v1/rollouts/${rollout}/conversation/${message.index}${query({ thread })}`).then(setWhole)}>Show all of it ({message.characters.toLocaleString("en")} characters)</button>}
      </div>
    </article>
  );
}

/** The first calls of the conversations that a call's tools have begun. */
function begunBy(trace: TraceView | undefined, call: number | null): readonly TraceNodeView[] {
  return trace?.nodes.filter(({ spawnedBy, relation }) => call !== null && spawnedBy === call && relation === "root") ?? [];
}

/** Arguments are mostly JSON with one long text in it: that text is shown as it is. */
function ToolArguments({ text }: { readonly text: string }): ReactNode {
  let fields: readonly (readonly [string, unknown])[] | null = null;
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) fields = Object.entries(value);
  } catch {
    fields = null;
  }
  if (fields === null || fields.length === 0) return <Out text={text} />;
  const [only] = fields;
  if (fields.length === 1 && typeof only?.[1] === "string") return <Out text={only[1]} />;
  return (
    <dl className="facts" style={{ padding: "8px 12px" }}>
      {fields.map(([name, value]) => (
        <div key={name} style={{ display: "contents" }}>
          <dt className="mono">{visible(name).text}</dt>
          <dd><Out text={typeof value === "string" ? value : JSON.stringify(value, null, 2)} className="flat" /></dd>
        </div>
      ))}
    </dl>
  );
}

function Marked({ text, find }: { readonly text: string; readonly find: string }): ReactNode {
  const shown = visible(text.slice(0, 40_000)).text;
  const at = shown.toLowerCase().indexOf(find.toLowerCase());
  if (at === -1) return <Out text={text} />;
  return <pre className="out">{shown.slice(0, at)}<mark>{shown.slice(at, at + find.length)}</mark>{shown.slice(at + find.length)}</pre>;
}
