/**
 * The lines of a call log, version 1. Whole histories would grow with the square of the turns, so what calls have in common stands once:
 *
 *     {"mw":"calls","v":1}           opens a section: numbers of elements and references to calls reach back to it, no further
 *     {"e":VALUE}                    an element: a message, a tool definition, a key... Elements are numbered from 0 in the order of their lines
 *     {"call":{...}}                 a call, in the order of ends. Its request is a list of fields, its prompt the head of an earlier call's tokens and a tail
 *     {"replay":NUMBER}              the answer of that call was given out again to a retry
 *
 * Lists of elements are runs: `[first, count, first, count, ...]`.
 */
import { hash } from "node:crypto";
import { MwError } from "../../core/errors.ts";
import type { Call, ConversationFacts, PromptReference } from "../call.ts";
import type { CallTokens } from "../upstreams/upstream.ts";

/** A field of the request: its name, and its value as it is, as one element (`0`), or as a list of elements (`1`). */
export type PackedField = readonly [name: string, value: unknown] | readonly [name: string, kind: 0 | 1, runs: readonly number[]];

export interface PackedCall extends Omit<Call, "request" | "conversation" | "tokens"> {
  /** Fields of an object, or `[value]` for what is no object. */
  readonly request: { readonly fields: readonly PackedField[] } | { readonly value: unknown };
  readonly conversation: Omit<ConversationFacts, "messages"> & { readonly messages: readonly number[] };
  readonly tokens: (Omit<CallTokens, "promptIds"> & { readonly base: number | null; readonly kept: number; readonly tail: readonly number[] }) | null;
}

export const SECTION_LINE = '{"mw":"calls","v":1}\n';

/** Shorter values stand where they are used. */
const ELEMENT_CHARS = 200;

/** Turns calls into lines, remembering by digest what was written before. One for each section of a log. */
export class CallEncoder {
  readonly #elements = new Map<string, number>();
  readonly #calls = new Set<number>();
  #begun = false;

  /** Throws for what JSON would change in silence. */
  encode(call: Call, prompt: PromptReference | null): string {
    const lines: string[] = this.#begun ? [] : [SECTION_LINE];
    this.#begun = true;
    const { request, conversation, tokens } = call;
    const packed: PackedCall = {
      ...call,
      request: this.#request(request, lines),
      conversation: { ...conversation, messages: this.#runs(conversation.messages, lines) },
      tokens: tokens === null ? null : this.#tokens(tokens, prompt),
    };
    this.#calls.add(call.number);
    lines.push(`{"call":${JSON.stringify(packed)}}\n`);
    return lines.join("");
  }

  replayed(number: number): string {
    return `{"replay":${number}}\n`;
  }

  #request(request: unknown, lines: string[]): PackedCall["request"] {
    if (typeof request !== "object" || request === null || Array.isArray(request)) return { value: request };
    return { fields: Object.entries(request).map(([name, value]) => this.#field(name, value, lines)) };
  }

  #field(name: string, value: unknown, lines: string[]): PackedField {
    if (Array.isArray(value) && value.length > 0) return [name, 1, this.#runs(value, lines)];
    const text = typeof value === "object" && value !== null ? JSON.stringify(value) : null;
    const long = text === null ? typeof value === "string" && value.length > ELEMENT_CHARS : text.length > ELEMENT_CHARS;
    return long ? [name, 0, this.#runs([value], lines)] : [name, value];
  }

  #runs(values: readonly unknown[], lines: string[]): readonly number[] {
    const runs: number[] = [];
    let next = -1;
    for (const value of values) {
      const number = this.#element(value, lines);
      if (number === next) runs[runs.length - 1] = (runs.at(-1) ?? 0) + 1;
      else runs.push(number, 1);
      next = number + 1;
    }
    return runs;
  }

  #element(value: unknown, lines: string[]): number {
    const text = JSON.stringify(value);
    const digest = hash("sha256", text, "buffer").toString("latin1", 0, 16);
    const known = this.#elements.get(digest);
    if (known !== undefined) return known;
    const number = this.#elements.size;
    this.#elements.set(digest, number);
    lines.push(`{"e":${text}}\n`);
    return number;
  }

  #tokens({ promptIds, ...rest }: CallTokens, prompt: PromptReference | null): NonNullable<PackedCall["tokens"]> {
    if (rest.logprobs?.every(Number.isFinite) === false) throw new MwError("internal", "a log probability that is no finite number");
    // A call of an earlier section is out of reach.
    const usable = prompt !== null && this.#calls.has(prompt.call) ? prompt : null;
    return { ...rest, base: usable?.call ?? null, kept: usable?.kept ?? 0, tail: usable === null ? promptIds : promptIds.slice(usable.kept) };
  }
}

