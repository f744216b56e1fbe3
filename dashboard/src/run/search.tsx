/** Text in everything that the agents of a run said, saw and did; hits come as they are found. */
import { useEffect, useState, type ReactNode } from "react";
import { Link } from "wouter";
import type { SearchHit, SearchLine } from "../../../src/server/runs/contract/search.ts";
import { query, request } from "../lib/api.ts";
import { visible } from "../lib/hostile.ts";
import { useParam, useSettled } from "../lib/hooks.ts";
import { Card, Empty, Failed, SaveShown } from "../parts/basics.tsx";

interface Found {
  readonly hits: readonly SearchHit[];
  readonly end: Exclude<SearchLine, { type: "hit" }> | null;
  readonly error: Error | null;
}

export function RunSearch({ run }: { readonly run: string }): ReactNode {
  const [q, setQ] = useParam("q");
  const wanted = useSettled(q.trim(), 350);
  const [found, setFound] = useState<Found>({ hits: [], end: null, error: null });
  useEffect(() => {
    setFound({ hits: [], end: null, error: null });
    if (wanted.length < 2) return undefined;
    const ended = new AbortController();
    void search(run, wanted, ended.signal, setFound);
    return () => ended.abort();
  }, [run, wanted]);
  const { hits, end, error } = found;
  const byRollout = Map.groupBy(hits, ({ rollout }) => rollout);
  return (
    <section className="card" aria-label="Search">
      <div className="toolbar">
        <input className="input" type="search" style={{ maxWidth: 560 }} autoFocus placeholder="Find text in conversations, commands, outputs and verifiers" aria-label="Find text" value={q} onChange={({ target }) => setQ(target.value)} />
        <span className="muted" role="status">
          {wanted.length < 2 ? "at least two characters" : `${hits.length.toLocaleString("en")} hits in ${byRollout.size.toLocaleString("en")} rollouts${end === null ? " …" : end.type === "progress" ? `, ${end.rollouts.toLocaleString("en")} of ${end.of.toLocaleString("en")} read …` : end.stopped === "complete" ? `, all ${end.of.toLocaleString("en")} read` : `; stopped after ${end.rollouts.toLocaleString("en")} of ${end.of.toLocaleString("en")}: that is enough for one search`}`}
        </span>
        <span className="grow" />
        {hits.length > 0 && <SaveShown name={`${run}-hits`} documents={hits} />}
      </div>
      {error !== null ? <Failed error={error} /> : hits.length === 0 && end?.type === "end" ? <Empty title="Nobody said that" /> : (
        <div className="stack" style={{ padding: 14 }}>
          {[...byRollout].map(([rollout, ones]) => (
            <Card key={rollout} title={<Link className="link" href={`/rollouts/${rollout}`}>{flat(ones[0]?.task ?? "")} · attempt {ones[0]?.attempt}</Link>}>
              {ones.map((hit, index) => (
                <Link key={index} href={hrefOf(hit)} style={{ display: "block", padding: "3px 0" }}>
                  <span className="chip">{hit.ref !== null && hit.where === "conversation" ? "call" : hit.where}{hit.ref === null ? "" : ` ${hit.ref}`}</span>{" "}
                  <span className="out" style={{ fontSize: 12.5 }}>{flat(hit.before)}<mark>{flat(hit.match)}</mark>{flat(hit.after)}</span>
                </Link>
              ))}
            </Card>
          ))}
        </div>
      )}
    </section>
  );
}

function hrefOf({ rollout, where, ref, match }: SearchHit): string {
  if (where === "command" || where === "output") return `/rollouts/${rollout}/commands${query({ n: ref })}`;
  if (where === "verifier") return `/rollouts/${rollout}/verdict`;
  return `/rollouts/${rollout}/conversation${query({ find: match })}`;
}

const flat = (text: string): string => visible(text).text.replaceAll(/\s+/g, " ");

async function search(run: string, q: string, signal: AbortSignal, set: (found: Found) => void): Promise<void> {
  const hits: SearchHit[] = [];
  let end: Found["end"] = null;
  try {
    const response = await request(`/v1/runs/${run}/search${query({ q })}`, { signal });
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const part = await reader?.read();
      if (part === undefined || part.done) break;
      const lines = (rest + part.value).split("\n");
      rest = lines.pop() ?? "";
      for (const text of lines) {
        const line = JSON.parse(text) as SearchLine;
        if (line.type === "hit") hits.push(line.hit);
        else end = line;
      }
      set({ hits: [...hits], end, error: null });
    }
  } catch (error) {
    if (!signal.aborted) set({ hits, end, error: error as Error });
  }
}
