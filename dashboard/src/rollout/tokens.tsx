/** Samples, token by token: what is trained, how likely each token was, which version of the policy sampled it. */
import { keepPreviousData, useQueries } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useEffect, useRef, useState, type ReactNode } from "react";
import type { SampleHead, SamplesView, TokensPage } from "../../../src/server/runs/contract/calls.ts";
import { getJson, query } from "../lib/api.ts";
import { count, percent } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useKeys, useParam } from "../lib/hooks.ts";
import { Card, Empty, Failed, Pill, Skeleton } from "../parts/basics.tsx";
import { resolved, useThemeMark } from "../parts/chart.tsx";

const ROW_TOKENS = 32;
const PAGE = 4_096;
type Mode = "mask" | "logprob" | "version";

export function Tokens({ rollout, version, onCall }: { readonly rollout: string; readonly version: string; readonly onCall: (call: number) => void }): ReactNode {
  const [builder, setBuilder] = useParam("builder", "prefix-merge");
  const [sample, setSample] = useParam("sample", "0");
  const [mode, setMode] = useParam("colour", "mask");
  const { data, error } = useData<SamplesView>(`/v1/rollouts/${rollout}/samples${query({ builder })}`, { version });
  useKeys({ m: () => setMode("mask"), p: () => setMode("logprob"), v: () => setMode("version") });
  if (data === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  const index = Math.min(Number(sample) || 0, Math.max(0, data.samples.length - 1));
  const head = data.samples[index];
  return (
    <>
      <Ledger data={data} />
      {head === undefined ? <Empty title="There is nothing to train on"><p>{data.ledger.sampled === 0 ? "No token was sampled." : "Every sampled token was dropped: the account says why."}</p></Empty> : (
        <section className="card" aria-label="Tokens">
          <div className="toolbar">
            <label className="line">Sample <select className="input" value={index} onChange={({ target }) => setSample(target.value)}>{data.samples.map((one, at) => <option key={at} value={at}>{at + 1}: {one.kind}, {count(one.tokens)} tokens, {count(one.trained)} trained</option>)}</select></label>
            <label className="line">Cut by <select className="input" value={builder} onChange={({ target }) => { setBuilder(target.value); setSample("0"); }}>{["prefix-merge", "realign", "per-call"].map((one) => <option key={one}>{one}</option>)}</select></label>
            <span className="grow" />
            <div className="buttons" role="group" aria-label="Colour by">
              {(["mask", "logprob", "version"] as const).map((one) => <button key={one} type="button" className="button small" aria-pressed={mode === one} onClick={() => setMode(one)}>{one === "mask" ? "Trained" : one === "logprob" ? "Probability" : "Version"}</button>)}
            </div>
          </div>
          <TokenText key={`${builder}${index}`} rollout={rollout} builder={builder} index={index} head={head} data={data} mode={mode as Mode} version={version} onCall={onCall} />
        </section>
      )}
    </>
  );
}

/** Where the name of a cause alone does not say it. */
const CAUSES: Readonly<Record<string, string>> = { kind: "of side calls and probes", incomplete: "of calls that broke off", no_tokens: "without ids", no_logprobs: "without log probabilities" };

function Ledger({ data: { ledger, samples } }: { readonly data: SamplesView }): ReactNode {
  const parts = (counts: Readonly<Record<string, number>>): string => Object.entries(counts).filter(([, number]) => number > 0).map(([name, number]) => `${number.toLocaleString("en")} ${CAUSES[name] ?? name.replaceAll("_", " ")}`).join(", ");
  const dropped = Object.values(ledger.dropped).reduce((sum, number) => sum + number, 0);
  const masked = Object.values(ledger.masked).reduce((sum, number) => sum + number, 0);
  return (
    <Card title="The account of tokens">
      <p><b>{ledger.sampled.toLocaleString("en")}</b> sampled = <b className="goodtext">{ledger.trained.toLocaleString("en")}</b> trained + <b>{dropped.toLocaleString("en")}</b> dropped{dropped > 0 && <span className="muted"> ({parts(ledger.dropped)})</span>}</p>
      <p><b>{ledger.tokens.toLocaleString("en")}</b> in {samples.length} {samples.length === 1 ? "sample" : "samples"} = <b className="goodtext">{ledger.trained.toLocaleString("en")}</b> trained + <b>{masked.toLocaleString("en")}</b> with mask 0{masked > 0 && <span className="muted"> ({parts(ledger.masked)})</span>}</p>
    </Card>
  );
}

interface TextProps {
  readonly rollout: string;
  readonly builder: string;
  readonly index: number;
  readonly head: SampleHead;
  readonly data: SamplesView;
  readonly mode: Mode;
  readonly version: string;
  readonly onCall: (call: number) => void;
}

function TokenText({ rollout, builder, index, head, data, mode, version, onCall }: TextProps): ReactNode {
  const scroller = useRef<HTMLDivElement>(null);
  const [sight, setSight] = useState<readonly [number, number]>([0, 0]);
  const rows = Math.ceil(head.tokens / ROW_TOKENS);
  const virtual = useVirtualizer({ count: rows, getScrollElement: () => scroller.current, estimateSize: () => (data.text ? 52 : 56), overscan: 8 });
  const items = virtual.getVirtualItems();
  const first = Math.floor(((items[0]?.index ?? 0) * ROW_TOKENS) / PAGE);
  const last = Math.floor(((items.at(-1)?.index ?? 0) * ROW_TOKENS) / PAGE);
  useEffect(() => setSight((before) => (before[0] === first && before[1] === last ? before : [first, last])), [first, last]);
  const wanted: number[] = [];
  for (let page = sight[0]; page <= sight[1]; page++) wanted.push(page);
  const queries = useQueries({
    queries: wanted.map((page) => ({
      queryKey: ["tokens", rollout, builder, index, version, page],
      queryFn: ({ signal }: { readonly signal: AbortSignal }) => getJson<TokensPage>(`/v1/rollouts/${rollout}/samples/${index}/tokens${query({ builder, from: page * PAGE, to: (page + 1) * PAGE, text: 1 })}`, signal),
      placeholderData: keepPreviousData,
      staleTime: Infinity,
    })),
  });
  const pageOf = (row: number): TokensPage | undefined => {
    const page = Math.floor((row * ROW_TOKENS) / PAGE);
    const found = queries[page - sight[0]]?.data;
    return found?.from === page * PAGE ? found : undefined;
  };
  const go = (token: number): void => virtual.scrollToIndex(Math.floor(token / ROW_TOKENS), { align: "start" });
  const trained = head.spans.filter(({ origin }) => origin === "trained");
  const here = useRef(-1);
  const jump = (by: number): void => {
    here.current = Math.max(0, Math.min(trained.length - 1, here.current + by));
    const span = trained[here.current];
    if (span !== undefined) go(span.start);
  };
  useKeys({ j: () => jump(1), k: () => jump(-1) });
  return (
    <>
      <div style={{ padding: "10px 14px 4px" }} className="stack">
        <div className="line">
          <Pill>{head.kind}</Pill>
          <span className="muted">{head.tokens.toLocaleString("en")} tokens, <b className="goodtext">{head.trained.toLocaleString("en")} trained</b>, prompt {head.promptLength.toLocaleString("en")}{head.sharedLength > 0 ? `, ${head.sharedLength.toLocaleString("en")} shared with an earlier sample` : ""}</span>
          {head.meanLogprob !== null && <span className="muted">mean log probability {head.meanLogprob.toFixed(3)}</span>}
          {!data.text && <span className="faint">ids, because the run’s tokenizer is not here (--tokenizer)</span>}
        </div>
        <div className="line" style={{ flexWrap: "nowrap" }}>
          <div className="grow"><Minimap head={head} onGo={go} /></div>
          <button type="button" className="button small" disabled={trained.length === 0} onClick={() => jump(-1)} title="Trained stretch before ( k )" aria-label="Trained stretch before">↑</button>
          <button type="button" className="button small" disabled={trained.length === 0} onClick={() => jump(1)} title="Next trained stretch ( j )" aria-label="Next trained stretch">↓</button>
        </div>
        <Legend mode={mode} versions={data.versions} />
      </div>
      <div ref={scroller} className="tokens" tabIndex={0} role="group" aria-label="Tokens" style={{ height: "min(66vh, 900px)", overflow: "auto" }}>
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {items.map(({ index: row, start, key }) => {
            const page = pageOf(row);
            return (
              <div key={key} ref={virtual.measureElement} data-index={row} className="tokenrow" style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${start}px)` }}>
                <span className="pos">{(row * ROW_TOKENS).toLocaleString("en")}</span>
                {page === undefined ? <Skeleton lines={1} /> : <Row page={page} from={row * ROW_TOKENS - page.from} mode={mode} versions={data.versions} spans={head.spans} onCall={onCall} />}
              </div>
            );
          })}
        </div>
      </div>
    </>
  );
}

const HUES = [250, 150, 30, 330, 200, 60, 290, 100] as const;

const Row = memo(function Row({ page, from, mode, versions, spans, onCall }: { readonly page: TokensPage; readonly from: number; readonly mode: Mode; readonly versions: readonly string[]; readonly spans: SampleHead["spans"]; readonly onCall: (call: number) => void }): ReactNode {
  const to = Math.min(from + ROW_TOKENS, page.ids.length);
  const tokens: ReactNode[] = [];
  for (let at = from; at < to; at++) {
    const trained = page.mask[at] === 1;
    const logprob = page.logprobs[at] ?? 0;
    const versionIndex = page.versions[at] ?? -1;
    const piece = page.pieces?.[at];
    const shown = piece === undefined || piece === "" ? String(page.ids[at]) : visible(piece).text.replaceAll("\n", "↵\n");
    const title = `${page.from + at}: id ${page.ids[at]}${trained ? `, log probability ${logprob.toFixed(4)} (${percent(Math.exp(logprob))}), version ${versions[versionIndex] ?? "?"}` : ", not trained here"}`;
    tokens.push(
      <span key={at} className={`t${piece === undefined || piece === "" ? " id" : ""}`} title={title} style={colourOf(mode, trained, logprob, versionIndex)} onDoubleClick={() => {
        const span = spans.find(({ start, end }) => start <= page.from + at && page.from + at < end);
        if (span !== undefined) onCall(span.call);
      }}>
        {shown}
      </span>,
    );
  }
  return <span style={{ minWidth: 0 }}>{tokens}</span>;
});

function colourOf(mode: Mode, trained: boolean, logprob: number, version: number): React.CSSProperties {
  if (!trained) return { color: "var(--faint)" };
  if (mode === "mask") return { background: "var(--good-bg)", color: "var(--good)" };
  if (mode === "version") {
    const hue = HUES[version % HUES.length] ?? 250;
    return { background: `light-dark(oklch(92% 0.06 ${hue}), oklch(36% 0.08 ${hue}))`, color: "var(--text)" };
  }
  // From certain (nothing) to one in a thousand (full).
  const surprise = Math.min(1, -logprob / 6.9);
  return { background: `color-mix(in oklab, light-dark(#ff8f6b, #a33a16) ${Math.round(surprise * 100)}%, transparent)`, color: "var(--text)" };
}

function Legend({ mode, versions }: { readonly mode: Mode; readonly versions: readonly string[] }): ReactNode {
  if (mode === "mask") return <div className="legend"><span><i style={{ background: "var(--good)" }} />trained</span><span><i style={{ background: "var(--wait)" }} />mask 0: context, shared, realigned or inherited</span></div>;
  if (mode === "logprob") return <div className="legend"><span>certain</span><span style={{ width: 120, height: 10, borderRadius: 5, alignSelf: "center", background: "linear-gradient(90deg, transparent, light-dark(#ff8f6b, #a33a16))", border: "1px solid var(--line)" }} /><span>one in a thousand or less</span></div>;
  return <div className="legend">{versions.map((name, at) => <span key={name}><i style={{ background: `light-dark(oklch(80% 0.12 ${HUES[at % HUES.length]}), oklch(50% 0.12 ${HUES[at % HUES.length]}))` }} />version {visible(name).text}</span>)}</div>;
}

/** The whole sample at a glance: trained stretches stand out, a click goes there. */
function Minimap({ head, onGo }: { readonly head: SampleHead; readonly onGo: (token: number) => void }): ReactNode {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useThemeMark();
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (element == null || context == null) return;
    const width = element.clientWidth * devicePixelRatio;
    element.width = width;
    element.height = 22 * devicePixelRatio;
    const holder = element.parentElement ?? element;
    const colours: Readonly<Record<string, string>> = { trained: resolved(holder, "--good"), context: resolved(holder, "--wait"), shared: resolved(holder, "--line-strong"), realigned: resolved(holder, "--warn"), inherited: resolved(holder, "--line-strong") };
    for (const { start, end, origin } of head.spans) {
      context.fillStyle = colours[origin] ?? "";
      context.fillRect((start / head.tokens) * width, 0, Math.max(1, ((end - start) / head.tokens) * width), element.height);
    }
  }, [head, theme]);
  return (
    <canvas ref={canvas} className="minimap" role="img" aria-label={`Where tokens are trained: ${head.spans.filter(({ origin }) => origin === "trained").length} stretches`} onClick={(event) => {
      const box = event.currentTarget.getBoundingClientRect();
      onGo(Math.floor(((event.clientX - box.left) / box.width) * head.tokens));
    }} />
  );
}
