/** Cuts the samples of a session out of its calls and trace. Pure: the same log gives the same samples. */
import type { Call } from "../call.ts";
import type { CallKind, Trace } from "../trace/trace.ts";
import { checkLedger, DROP_CAUSES, MASK_CAUSES, type Builder, type DropCause, type Ledger, type MaskCause, type Sample, type SampleSet, type Span } from "./sample.ts";
import { tokenTree, type TokenCall, type TokenNode } from "./token-tree.ts";

export interface SampleOptions {
  readonly builder: Builder;
  /** Kinds of calls that are trained; default all but side calls and probes. */
  readonly kinds?: readonly CallKind[];
  /** Samples are cut at this many tokens; default: none is. */
  readonly maxTokens?: number;
  /** For `realign`: completions shorter than this may be given up; default 1024. */
  readonly realignBelow?: number;
  /** Calls up to this number were sampled in another rollout, from which this one branched: they are context here. Default 0. */
  readonly inherited?: number;
}

export const TRAINED_KINDS: readonly CallKind[] = ["main", "branch", "subagent", "compaction"];

/** Throws `internal` when the account of tokens does not add up. */
export function buildSamples(calls: readonly Call[], trace: Trace, options: SampleOptions): SampleSet {
  const ledger = emptyLedger();
  const { builder, maxTokens = Infinity, inherited = 0 } = options;
  const usable = sortOut(calls, trace, options.kinds ?? TRAINED_KINDS, inherited, ledger);
  const versions = new VersionTable();
  const samples: Sample[] = [];
  const trainedIn = new Set<TokenNode>();
  // What several samples share is trained in the first: in that of the main line, where it is one of them.
  const leaves = leavesOf(usable, options).filter(({ call }) => call.number > inherited).toSorted((a, b) => Number(a.kind !== "main") - Number(b.kind !== "main"));
  for (const leaf of leaves) samples.push(new SampleWriter(pathOf(leaf), { inherited, trainedIn, versions, maxTokens, ledger }).write());
  checkLedger(ledger);
  return { builder, samples, versions: versions.names, ledger };
}

type Account = { -readonly [Key in keyof Ledger]: Ledger[Key] extends number ? number : { -readonly [Cause in keyof Ledger[Key]]: number } };

function emptyLedger(): Account {
  const zeros = <Cause extends string>(causes: readonly Cause[]): Record<Cause, number> => Object.fromEntries(causes.map((cause) => [cause, 0])) as Record<Cause, number>;
  return { sampled: 0, trained: 0, dropped: zeros<DropCause>(DROP_CAUSES), tokens: 0, masked: zeros<MaskCause>(MASK_CAUSES) };
}

/** The calls that can be trained; the sampled tokens of the others are dropped by cause. */
function sortOut(calls: readonly Call[], trace: Trace, kinds: readonly CallKind[], inherited: number, ledger: Account): readonly TokenCall[] {
  const nodes = new Map(trace.nodes.map((node) => [node.call, node]));
  return calls
    .toSorted((a, b) => a.number - b.number)
    .flatMap((call) => {
      const sampled = call.number <= inherited ? 0 : (call.tokens?.completionIds.length ?? call.answer?.usage?.completionTokens ?? 0);
      ledger.sampled += sampled;
      const node = nodes.get(call.number);
      const cause = causeOf(call, node?.kind, kinds);
      if (cause !== null || node === undefined || call.tokens?.logprobs == null) {
        ledger.dropped[cause ?? "no_logprobs"] += sampled;
        return [];
      }
      const continues = node.relation === "extends" ? node.parent : null;
      return [{ call, kind: node.kind, continues, tokens: { ...call.tokens, logprobs: call.tokens.logprobs } }];
    });
}

function causeOf({ status, tokens }: Call, kind: CallKind | undefined, kinds: readonly CallKind[]): DropCause | null {
  if (status !== "complete") return "incomplete";
  if (kind === undefined || !kinds.includes(kind)) return "kind";
  if (tokens === null) return "no_tokens";
  return tokens.logprobs === null ? "no_logprobs" : null;
}

function leavesOf(calls: readonly TokenCall[], { builder, realignBelow = 1024 }: SampleOptions): readonly TokenNode[] {
  switch (builder) {
    case "per-call":
      return calls.map((item) => ({ ...item, parent: null, exact: true, children: [] }));
    case "prefix-merge":
      return tokenTree(calls, { realignBelow: 0 }).filter(({ children }) => children.length === 0);
    case "realign":
      return tokenTree(calls, { realignBelow }).filter(({ children }) => children.length === 0);
  }
}

function pathOf(leaf: TokenNode): readonly TokenNode[] {
  const path: TokenNode[] = [];
  for (let at: TokenNode | null = leaf; at !== null; at = at.parent) path.unshift(at);
  return path;
}

/** What the samples of one rollout have in common. */
interface Shared {
  readonly inherited: number;
  readonly trainedIn: Set<TokenNode>;
  readonly versions: VersionTable;
  readonly maxTokens: number;
  readonly ledger: Account;
}

