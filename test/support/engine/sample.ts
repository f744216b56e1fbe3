/** From a scripted reply to sampled tokens: their ids, their logprobs, and what of the answer each of them adds. */
import { seededRandom } from "../../../src/core/runtime.ts";
import type { Reply } from "./script.ts";
import { bytesOf, encode, IM_END, ORDINARY_TOKENS, spellOtherwise } from "./tokenizer.ts";
import { renderCall } from "./template.ts";

export type Piece =
  | { readonly type: "content" | "reasoning" | "refusal"; readonly text: string }
  | { readonly type: "call"; readonly index: number; readonly id: string | null; readonly name: string }
  | { readonly type: "arguments"; readonly index: number; readonly text: string };

export interface SampledToken {
  readonly id: number;
  readonly logprob: number;
  /** Of the answer as a chat server parses it; nothing for marks and halves of characters. */
  readonly pieces: readonly Piece[];
}

export interface Sampled {
  readonly tokens: readonly SampledToken[];
  readonly finish: string;
  /** Which of the request's stop strings was met, or the id of the stop token. */
  readonly stopReason: string | number | null;
}

export interface SampleLimits {
  readonly maxTokens: number | null;
  readonly stop: readonly string[];
}

interface Segment {
  readonly text: string;
  /** Makes pieces of the segment's text; null for marks. */
  readonly piece: ((text: string, last: boolean) => Piece | null) | null;
}

/** `seed` decides the spelling and the logprobs: the same seed samples the same. `drift`: share of tokens that are spelled in two parts. */
export function sample(reply: Reply, callPrefix: string, limits: SampleLimits, seed: string, drift: number): Sampled {
  const random = seededRandom(seed);
  const segments = segmentsOf(reply, callPrefix);
  const spelled = encode(segments.map(({ text }) => text).join(""));
  let ids = drift > 0 ? spellOtherwise(spelled, drift, random) : [...spelled];
  if (reply.randomTokens !== undefined) ids = Array.from({ length: reply.randomTokens }, () => Math.floor(random() * ORDINARY_TOKENS));
  // A model that was cut off did not say that it is done.
  if (reply.finishReason !== "length") ids.push(IM_END);
  const tokens = ids.map((id, at) => ({ id, logprob: -(random() ** 3) * 8 - (at % 3) / 1e3, pieces: [] as Piece[] }));
  distribute(tokens, reply.randomTokens === undefined ? segments : [{ text: "", piece: (text) => ({ type: "content", text }) }]);
  const calls = (reply.calls ?? []).length > 0;
  return limit({ tokens, finish: reply.finishReason ?? (calls ? "tool_calls" : "stop"), stopReason: null }, limits);
}

function segmentsOf(reply: Reply, callPrefix: string): readonly Segment[] {
  const segments: Segment[] = [];
  const mark = (text: string): number => segments.push({ text, piece: null });
  if (reply.reasoning !== undefined) {
    mark("<think>\n");
    segments.push({ text: reply.reasoning, piece: (text) => ({ type: "reasoning", text }) });
    mark("\n</think>\n\n");
  }
  if (reply.refusal !== undefined) segments.push({ text: reply.refusal, piece: (text) => ({ type: "refusal", text }) });
  const content = reply.content ?? "";
  if (content !== "") segments.push({ text: content, piece: (text) => ({ type: "content", text }) });
  (reply.calls ?? []).forEach((call, index) => {
    const name = call.name ?? "bash";
    const id = call.id === null ? null : (call.id ?? `${callPrefix}-${index}`);
    const given = call.arguments ?? `{"command": ${JSON.stringify(call.command ?? "true")}}`;
    // A mark that neither a name nor arguments hold stands in for where they go.
    const [before = "", between = "", after = ""] = renderCall("\u0000", "\u0000").replace('"\\u0000"', "\u0000").split("\u0000");
    mark(`${index > 0 || content !== "" ? "\n" : ""}${before}`);
    segments.push({ text: JSON.stringify(name), piece: (_text, last) => (last ? { type: "call", index, id, name } : null) });
    mark(between);
    segments.push({ text: given, piece: (text) => ({ type: "arguments", index, text }) });
    mark(after);
  });
  return segments;
}

/** Gives each token the pieces that its bytes complete. A stop token adds nothing. */
function distribute(tokens: readonly { readonly id: number; readonly pieces: Piece[] }[], segments: readonly Segment[]): void {
  const open = segments.length === 1 && segments[0]?.text === "";
  const lengths = segments.map(({ text }) => (open ? Number.POSITIVE_INFINITY : Buffer.byteLength(text)));
  let at = 0;
  let used = 0;
  let pending = Buffer.alloc(0);
  for (const { id, pieces } of tokens) {
    if (id === IM_END) break;
    let bytes = bytesOf(id);
    while (bytes.length > 0 && at < segments.length) {
      const taken = bytes.subarray(0, Math.min(bytes.length, (lengths[at] ?? 0) - used));
      bytes = bytes.subarray(taken.length);
      used += taken.length;
      const last = used === lengths[at];
      pending = Buffer.concat([pending, taken]);
      const whole = last ? pending.length : wholeCharacters(pending);
      const piece = segments[at]?.piece?.(pending.toString("utf8", 0, whole), last) ?? null;
      if (piece !== null && (piece.type === "call" || piece.text !== "")) pieces.push(piece);
      pending = pending.subarray(whole);
      if (last) {
        at++;
        used = 0;
        pending = Buffer.alloc(0);
      }
    }
  }
}

/** Bytes up to the last character that is complete, or that can never be. */
function wholeCharacters(bytes: Buffer): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}

function limit(sampled: Sampled, { maxTokens, stop }: SampleLimits): Sampled {
  let result = sampled;
  if (maxTokens !== null && sampled.tokens.length > maxTokens) result = { tokens: sampled.tokens.slice(0, maxTokens), finish: "length", stopReason: null };
  return stop.length === 0 ? result : stopAt(result, stop);
}

/** The tokens that make up the stop string were sampled; its text is not shown. */
function stopAt(sampled: Sampled, stop: readonly string[]): Sampled {
  let text = "";
  for (const [at, token] of sampled.tokens.entries()) {
    text += contentOf(token);
    const met = stop.map((word) => ({ word, found: text.indexOf(word) })).filter(({ found }) => found !== -1).sort((a, b) => a.found - b.found)[0];
    if (met === undefined) continue;
    let left = met.found;
    const tokens = sampled.tokens.slice(0, at + 1).map(({ id, logprob, pieces }) => {
      const shown = pieces.map((piece) => {
        if (piece.type !== "content") return piece;
        const kept = piece.text.slice(0, left);
        left -= kept.length;
        return { type: piece.type, text: kept };
      });
      return { id, logprob, pieces: shown };
    });
    return { tokens, finish: "stop", stopReason: met.word };
  }
  return sampled;
}

function contentOf(token: SampledToken): string {
  return token.pieces.map((piece) => (piece.type === "content" ? piece.text : "")).join("");
}
