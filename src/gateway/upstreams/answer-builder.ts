/**
 * Puts an answer together from the pieces in which a server sends it, and says what can be passed on at once.
 *
 * Servers may interleave the pieces of parallel tool calls; harnesses must not see that. One block is open at a time and streams; pieces of others are held back until the
 * open one is finished: a text by the next block, a tool call by arguments that are a complete JSON object, all by the end of the answer. Whole answers take the same way,
 * so that a streamed and a whole answer cannot differ.
 */
import type { AnswerBlock, Delta, TurnRequest } from "../conversation.ts";
import { GatewayFailure } from "../failure.ts";
import { ToolNames, type ToolIdentity } from "./tool-names.ts";

type TextType = "text" | "reasoning" | "refusal";

/** Text grows by adding alone and is looked at when it is whole: to look at it with every piece would cost the square of its length. */
interface OpenText {
  readonly type: TextType;
  text: string;
  /** The end of the text that was not passed on. */
  unsent: string;
}

interface OpenCall {
  readonly type: "tool_call";
  id: string | null;
  name: string;
  text: string;
  unsent: string;
  /** There is nothing but white space in the text. */
  blank: boolean;
  readonly end: ObjectEnd;
  /** Set when the call was passed on. */
  tool: ToolIdentity | null;
  block: Extract<AnswerBlock, { type: "tool_call" }> | null;
}

export class AnswerBuilder {
  readonly #names: ToolNames;
  readonly #idPrefix: string;
  /** Ids of the conversation; a call with one of them would be taken for another. */
  readonly #usedIds: Set<string>;
  readonly #blocks: (OpenText | OpenCall)[] = [];
  readonly #calls = new Map<number | string, OpenCall>();
  /** The block that streams; those before it are closed. */
  #at = 0;
  #out: Delta[] = [];
  readonly notes: string[] = [];

  /** `idPrefix`: unique among all calls; tool calls whose server gave no usable id are named after it. */
  constructor(request: TurnRequest, idPrefix: string) {
    this.#names = new ToolNames(request.tools);
    this.#idPrefix = idPrefix;
    this.#usedIds = new Set(request.messages.flatMap((message) => (message.role === "assistant" ? message.content.flatMap((block) => (block.type === "tool_call" ? [block.id] : [])) : [])));
  }

  text(type: TextType, text: string): void {
    if (text === "") return;
    const last = this.#blocks.at(-1);
    if (last?.type === type) {
      last.text += text;
      last.unsent += text;
    } else this.#blocks.push({ type, text, unsent: text });
    this.#advance();
  }

  /** A piece of the tool call that the server numbers `key`. `id` and `name` count where they come first; `text` is added to its arguments. */
  toolCall(key: number | string, id: string | null, name: string | null, text: string): void {
    let call = this.#calls.get(key);
    if (call === undefined) {
      call = { type: "tool_call", id: null, name: "", text: "", unsent: "", blank: true, end: new ObjectEnd(), tool: null, block: null };
      this.#calls.set(key, call);
      this.#blocks.push(call);
    }
    if (call.block !== null) {
      if (text.trim() === "") return;
      throw new GatewayFailure("upstream", "The model server went on with a tool call that was complete.");
    }
    if (id !== null && id !== "" && call.id === null) call.id = id;
    if (name !== null && name !== "" && call.name === "") call.name = name;
    if (text !== "") {
      call.text += text;
      call.unsent += text;
      call.blank &&= text.trim() === "";
      call.end.add(text);
    }
    this.#advance();
  }

  /** What can be passed on since it was asked last. */
  take(): readonly Delta[] {
    if (this.#out.length === 0) return [];
    const deltas = this.#out;
    this.#out = [];
    return deltas;
  }

  /** The server is done: closes every block. What is still to be passed on is left for `take`. */
  end(): readonly AnswerBlock[] {
    for (; this.#at < this.#blocks.length; this.#at++) this.#close(this.#at);
    return this.#blocks.map((block) => {
      if (block.type === "tool_call") {
        // `close` has made it.
        if (block.block === null) throw new Error("a tool call was left open");
        return block.block;
      }
      return block.type === "reasoning" ? { type: "reasoning", text: block.text, signature: null } : { type: block.type, text: block.text };
    });
  }