/** Writes one sample: the sequence of its last call, in which every call before it has its place. */
class SampleWriter {
  readonly #path: readonly TokenNode[];
  readonly #inherited: number;
  readonly #trainedIn: Set<TokenNode>;
  readonly #versions: VersionTable;
  readonly #ledger: Account;
  readonly #length: number;
  readonly #sample: { readonly tokenIds: Int32Array; readonly lossMask: Uint8Array; readonly logprobs: Float32Array; readonly versions: Int32Array };
  readonly #spans: Span[] = [];
  #sharedLength = 0;

  constructor(path: readonly TokenNode[], { inherited, trainedIn, versions, maxTokens, ledger }: Shared) {
    this.#path = path;
    this.#inherited = inherited;
    this.#trainedIn = trainedIn;
    this.#versions = versions;
    this.#ledger = ledger;
    const { promptIds, completionIds } = this.#leaf.tokens;
    this.#length = Math.min(maxTokens, promptIds.length + completionIds.length);
    const tokenIds = new Int32Array(promptIds.length + completionIds.length);
    tokenIds.set(promptIds);
    tokenIds.set(completionIds, promptIds.length);
    this.#sample = {
      tokenIds: tokenIds.slice(0, this.#length),
      lossMask: new Uint8Array(this.#length),
      logprobs: new Float32Array(this.#length),
      versions: new Int32Array(this.#length).fill(-1),
    };
  }

  get #leaf(): TokenNode {
    // A path has its leaf.
    return this.#path.at(-1) as TokenNode;
  }

  write(): Sample {
    for (const [at, node] of this.#path.entries()) {
      this.#add(node.tokens.promptIds.length, node, "context");
      this.#completion(node, this.#path[at + 1]);
    }
    const { lossMask } = this.#sample;
    const first = lossMask.indexOf(1);
    this.#ledger.tokens += this.#length;
    return {
      ...this.#sample,
      promptLength: first === -1 ? this.#length : first,
      sharedLength: Math.min(this.#sharedLength, this.#length),
      spans: this.#spans,
      calls: this.#path.map(({ call }) => call.number),
      kind: this.#leaf.kind,
    };
  }

  #completion(node: TokenNode, next: TokenNode | undefined): void {
    const { promptIds, completionIds } = node.tokens;
    const end = promptIds.length + completionIds.length;
    if (next !== undefined && !next.exact) {
      // The harness's spelling may be longer or shorter; it is part of what the next call was asked. The answer itself is in no sample, unless another line holds it.
      if (node.call.number > this.#inherited && !this.#trainedIn.has(node) && node.children.every(({ exact }) => !exact)) {
        this.#trainedIn.add(node);
        this.#ledger.dropped.realigned += completionIds.length;
      }
      this.#add(Math.min(end, next.tokens.promptIds.length), node, "realigned");
      return;
    }
    if (node.call.number <= this.#inherited) {
      this.#add(end, node, "inherited");
      return;
    }
    if (this.#trainedIn.has(node)) {
      // Everything up to here was in the sample that trained it.
      this.#share(end);
      this.#add(end, node, "shared");
      return;
    }
    this.#trainedIn.add(node);
    this.#train(node, promptIds.length, end);
    this.#add(end, node, "trained");
  }

  #train({ tokens: { completionIds, logprobs, versions } }: TokenNode, start: number, end: number): void {
    const stop = Math.min(end, this.#length);
    const kept = Math.max(0, stop - start);
    this.#ledger.trained += kept;
    this.#ledger.dropped.too_long += completionIds.length - kept;
    if (kept === 0) return;
    this.#sample.lossMask.fill(1, start, stop);
    this.#sample.logprobs.set(logprobs.slice(0, kept), start);
    let at = start;
    for (const [version, count] of versions) {
      this.#sample.versions.fill(this.#versions.indexOf(version), Math.min(at, stop), Math.min(at + count, stop));
      at += count;
    }
  }

  /** What an earlier sample has as well is shared, context included. */
  #share(end: number): void {
    this.#sharedLength = end;
    for (const [at, span] of this.#spans.entries()) {
      if (span.origin !== "context") continue;
      this.#spans[at] = { ...span, origin: "shared" };
      this.#ledger.masked.context -= span.end - span.start;
      this.#ledger.masked.shared += span.end - span.start;
    }
  }

  #add(end: number, { call }: TokenNode, origin: Span["origin"]): void {
    const start = this.#spans.at(-1)?.end ?? 0;
    const stop = Math.min(end, this.#length);
    if (stop <= start) return;
    this.#spans.push({ start, end: stop, call: call.number, origin });
    if (origin !== "trained") this.#ledger.masked[origin] += stop - start;
  }
}

class VersionTable {
  readonly names: string[] = [];
  readonly #indexes = new Map<string, number>();

  indexOf(name: string): number {
    let index = this.#indexes.get(name);
    if (index === undefined) {
      index = this.names.length;
      this.names.push(name);
      this.#indexes.set(name, index);
    }
    return index;
  }
}
