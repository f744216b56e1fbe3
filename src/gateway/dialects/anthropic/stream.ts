/**
 * Anthropic Messages streamed: `message_start`, then for each block its start, deltas and stop, then `message_delta` and `message_stop`.
 *
 * A tool's arguments are sent when they are complete: only then is it known whether they are an object, which this dialect demands (`tool-arguments.ts`); Anthropic's
 * own servers hold them back in the same way. Empty pieces go out meanwhile, so that nobody takes the silence for a stall.
 */
import type { Answer, Delta } from "../../conversation.ts";
import type { GatewayFailure } from "../../failure.ts";
import type { EncodeContext, StreamEncoder } from "../dialect.ts";
import { argumentsObjectText } from "../tool-arguments.ts";
import { writeEvent } from "../write-event.ts";
import { emptyMessage, encodeUsage, stop } from "./encode.ts";
import { encodeMessagesFailure } from "./failure.ts";
import { signatureOut } from "./signature.ts";

type Open = { readonly type: "text" | "refusal" | "reasoning" } | { readonly type: "tool_call"; arguments: string };

export class MessageStream implements StreamEncoder {
  readonly #context: EncodeContext;
  #index = 0;
  #open: Open | null = null;

  constructor(context: EncodeContext) {
    this.#context = context;
  }

  start(promptTokens: number | null): string {
    const usage = encodeUsage({ promptTokens: promptTokens ?? 0, completionTokens: 0, cachedTokens: 0, reasoningTokens: 0 });
    return event({ type: "message_start", message: { ...emptyMessage(this.#context), usage } });
  }

  delta(delta: Delta): string {
    switch (delta.type) {
      case "text":
      case "refusal":
        return this.#enter(delta.type, { type: "text", text: "" }) + this.#blockDelta({ type: "text_delta", text: delta.text });
      case "reasoning":
        return this.#enterThinking() + this.#blockDelta({ type: "thinking_delta", thinking: delta.text });
      case "signature":
        return delta.redacted === true ? this.#redacted(delta.signature) : this.#enterThinking() + this.#sign(delta.signature);
      case "tool_call":
        return this.#close() + this.#start({ type: "tool_call", arguments: "" }, { type: "tool_use", id: delta.id, name: delta.name, input: {} }) + this.#keepAlive();
      case "arguments":
        if (this.#open?.type !== "tool_call") throw new Error("arguments outside of a tool call");
        this.#open.arguments += delta.text;
        return this.#keepAlive();
    }
  }

  end(answer: Answer): string {
    return this.#close() + event({ type: "message_delta", delta: stop(answer), usage: encodeUsage(answer.usage) }) + event({ type: "message_stop" });
  }

  /** The official client raises it; without `message_stop` the answer is none. */
  fail(failure: GatewayFailure): string {
    return writeEvent(encodeMessagesFailure(failure).body, "error");
  }

  #enter(type: "text" | "refusal" | "reasoning", block: object): string {
    return this.#open?.type === type ? "" : this.#close() + this.#start({ type }, block);
  }

  #enterThinking(): string {
    return this.#enter("reasoning", { type: "thinking", thinking: "", signature: "" });
  }

  #start(open: Open, block: object): string {
    this.#open = open;
    return event({ type: "content_block_start", index: this.#index, content_block: block });
  }

  #close(): string {
    switch (this.#open?.type) {
      case undefined:
        return "";
      case "reasoning":
        return this.#sign(null);
      case "tool_call":
        return this.#blockDelta({ type: "input_json_delta", partial_json: argumentsObjectText(this.#open.arguments) }) + this.#stop();
      case "text":
      case "refusal":
        return this.#stop();
    }
  }

  #sign(signature: string | null): string {
    return this.#blockDelta({ type: "signature_delta", signature: signatureOut(signature) }) + this.#stop();
  }

  #redacted(data: string): string {
    return this.#close() + event({ type: "content_block_start", index: this.#index, content_block: { type: "redacted_thinking", data } }) + this.#stop();
  }

  #keepAlive(): string {
    return this.#blockDelta({ type: "input_json_delta", partial_json: "" });
  }

  #blockDelta(delta: object): string {
    return event({ type: "content_block_delta", index: this.#index, delta });
  }

  #stop(): string {
    const stopped = event({ type: "content_block_stop", index: this.#index });
    this.#open = null;
    this.#index += 1;
    return stopped;
  }
}

function event(data: { readonly type: string; readonly [field: string]: unknown }): string {
  return writeEvent(data, data.type);
}
