/**
 * Contents as messages. Clients cut an answer as they like (a part for each chunk of a stream, a content for each chunk): what the model said in neighbouring contents is one
 * message, in which neighbouring texts are one block.
 */
import { z } from "zod";
import type { AnswerBlock, ContentBlock, Message, ReasoningBlock } from "../../conversation.ts";
import { type Dropped, invalid, jsonText, readBody, readObject, shown } from "../read-request.ts";
import { argumentsObjectText, unwrapArguments } from "../tool-arguments.ts";
import { camelAt } from "./keys.ts";
import { unsealRider } from "./signature.ts";
import { listAt } from "./tools.ts";

const partSchema = z.looseObject({ text: z.string().nullish(), thought: z.boolean().nullish(), thoughtSignature: z.string().nullish() });
const blobSchema = z.looseObject({ mimeType: z.string().min(1), data: z.string() });
const callSchema = z.looseObject({ id: z.string().nullish(), name: z.string().min(1) });
const roleSchema = z.enum(["user", "model", "function", "system"]).nullish();

const PART_FIELDS = new Set(["text", "thought", "thoughtSignature", "inlineData", "functionCall", "functionResponse"]);
const REFUSED_PARTS: Readonly<Record<string, string>> = {
  fileData: "files are not fetched here; send the data inline",
  executableCode: "code is not run here",
  codeExecutionResult: "code is not run here",
  toolCall: "tools of the provider's own are not offered here",
  toolResponse: "tools of the provider's own are not offered here",
  videoMetadata: "videos are not supported",
};

type Part = Readonly<Record<string, unknown>>;

export function decodeContents(value: unknown, dropped: Dropped): readonly Message[] {
  const reader = new ContentsReader(dropped);
  // The SDKs also take a single content.
  const contents = Array.isArray(value) ? (value as readonly unknown[]) : [value];
  for (const [index, content] of contents.entries()) reader.read(content, Array.isArray(value) ? `contents[${index}]` : "contents");
  return reader.messages;
}

/** `systemInstruction`: its texts, as one message; null where it has none. */
export function decodeSystem(value: unknown, dropped: Dropped): Message | null {
  if (value === null || value === undefined) return null;
  if (typeof value === "string") return { role: "system", name: "system", content: [{ type: "text", text: value }] };
  const path = "systemInstruction";
  const content = listAt(camelAt(value, path)["parts"], `${path}.parts`).map((entry, index) => decodeUserPart(readPart(entry, `${path}.parts[${index}]`, dropped), `${path}.parts[${index}]`));
  return content.length === 0 ? null : { role: "system", name: "system", content };
}

class ContentsReader {
  readonly messages: Message[] = [];
  readonly #dropped: Dropped;
  /** Calls that no response has answered yet, in order. */
  #pending: { readonly id: string; readonly name: string }[] = [];
  #calls = 0;
  #answer: AnswerBlock[] | null = null;

  constructor(dropped: Dropped) {
    this.#dropped = dropped;
  }

