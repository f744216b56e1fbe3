/**
 * Answers as a stream of partial responses. Texts and thoughts go out as they come; a function call goes out whole, because its arguments are an object. The last piece alone has
 * the finish reason and the usage, and always holds a part: clients take an empty content for a fault.
 *
 * Two framings: server-sent events (`alt=sse`), without comments, which the SDK takes for broken JSON; and one JSON array.
 */
import type { Answer, Delta, ReasoningBlock, ToolCallBlock } from "../../conversation.ts";
import type { GatewayFailure } from "../../failure.ts";
import type { EncodeContext, StreamEncoder } from "../dialect.ts";
import { writeEvent } from "../write-event.ts";
import { encodeBlock, finalResponse, response, thoughtPart } from "./encode.ts";
import { encodeFailure } from "./failure.ts";

export interface Framing {
  /** One piece; `first`: nothing came before it. */
  piece(value: unknown, first: boolean): string;
  /** After the last piece. */
  readonly end: string;
  /** An error in place of further pieces. */
  error(value: unknown, first: boolean): string;
}

/** The error comes as an event, in which newer SDKs find it, and bare, on which all of them fail: a segment that is no event. */
export const SSE: Framing = { piece: (value) => writeEvent(value), end: "", error: (value) => writeEvent(value) + JSON.stringify(value) };
export const JSON_ARRAY: Framing = {
  piece: (value, first) => (first ? "[" : ",\n") + JSON.stringify(value),
  end: "]\n",
  error: (value, first) => `${JSON_ARRAY.piece(value, first)}]\n`,
};

type Open = { readonly type: "text" | "refusal" } | (ReasoningBlock & { readonly type: "reasoning" }) | ToolCallBlock;

export class GeminiStream implements StreamEncoder {
  readonly #context: EncodeContext;
  readonly #framing: Framing;
  #open: Open | null = null;
  /** The reasoning that the next part carries. */
  #thoughts: ReasoningBlock[] = [];
  #pieces = 0;

  constructor(context: EncodeContext, framing: Framing) {
    this.#context = context;
    this.#framing = framing;
  }

  start(): string {
    return "";
  }

  delta(delta: Delta): string {
    switch (delta.type) {
      case "text":
      case "refusal": {
        if (delta.text === "") return this.#open?.type === delta.type ? "" : this.#close();
        const closing = this.#open?.type === delta.type ? "" : this.#close();
        this.#open = { type: delta.type };
        return closing + this.#piece(this.#carrying({ type: delta.type, text: delta.text }));
      }
      case "reasoning": {
        if (delta.text === "") return this.#open?.type === "reasoning" ? "" : this.#close();
        const before = this.#open?.type === "reasoning" ? this.#open : null;
        const closing = before === null ? this.#close() : "";
        this.#open = { type: "reasoning", text: (before?.text ?? "") + delta.text, signature: null };
        return closing + this.#piece({ text: delta.text, ...thoughtPart(null) });
      }
      case "signature": {
        const { signature, redacted } = delta;
        const before = this.#open?.type === "reasoning" ? this.#open : null;
        const closing = before === null ? this.#close() : "";
        this.#open = { type: "reasoning", text: before?.text ?? "", signature, ...(redacted === true ? { redacted } : {}) };
        return closing + this.#piece({ text: "", ...thoughtPart(signature) }) + this.#close();
      }
      case "tool_call": {
        const closing = this.#close();
        this.#open = { ...delta, arguments: "" };
        return closing;
      }
      case "arguments":
        if (this.#open?.type === "tool_call") this.#open = { ...this.#open, arguments: this.#open.arguments + delta.text };
        return "";
    }
  }

  end(answer: Answer): string {
    const open = this.#open;
    if (open?.type === "reasoning") this.#close();
    const last = this.#carrying(open?.type === "tool_call" ? open : { type: "text", text: "" });
    return this.#frame(finalResponse(answer, [last], this.#context)) + this.#framing.end;
  }

  fail(failure: GatewayFailure): string {
    return this.#framing.error(encodeFailure(failure).body, this.#pieces === 0);
  }

  #close(): string {
    const open = this.#open;
    this.#open = null;
    if (open?.type === "reasoning") this.#thoughts.push(open);
    return open?.type === "tool_call" ? this.#piece(this.#carrying(open)) : "";
  }

  #carrying(block: Parameters<typeof encodeBlock>[0]): Readonly<Record<string, unknown>> {
    const part = encodeBlock(block, this.#thoughts);
    this.#thoughts = [];
    return part;
  }

  #piece(part: Readonly<Record<string, unknown>>): string {
    return this.#frame(response([part], this.#context));
  }

  #frame(piece: unknown): string {
    return this.#framing.piece(piece, this.#pieces++ === 0);
  }
}
