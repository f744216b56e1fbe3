/**
 * Answers as the events of the Responses API: every output item is added, filled and done in turn, each event has the next sequence number, and the terminal event carries the
 * whole response. Codex needs `output_item.added` before deltas and acts on `output_item.done`; it hangs up at the terminal event.
 */
import type { Answer, AnswerBlock, Delta } from "../../conversation.ts";
import type { GatewayFailure } from "../../failure.ts";
import type { EncodeContext, StreamEncoder } from "../dialect.ts";
import { argumentsText, isBlank } from "../tool-arguments.ts";
import { writeEvent } from "../write-event.ts";
import { finishedResponse, itemId, type ItemStatus, logprobsOfTexts, outputItem, responseBase } from "./encode.ts";
import { streamError } from "./failure.ts";

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] };

export class ResponsesStream implements StreamEncoder {
  readonly #context: EncodeContext;
  readonly #base: Readonly<Record<string, unknown>>;
  readonly #done: AnswerBlock[] = [];
  #open: Mutable<AnswerBlock> | null = null;
  /** The open block gets no more; it is closed when something follows, because its status says whether something does. */
  #over = false;
  #sequence = 0;

  constructor(context: EncodeContext) {
    this.#context = context;
    this.#base = responseBase(context);
  }

  start(): string {
    return this.#event("response.created", { response: this.#base }) + this.#event("response.in_progress", { response: this.#base });
  }

  delta(delta: Delta): string {
    switch (delta.type) {
      case "text":
      case "reasoning":
      case "refusal":
        if (delta.text === "") {
          // Opens nothing, but ends what is open.
          this.#over ||= this.#open?.type !== delta.type;
          return "";
        }
        return this.#ensure(delta.type) + this.#fill(delta.text);
      case "signature": {
        const opened = this.#ensure("reasoning");
        const block = this.#open;
        if (block?.type === "reasoning") Object.assign(block, { signature: delta.signature, ...(delta.redacted === true ? { redacted: true } : {}) });
        this.#over = true;
        return opened;
      }
      case "tool_call": {
        const { type, id, name, kind, namespace, signature } = delta;
        const block: AnswerBlock = { type, id, name, arguments: "", ...(kind === undefined ? {} : { kind }), ...(namespace === undefined ? {} : { namespace }), ...(signature === undefined ? {} : { signature }) };
        return this.#close("completed") + this.#add(block);
      }
      case "arguments":
        return delta.text === "" || this.#over || this.#open?.type !== "tool_call" ? "" : this.#fill(delta.text);
    }
  }

  end(answer: Answer): string {
    const status = answer.finish === "length" || answer.finish === "context" || answer.finish === "content_filter" ? "incomplete" : "completed";
    const blocks = this.#open === null ? this.#done : [...this.#done, this.#open];
    const closing = this.#close(status, logprobsOfTexts(answer, blocks).at(-1) ?? []);
    const response = finishedResponse(answer, this.#done, this.#context);
    return closing + this.#event(`response.${String(response["status"])}`, { response });
  }

  fail(failure: GatewayFailure): string {
    const status = "incomplete";
    const closing = this.#close(status);
    const output = this.#done.map((block, index) => outputItem(block, index, index === this.#done.length - 1 ? status : "completed", this.#context.callId, []));
    return closing + this.#event("response.failed", { response: { ...this.#base, status: "failed", error: streamError(failure), output } });
  }

  /** Opens a block of this type unless the open one is of it. */
  #ensure(type: "text" | "reasoning" | "refusal"): string {
    if (this.#open?.type === type && !this.#over) return "";
    return this.#close("completed") + this.#add(type === "reasoning" ? { type, text: "", signature: null } : { type, text: "" });
  }

  #add(block: AnswerBlock): string {
    this.#open = { ...block };
    this.#over = false;
    const added = this.#event("response.output_item.added", { output_index: this.#done.length, item: startOf(block, this.#done.length, this.#context.callId) });
    return block.type === "text" || block.type === "refusal" ? added + this.#part("added", { ...block }) : added;
  }