  read(value: unknown, path: string): void {
    const content = camelAt(value, path);
    this.#dropped.unknown(content, path, new Set(["role", "parts"]));
    const role = readBody(roleSchema, content["role"], `${path}.role`);
    const parts = listAt(content["parts"], `${path}.parts`).map((entry, index) => readPart(entry, `${path}.parts[${index}]`, this.#dropped));
    if (role === "model") for (const [index, part] of parts.entries()) this.#modelPart(part, `${path}.parts[${index}]`);
    else this.#userParts(parts, path, role === "system");
  }

  /** The results of calls come first: they belong to the turn before, whatever a client put beside them. */
  #userParts(parts: readonly Part[], path: string, system: boolean): void {
    const content: ContentBlock[] = [];
    for (const [index, part] of parts.entries()) {
      const at = `${path}.parts[${index}]`;
      if (part["functionResponse"]) this.#add(this.#response(part["functionResponse"], `${at}.functionResponse`));
      else content.push(decodeUserPart(part, at));
    }
    if (content.length > 0) this.#add(system ? { role: "system", name: "system", content } : { role: "user", content });
  }

  #modelPart(part: Part, path: string): void {
    const { text, thought, thoughtSignature } = readBody(partSchema, part, path);
    const rider = typeof thoughtSignature === "string" ? unsealRider(thoughtSignature) : {};
    if (this.#answer === null) {
      this.#answer = [];
      this.messages.push({ role: "assistant", content: this.#answer });
    }
    const answer = this.#answer;
    if (thought === true) {
      think(answer, text ?? "", thoughtSignature ?? null);
      return;
    }
    if (rider.thoughts !== undefined) restoreThoughts(answer, rider.thoughts);
    if (part["functionCall"]) {
      const call = camelAt(part["functionCall"], `${path}.functionCall`);
      const { id: given, name } = readBody(callSchema, call, `${path}.functionCall`);
      const args = call["args"] === null || call["args"] === undefined ? {} : readObject(call["args"], `${path}.functionCall.args`);
      this.#calls++;
      const id = given ? given : `call_${this.#calls}`;
      this.#pending.push({ id, name });
      answer.push({ type: "tool_call", id, name, arguments: printArguments(args, rider.arguments, `${path}.functionCall.args`), ...(rider.signature === undefined ? {} : { signature: rider.signature }) });
    } else if (typeof text === "string") {
      say(answer, rider.refusal === true ? "refusal" : "text", text);
      if (rider.signature !== undefined) this.#dropped.add(`${path}.thoughtSignature`, "a signature on a text, made by another model");
    } else throw invalid(path, "holds nothing that a model can have said");
  }

  #response(value: unknown, path: string): Message {
    const response = camelAt(value, path);
    const { id: given, name } = readBody(callSchema, response, path);
    const index = this.#pending.findIndex((call) => (given ? call.id === given : call.name === name));
    const [call] = index === -1 ? [] : this.#pending.splice(index, 1);
    const callId = call?.id ?? given;
    if (!callId) throw invalid(path, `answers no call of ${shown(name)} before it`);
    const { text, isError } = decodeResult(response["response"], `${path}.response`);
    const images = listAt(response["parts"], `${path}.parts`).map((entry, at) => decodeUserPart(readPart(entry, `${path}.parts[${at}]`, this.#dropped), `${path}.parts[${at}]`));
    this.#dropped.unknown(response, path, new Set(["id", "name", "response", "parts"]));
    return { role: "tool", callId, name, content: [{ type: "text", text }, ...images], isError };
  }

  #add(message: Message): void {
    this.#answer = null;
    this.messages.push(message);
  }
}

function readPart(value: unknown, path: string, dropped: Dropped): Part {
  const part = camelAt(value, path);
  for (const [key, entry] of Object.entries(part)) {
    const why = Object.hasOwn(REFUSED_PARTS, key) ? REFUSED_PARTS[key] : undefined;
    if (why !== undefined && entry !== null) throw invalid(`${path}.${key}`, why);
  }
  dropped.unknown(part, path, PART_FIELDS);
  return part;
}

function decodeUserPart(part: Part, path: string): ContentBlock {
  if (part["inlineData"]) {
    const { mimeType: mediaType, data } = readBody(blobSchema, camelAt(part["inlineData"], `${path}.inlineData`), `${path}.inlineData`);
    if (!mediaType.startsWith("image/")) throw invalid(`${path}.inlineData.mimeType`, `${shown(mediaType)} is no image; only images can be shown to the model`);
    return { type: "image", source: { kind: "base64", mediaType, data } };
  }
  const { text } = readBody(partSchema, part, path);
  if (typeof text !== "string") throw invalid(path, "holds neither text nor inlineData");
  return { type: "text", text };
}

/** A result is an object. Google's rule: its `output` or `error` is what the tool said, else all of it is. */
function decodeResult(value: unknown, path: string): { readonly text: string; readonly isError: boolean } {
  if (value === null || value === undefined) return { text: "", isError: false };
  const result = readObject(value, path);
  const [key, ...others] = Object.keys(result);
  if (key === undefined || others.length > 0 || (key !== "output" && key !== "error")) return { text: jsonText(result, path), isError: false };
  const said = result[key];
  return { text: typeof said === "string" ? said : jsonText(said, path), isError: key === "error" };
}

/** `sampled` rode along and holds, unless the client has changed the object since. */
function printArguments(args: Readonly<Record<string, unknown>>, sampled: string | undefined, field: string): string {
  const text = jsonText(args, field);
  if (sampled !== undefined && JSON.stringify(JSON.parse(argumentsObjectText(sampled))) === text) return sampled;
  return unwrapArguments(args) ?? text;
}

function say(answer: AnswerBlock[], type: "text" | "refusal", text: string): void {
  const last = answer.at(-1);
  if (last?.type === type) answer[answer.length - 1] = { type: last.type, text: last.text + text };
  else if (text !== "") answer.push({ type, text });
}

/** A signature ends its thought. */
function think(answer: AnswerBlock[], text: string, signature: string | null): void {
  const last = answer.at(-1);
  if (last?.type === "reasoning" && last.signature === null) answer[answer.length - 1] = { ...last, text: last.text + text, signature };
  else answer.push({ type: "reasoning", text, signature });
}

/** What rode along is exact; thoughts that a client sent back itself make way for it. */
function restoreThoughts(answer: AnswerBlock[], thoughts: readonly ReasoningBlock[]): void {
  while (answer.at(-1)?.type === "reasoning") answer.pop();
  answer.push(...thoughts);
}