export interface TokenLengths {
  readonly prompt: number;
  readonly completion: number;
  /** Names of the policy versions, in order, with repeats. */
  readonly versions: readonly string[];
}

/** Turns lines back into calls. Elements are shared between the calls that have them: treat them as the constants that they are. */
export class CallDecoder {
  #elements: unknown[] = [];
  /** Prompt and completion of each call, as a chain: what it kept of which call, and its own ids after that. */
  #ids = new Map<number, { readonly base: number | null; readonly kept: number; readonly own: Uint32Array }>();

  /** Null for lines that are no call. Throws when the line is none that `CallEncoder` made. */
  decode(line: string): Call | null {
    const record = JSON.parse(line) as { readonly e?: unknown; readonly call?: PackedCall; readonly mw?: string; readonly v?: number; readonly replay?: number };
    if ("e" in record) {
      this.#elements.push(record.e);
      return null;
    }
    if (record.call !== undefined) return this.#call(record.call);
    if (record.mw === "calls") {
      if (record.v !== 1) throw new MwError("unsupported", `a call log of version ${record.v}`, { fix: "use the version of mw that wrote it" });
      this.#elements = [];
      this.#ids = new Map();
      return null;
    }
    if (record.replay === undefined) throw new Error("a line of no known kind");
    return null;
  }

  /** The same call with the lengths of its token arrays instead of them: readers of whole sessions mostly want no more, and a session repeats its prompts. */
  decodeHead(line: string): { readonly call: Call; readonly lengths: TokenLengths | null } | null {
    const record = JSON.parse(line) as { readonly call?: PackedCall };
    if (record.call === undefined) {
      this.decode(line);
      return null;
    }
    const { tokens } = record.call;
    const lengths = tokens === null ? null : { prompt: tokens.kept + tokens.tail.length, completion: tokens.completionIds.length, versions: tokens.versions.map(([name]) => name) };
    return { call: this.#call({ ...record.call, tokens: null }), lengths };
  }

  #call(packed: PackedCall): Call {
    const { request, conversation, tokens } = packed;
    return {
      ...packed,
      request: "fields" in request ? Object.fromEntries(request.fields.map((field) => this.#field(field))) : request.value,
      // Keys were written as elements.
      conversation: { ...conversation, messages: this.#list(conversation.messages) as readonly string[] },
      tokens: tokens === null ? null : this.#tokens(packed.number, tokens),
    };
  }

  #field(field: PackedField): readonly [string, unknown] {
    if (field.length === 2) return field;
    const [name, kind, runs] = field;
    const values = this.#list(runs);
    return [name, kind === 1 ? values : values[0]];
  }

  #list(runs: readonly number[]): readonly unknown[] {
    const values: unknown[] = [];
    for (let at = 0; at + 1 < runs.length; at += 2) {
      const [first = 0, count = 0] = runs.slice(at, at + 2);
      if (first < 0 || first + count > this.#elements.length) throw new Error("a reference to an element that is not there");
      for (let number = first; number < first + count; number++) values.push(this.#elements[number]);
    }
    return values;
  }

  #tokens(number: number, { base, kept, tail, ...rest }: NonNullable<PackedCall["tokens"]>): CallTokens {
    const own = new Uint32Array(tail.length + rest.completionIds.length);
    own.set(tail);
    own.set(rest.completionIds, tail.length);
    this.#ids.set(number, { base, kept, own });
    if (base === null) return { promptIds: tail, ...rest };
    const head = this.#head(base, kept);
    // One by one, in an array that need not grow: a long session has millions of these, and spreading a typed array is seven times slower.
    const promptIds: number[] = [];
    promptIds.length = kept + tail.length;
    for (let at = 0; at < kept; at++) promptIds[at] = head[at] ?? 0;
    for (let at = 0; at < tail.length; at++) promptIds[kept + at] = tail[at] ?? 0;
    return { promptIds, ...rest };
  }

  /** The first `length` ids of a call's prompt and completion. */
  #head(call: number, length: number): Uint32Array {
    const ids = new Uint32Array(length);
    let end = length;
    for (let at: number | null = call; at !== null && end > 0; ) {
      const link = this.#ids.get(at);
      if (link === undefined || link.kept + link.own.length < end) throw new Error("a reference to tokens that are not there");
      if (end > link.kept) ids.set(link.own.subarray(0, end - link.kept), link.kept);
      end = Math.min(end, link.kept);
      at = link.base;
    }
    if (end > 0) throw new Error("a reference to tokens that are not there");
    return ids;
  }
}