  #fill(text: string): string {
    const block = this.#open;
    if (block === null) return "";
    switch (block.type) {
      case "text":
        block.text += text;
        return this.#event("response.output_text.delta", { ...this.#place(), content_index: 0, delta: text, logprobs: [] });
      case "refusal":
        block.text += text;
        return this.#event("response.refusal.delta", { ...this.#place(), content_index: 0, delta: text });
      case "reasoning": {
        const opened = block.text === "" ? this.#part("added", { ...block }) : "";
        block.text += text;
        return opened + this.#event("response.reasoning_text.delta", { ...this.#place(), content_index: 0, delta: text });
      }
      case "tool_call": {
        const held = block.kind === undefined && isBlank(block.arguments) ? block.arguments : "";
        block.arguments += text;
        // White space alone may turn out to be no arguments.
        if (block.kind === undefined && isBlank(block.arguments)) return "";
        return this.#event(`${argumentEvents(block)}.delta`, { ...this.#place(), delta: held + text });
      }
    }
  }

  #close(status: ItemStatus, logprobs: readonly unknown[] = []): string {
    const block = this.#open;
    if (block === null) return "";
    const filled = this.#finish(block, logprobs);
    const index = this.#done.length;
    const item = outputItem(block, index, status, this.#context.callId, logprobs);
    this.#done.push(block);
    this.#open = null;
    return filled + this.#event("response.output_item.done", { output_index: index, item });
  }

  /** The events that sum up the content of a block. */
  #finish(block: Mutable<AnswerBlock>, logprobs: readonly unknown[]): string {
    switch (block.type) {
      case "text":
        return this.#event("response.output_text.done", { ...this.#place(), content_index: 0, text: block.text, logprobs }) + this.#part("done", block, logprobs);
      case "refusal":
        return this.#event("response.refusal.done", { ...this.#place(), content_index: 0, refusal: block.text }) + this.#part("done", block);
      case "reasoning":
        if (block.text === "") return "";
        return this.#event("response.reasoning_text.done", { ...this.#place(), content_index: 0, text: block.text }) + this.#part("done", block);
      case "tool_call": {
        if (block.kind === "custom") return this.#event("response.custom_tool_call_input.done", { ...this.#place(), input: block.arguments });
        const filled = isBlank(block.arguments) ? this.#event(`${argumentEvents(block)}.delta`, { ...this.#place(), delta: "{}" }) : "";
        return filled + this.#event("response.function_call_arguments.done", { ...this.#place(), name: block.name, arguments: argumentsText(block.arguments) });
      }
    }
  }

  #part(what: "added" | "done", block: AnswerBlock, logprobs: readonly unknown[] = []): string {
    const [part] = outputItem(block, 0, "completed", "", logprobs)["content"] as readonly unknown[];
    const empty = { type: "reasoning_text", text: "" };
    return this.#event(`response.content_part.${what}`, { ...this.#place(), content_index: 0, part: part ?? empty });
  }

  #place(): { readonly item_id: string; readonly output_index: number } {
    const index = this.#done.length;
    return { item_id: this.#open === null ? "" : itemId(this.#open, index, this.#context.callId), output_index: index };
  }

  #event(type: string, fields: Readonly<Record<string, unknown>>): string {
    return writeEvent({ type, sequence_number: this.#sequence++, ...fields }, type);
  }
}

/** An item before anything is in it. */
function startOf(block: AnswerBlock, index: number, callId: string): unknown {
  const item = { ...outputItem(block, index, "in_progress", callId, []) };
  if ("content" in item) item["content"] = [];
  if ("arguments" in item) item["arguments"] = "";
  if ("encrypted_content" in item) delete item["encrypted_content"];
  return item;
}

function argumentEvents(block: { readonly kind?: "custom" }): string {
  return block.kind === "custom" ? "response.custom_tool_call_input" : "response.function_call_arguments";
}