  #advance(): void {
    while (this.#at < this.#blocks.length - 1 && this.#isFinished(this.#at)) this.#close(this.#at++);
    const open = this.#blocks[this.#at];
    if (open !== undefined) this.#stream(open);
  }

  #isFinished(at: number): boolean {
    const block = this.#blocks[at];
    return block?.type !== "tool_call" || (block.name !== "" && block.end.reached());
  }

  #stream(block: OpenText | OpenCall, closing = false): void {
    if (block.type !== "tool_call") {
      const text = this.#unsent(block, closing);
      if (text !== "") this.#out.push({ type: block.type, text });
      return;
    }
    if (block.name === "") return;
    const tool = this.#open(block);
    // A custom tool's input is inside the JSON; white space alone may turn out to be no arguments at all.
    if (tool.kind === "custom" || block.blank) return;
    const text = this.#unsent(block, closing);
    if (text !== "") this.#out.push({ type: "arguments", text });
  }

  /** Half a surrogate pair waits for its other half: alone it has no bytes. */
  #unsent(block: OpenText | OpenCall, closing: boolean): string {
    const { unsent } = block;
    const last = unsent.charCodeAt(unsent.length - 1);
    const end = !closing && last >= 0xd800 && last <= 0xdbff ? unsent.length - 1 : unsent.length;
    block.unsent = unsent.slice(end);
    return unsent.slice(0, end);
  }

  #open(call: OpenCall): ToolIdentity {
    if (call.tool === null) {
      call.tool = this.#names.find(call.name);
      call.id = this.#uniqueId(call.id);
      this.#out.push({ type: "tool_call", id: call.id, ...call.tool });
    }
    return call.tool;
  }

  #close(at: number): void {
    const block = this.#blocks[at];
    if (block === undefined) return;
    if (block.type !== "tool_call") return this.#stream(block, true);
    const tool = this.#open(block);
    const isJson = tool.kind !== "custom" && !block.blank;
    const text = isJson ? block.text : tool.kind === "custom" ? this.#customInput(block.text) : "{}";
    const rest = isJson ? this.#unsent(block, true) : text;
    if (rest !== "") this.#out.push({ type: "arguments", text: rest });
    block.block = { type: "tool_call", id: block.id ?? "", arguments: text, ...tool };
  }

  #customInput(text: string): string {
    try {
      const value = JSON.parse(text) as { readonly input?: unknown } | null;
      if (typeof value?.input === "string") return value.input;
    } catch {
      // Said below.
    }
    this.notes.push("A custom tool was called with something else than one input; the text is passed on as it was sampled.");
    return text;
  }

  #uniqueId(given: string | null): string {
    const taken = given !== null && this.#usedIds.has(given);
    if (taken) this.notes.push(`The model server called a tool with the id ${given}, which the conversation has already; it got another.`);
    let id = given === null || taken ? `call_${this.#idPrefix}_${this.#usedIds.size}` : given;
    while (this.#usedIds.has(id)) id += "_";
    this.#usedIds.add(id);
    return id;
  }
}

/** Finds the brace that closes the object which a text begins with, in pieces, and looks only when it is asked. */
class ObjectEnd {
  #pending = "";
  #depth = 0;
  #inString = false;
  #escaped = false;
  #closed = false;

  add(text: string): void {
    this.#pending += text;
  }

  reached(): boolean {
    for (const character of this.#pending) {
      if (this.#escaped) this.#escaped = false;
      else if (this.#inString) {
        if (character === "\\") this.#escaped = true;
        else if (character === '"') this.#inString = false;
      } else if (character === '"') this.#inString = true;
      else if (character === "{") this.#depth++;
      else if (character === "}" && --this.#depth === 0) this.#closed = true;
    }
    this.#pending = "";
    return this.#closed;
  }
}
