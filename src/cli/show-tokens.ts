/** `mw show ROLLOUT --tokens`: which text was trained, in which sample, and where every sampled token went. */
import type { Call } from "../gateway/call.ts";
import type { AnswerBlock, ContentBlock, Message } from "../gateway/conversation.ts";
import type { Builder, Ledger, Sample, SampleSet, Span } from "../gateway/samples/sample.ts";
import { turnOf } from "../gateway/trace/turn-of-call.ts";
import { rolloutTokens, type RolloutTokens } from "../rollout/samples/rollout-samples.ts";
import type { AppContext } from "./context.ts";
import { formatDuration, formatTable, printJson, printLine, printable, styler } from "./output.ts";

type Paint = ReturnType<typeof styler>;

/** Of a text that is not trained, its ends are enough. */
const SHOWN_CHARACTERS = 400;

export async function showTokens(context: AppContext, directory: string, flags: { readonly json: boolean; readonly all: boolean; readonly builder: Builder }): Promise<void> {
  const tokens = await rolloutTokens(directory, { builder: flags.builder });
  if (flags.json) {
    printJson(context, documentOf(tokens));
    return;
  }
  const paint = styler(context.process.stdout, context.env);
  if (tokens.calls.length === 0) {
    printLine(context, "No model call was made.");
    return;
  }
  printLine(context, callTable(tokens, paint));
  for (const [at, sample] of tokens.set.samples.entries()) {
    printLine(context, `\n${paint("bold", `sample ${at + 1} of ${tokens.set.samples.length}`)} (${sample.kind}): ${sample.tokenIds.length} tokens, ${sample.lossMask.reduce((sum, mask) => sum + mask, 0)} trained`);
    for (const line of sampleLines(sample, tokens, paint, flags.all)) printLine(context, line);
  }
  printLine(context, `\n${ledgerText(tokens.set)}`);
}

/** Stable surface: pinned by tests. */
function documentOf({ calls, trace, set }: RolloutTokens): unknown {
  const nodes = new Map(trace.nodes.map((node) => [node.call, node]));
  return {
    builder: set.builder,
    versions: set.versions,
    ledger: set.ledger,
    calls: calls.map(({ number, dialect, status, at, durationMs, capture, tokens, replays }) => ({
      ...nodes.get(number),
      dialect,
      status,
      at,
      durationMs,
      capture,
      promptTokens: tokens?.promptIds.length ?? null,
      completionTokens: tokens?.completionIds.length ?? null,
      replays,
    })),
    samples: set.samples.map(({ tokenIds, lossMask, logprobs, versions, ...facts }) => ({ ...facts, tokenIds: [...tokenIds], lossMask: [...lossMask], logprobs: [...logprobs], versions: [...versions] })),
  };
}

function callTable({ calls, trace }: RolloutTokens, paint: Paint): string {
  const right = "right" as const;
  const byNumber = new Map(calls.map((call) => [call.number, call]));
  return formatTable(
    [{ title: "call", align: right }, { title: "kind" }, { title: "after" }, { title: "status" }, { title: "dialect" }, { title: "prompt", align: right }, { title: "sampled", align: right }, { title: "time", align: right }, { title: "version" }],
    trace.nodes.map(({ call: number, kind, relation, parent, spawnedBy }) => {
      // Nodes are made of calls.
      const call = byNumber.get(number) as Call;
      const after = parent !== null ? `${relation === "extends" ? "" : `${relation} `}${parent}` : spawnedBy === null ? "" : `begun by ${spawnedBy}`;
      const versions = call.tokens?.versions.map(([version]) => version) ?? [];
      return [
        String(number),
        kind,
        after,
        call.status === "complete" ? "complete" : `${call.status}: ${call.failure?.kind ?? ""}`,
        call.dialect,
        String(call.tokens?.promptIds.length ?? call.answer?.usage?.promptTokens ?? ""),
        String(call.tokens?.completionIds.length ?? call.answer?.usage?.completionTokens ?? ""),
        formatDuration(call.durationMs),
        // As the model server calls them.
        printable([...new Set(versions)].join(", ")).replaceAll(/\s+/g, " ").slice(0, 60),
      ];
    }),
    paint,
  );
}

function sampleLines({ spans }: Sample, { calls }: RolloutTokens, paint: Paint, all: boolean): readonly string[] {
  const byNumber = new Map(calls.map((call) => [call.number, call]));
  let told = 0;
  return spans.flatMap((span) => {
    const call = byNumber.get(span.call);
    if (call === undefined) return [];
    if (span.origin === "trained") return [head(span, paint), paint("green", indent(answerText(call.answer?.blocks ?? [])))];
    if (!isContext(span, call)) return [head(span, paint), paint("dim", indent(shorten(answerText(call.answer?.blocks ?? []), all)))];
    const { messages } = turnOf(call);
    // The answer that the last span showed comes back first.
    const fresh = messages.slice(told > 0 && messages[told]?.role === "assistant" ? told + 1 : told);
    told = messages.length;
    return [head(span, paint), ...fresh.map((message) => paint("dim", indent(shorten(messageText(message), all))))];
  });
}

/** Shared stretches alternate between what a call was asked and what it answered, as they did where they were trained. */
function isContext({ origin, end }: Span, { tokens }: Call): boolean {
  return origin === "context" || (origin === "shared" && tokens !== null && end <= tokens.promptIds.length);
}

function head({ start, end, call, origin }: Span, paint: Paint): string {
  return paint("bold", `  [${start}, ${end}) ${origin === "trained" ? "trained" : `mask 0 (${origin})`}, call ${call}`);
}

function messageText({ role, content }: Message): string {
  return `${role}: ${answerText(content)}`;
}

function answerText(blocks: readonly (AnswerBlock | ContentBlock)[]): string {
  return blocks
    .map((block) => {
      switch (block.type) {
        case "text":
        case "refusal":
          return block.text;
        case "reasoning":
          return `(thinking) ${block.text}`;
        case "tool_call":
          return `${block.name} ${block.arguments}`;
        case "image":
          return "(image)";
      }
    })
    .join("\n");
}

function indent(text: string): string {
  return printable(text).replaceAll(/^/gm, "    ");
}

function shorten(text: string, all: boolean): string {
  if (all || text.length <= SHOWN_CHARACTERS) return text;
  return `${text.slice(0, SHOWN_CHARACTERS / 2)} ... ${text.length - SHOWN_CHARACTERS} characters (--all shows them) ... ${text.slice(-SHOWN_CHARACTERS / 2)}`;
}

function ledgerText({ builder, ledger }: SampleSet): string {
  const parts = (counts: Readonly<Record<string, number>>): string =>
    Object.entries(counts)
      .filter(([, count]) => count > 0)
      .map(([cause, count]) => `${count} ${cause}`)
      .join(", ");
  return [
    `${builder}: ${ledger.sampled} tokens sampled = ${ledger.trained} trained + ${sum(ledger.dropped)} dropped${sum(ledger.dropped) === 0 ? "" : ` (${parts(ledger.dropped)})`}`,
    `${" ".repeat(builder.length)}  ${ledger.tokens} tokens in samples = ${ledger.trained} trained + ${sum(ledger.masked)} masked${sum(ledger.masked) === 0 ? "" : ` (${parts(ledger.masked)})`}`,
  ].join("\n");
}

function sum(counts: Readonly<Record<keyof Ledger["dropped"] | keyof Ledger["masked"], number>> | Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}
