/**
 * Chat completions streamed.
 *
 * Each delta becomes one chunk as it comes. Of a call's arguments only leading white space is held back: until something follows, they may still turn out to be none,
 * and then `{}` is sent. Logprobs come in one chunk at the end, since deltas carry none; clients add them up.
 */
import type { Answer, Delta } from "../../conversation.ts";
import type { GatewayFailure } from "../../failure.ts";
import type { EncodeContext, StreamEncoder } from "../dialect.ts";
import { argumentsText, isBlank } from "../tool-arguments.ts";
import { writeEvent } from "../write-event.ts";
import { encodeLogprobs, encodeUsage, envelope, finishReason } from "./encode.ts";
import { streamedFailure } from "./failure.ts";

export class ChatStream implements StreamEncoder {
  readonly #context: EncodeContext;
  readonly #envelope: object;
  #calls = 0;
  #custom = false;
  /** White space held back from the arguments of the open call; null when none is open or something was sent of it. */
  #held: string | null = null;

  constructor(context: EncodeContext) {
    this.#context = context;
    this.#envelope = envelope(context, "chat.completion.chunk");
  }

  start(): string {
    return this.#chunk({ role: "assistant" });
  }

  delta(delta: Delta): string {
    switch (delta.type) {
      case "text":
        return this.#closeCall() + this.#chunk({ content: delta.text });
      case "reasoning":
        return this.#closeCall() + this.#chunk({ reasoning_content: delta.text });
      case "refusal":
        return this.#closeCall() + this.#chunk({ refusal: delta.text });
      case "signature":
        // Nothing in this dialect carries it, streamed or not.
        return "";
      case "tool_call":
        return this.#closeCall() + this.#openCall(delta);
      case "arguments":
        return this.#arguments(delta.text);
    }
  }

  end(answer: Answer): string {
    const logprobs = encodeLogprobs(answer);
    return (
      this.#closeCall() +
      (logprobs === null ? "" : this.#chunk({}, { logprobs })) +
      this.#chunk({}, { finish_reason: finishReason(answer) }) +
      (this.#context.request.streamUsage && answer.usage !== null ? writeEvent({ ...this.#envelope, choices: [], usage: encodeUsage(answer.usage) }) : "") +
      writeEvent("[DONE]")
    );
  }

  /** An error object in place of a chunk, and no `[DONE]`: the official clients raise it. */
  fail(failure: GatewayFailure): string {
    return writeEvent(streamedFailure(failure));
  }

  #openCall({ id, name, kind }: Extract<Delta, { type: "tool_call" }>): string {
    const index = this.#calls;
    this.#calls += 1;
    this.#custom = kind === "custom";
    this.#held = this.#custom ? null : "";
    return this.#chunk({ tool_calls: [this.#custom ? { index, id, type: "custom", custom: { name, input: "" } } : { index, id, type: "function", function: { name, arguments: "" } }] });
  }

  #arguments(text: string): string {
    if (this.#held !== null && isBlank(text)) {
      this.#held += text;
      return "";
    }
    const whole = (this.#held ?? "") + text;
    this.#held = null;
    return this.#argumentsChunk(whole);
  }

  #closeCall(): string {
    const held = this.#held;
    this.#held = null;
    return held === null ? "" : this.#argumentsChunk(argumentsText(held));
  }

  #argumentsChunk(text: string): string {
    return this.#chunk({ tool_calls: [{ index: this.#calls - 1, ...(this.#custom ? { custom: { input: text } } : { function: { arguments: text } }) }] });
  }

  #chunk(delta: object, end: { readonly finish_reason?: string; readonly logprobs?: object } = {}): string {
    const choice = { index: 0, delta, logprobs: end.logprobs ?? null, finish_reason: end.finish_reason ?? null };
    return writeEvent({ ...this.#envelope, choices: [choice], ...(this.#context.request.streamUsage ? { usage: null } : {}) });
  }
}
