/**
 * The items of `input` as messages. What a model says is spread over items there (reasoning, message, calls): neighbours that are the assistant's become one message, in
 * which their order stays.
 */
import { z } from "zod";
import type { AnswerBlock, Message, ReasoningBlock, ToolDefinition } from "../../conversation.ts";
import { type Dropped, invalid, readBody, readList, readObject, shown } from "../read-request.ts";
import { decodeAnswerContent, decodeContent } from "./content.ts";
import { unsealReasoning } from "./reasoning.ts";
import { decodeTools } from "./tools.ts";

const roleSchema = z.looseObject({ role: z.enum(["user", "assistant", "system", "developer"]) });
const textsSchema = z.array(z.looseObject({ text: z.string() })).nullish();
const reasoningSchema = z.looseObject({ summary: textsSchema, content: textsSchema, encrypted_content: z.string().nullish() });
const callFields = { call_id: z.string().min(1), name: z.string().min(1), namespace: z.string().nullish() };
const functionCallSchema = z.looseObject({ ...callFields, arguments: z.string() });
const customCallSchema = z.looseObject({ ...callFields, input: z.string() });
const outputSchema = z.looseObject({ call_id: z.string().min(1) });
const additionalToolsSchema = z.looseObject({ tools: z.array(z.unknown()) });

/** Fields of items that carry no meaning for the model: ids and states that the API itself gave out. */
const PLAIN = ["type", "id", "status"];
const MESSAGE_FIELDS = new Set([...PLAIN, "role", "content"]);
const REASONING_FIELDS = new Set([...PLAIN, "summary", "content", "encrypted_content"]);
const CALL_FIELDS = new Set([...PLAIN, "call_id", "name", "namespace", "arguments", "input"]);
const OUTPUT_FIELDS = new Set([...PLAIN, "call_id", "output", "name", "namespace"]);
const TOOLS_FIELDS = new Set([...PLAIN, "role", "tools"]);

export interface DecodedInput {
  readonly messages: readonly Message[];
  /** Of `additional_tools` items. */
  readonly tools: readonly ToolDefinition[];
}

export function decodeInput(input: unknown, dropped: Dropped): DecodedInput {
  if (typeof input === "string") return { messages: [{ role: "user", content: [{ type: "text", text: input }] }], tools: [] };
  const reader = new InputReader(dropped);
  for (const [index, item] of readList(input, "input").entries()) reader.read(readObject(item, `input[${index}]`), `input[${index}]`);
  return reader;
}

class InputReader implements DecodedInput {
  readonly messages: Message[] = [];
  readonly tools: ToolDefinition[] = [];
  readonly #dropped: Dropped;
  /** Names of the calls so far. */
  readonly #calls = new Map<string, string>();
  /** The content of the last message while that is the assistant's. */
  #answer: AnswerBlock[] | null = null;

  constructor(dropped: Dropped) {
    this.#dropped = dropped;
  }

  read(item: Readonly<Record<string, unknown>>, path: string): void {
    const type = item["type"] ?? ("role" in item ? "message" : "id" in item ? "item_reference" : undefined);
    switch (type) {
      case "message":
        this.#message(item, path);
        break;
      case "reasoning":
        this.#dropped.unknown(item, path, REASONING_FIELDS);
        this.#say(decodeReasoning(item, path));
        break;
      case "function_call": {
        const { call_id: id, name, arguments: text, namespace } = readBody(functionCallSchema, item, path);
        this.#call({ type: "tool_call", id, name, arguments: text, ...(namespace ? { namespace } : {}) }, item, path);
        break;
      }
      case "custom_tool_call": {
        const { call_id: id, name, input, namespace } = readBody(customCallSchema, item, path);
        this.#call({ type: "tool_call", id, name, arguments: input, kind: "custom", ...(namespace ? { namespace } : {}) }, item, path);
        break;
      }
      case "function_call_output":
      case "custom_tool_call_output": {
        const { call_id: callId } = readBody(outputSchema, item, path);
        this.#dropped.unknown(item, path, OUTPUT_FIELDS);
        const content = decodeContent(item["output"], `${path}.output`, this.#dropped);
        this.#add({ role: "tool", callId, name: this.#calls.get(callId) ?? null, content, isError: false, ...(type === "custom_tool_call_output" ? { kind: "custom" } : {}) });
        break;
      }
      case "additional_tools":
        this.#dropped.unknown(item, path, TOOLS_FIELDS);
        if (this.messages.length > 0) this.#dropped.add(`${path}(additional_tools)`, "its place among the items: the tools are offered from the beginning");
        this.tools.push(...decodeTools(readBody(additionalToolsSchema, item, path).tools, `${path}.tools`, this.#dropped));
        break;
      case "item_reference":
        throw invalid(path, "refers to an item that a server keeps; none are kept here, send the item itself");
      default:
        throw invalid(`${path}.type`, `items of type ${shown(type)} are not supported`);
    }
  }

  #message(item: Readonly<Record<string, unknown>>, path: string): void {
    const { role } = readBody(roleSchema, item, path);
    this.#dropped.unknown(item, path, MESSAGE_FIELDS);
    if (role === "assistant") this.#say(...decodeAnswerContent(item["content"], `${path}.content`, this.#dropped));
    else {
      const content = decodeContent(item["content"], `${path}.content`, this.#dropped);
      this.#add(role === "user" ? { role, content } : { role: "system", name: role, content });
    }
  }

  #call(block: AnswerBlock & { readonly type: "tool_call" }, item: Readonly<Record<string, unknown>>, path: string): void {
    this.#dropped.unknown(item, path, CALL_FIELDS);
    this.#calls.set(block.id, block.name);
    this.#say(block);
  }

  #say(...blocks: readonly AnswerBlock[]): void {
    if (this.#answer === null) {
      const content: AnswerBlock[] = [];
      this.messages.push({ role: "assistant", content });
      this.#answer = content;
    }
    this.#answer.push(...blocks);
  }

  #add(message: Message): void {
    this.#answer = null;
    this.messages.push(message);
  }
}

/** What we sealed wins over what can be read: it is exact. A summary stands in for a text only where there is none. */
function decodeReasoning(item: Readonly<Record<string, unknown>>, path: string): ReasoningBlock {
  const { summary, content, encrypted_content: sealed } = readBody(reasoningSchema, item, path);
  const own = typeof sealed === "string" ? unsealReasoning(sealed) : null;
  if (own !== null) return own;
  const texts = (content?.length ? content : (summary ?? [])).map(({ text }) => text);
  return { type: "reasoning", text: texts.join("\n\n"), signature: sealed ?? null };
}
