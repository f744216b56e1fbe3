/**
 * Turns in, token ids out, and back: the chat template of one model.
 *
 * Extending: a conversation that was sampled turn by turn keeps the tokens of its turns. Only what was appended since is rendered, behind a stand-in for the last answer that is then
 * cut off; the recorded ids stay in front as they were sampled. So a prompt extends the prompt and answer before it token for token, although a fresh rendering of the same messages
 * might spell them otherwise: thoughts that templates drop from history, arguments spelled anew, text that tokenises differently at its seams.
 */
import { createHash } from "node:crypto";
import { MwError } from "../../core/errors.ts";
import type { Message, TurnRequest } from "../conversation.ts";
import { GatewayFailure } from "../failure.ts";
import { wireTools } from "../upstreams/tool-names.ts";
import type { TokenHistory } from "../upstreams/upstream.ts";
import { chatMessages, chatTools, type ChatForm, type ChatMessage } from "./chat-input.ts";
import { Detokeniser } from "./detokeniser.ts";
import { FAMILIES, familyOf, parserOf, type Family, type FamilyName } from "./family.ts";
import { Template } from "./jinja/template.ts";
import { TemplateError, TemplateRefusal } from "./jinja/values.ts";
import { AnswerReader } from "./parse/answer.ts";
import { Tokenizer } from "./tokenizer.ts";

export interface RenderedPrompt {
  readonly ids: readonly number[];
  /** How many ids at the beginning are recorded ones. */
  readonly extended: number;
  readonly notes: readonly string[];
  /** The prompt has opened a thought: the answer begins within it. */
  readonly inThought: boolean;
  readonly hasTools: boolean;
}

/** Stands for an answer in a rendering that is cut behind it. Letters only: no template and no tokenizer does anything to it. */
const STAND_IN = "standinforananswer";

export class Renderer {
  readonly family: Family;
  readonly tokenizer: Tokenizer;
  /** Ids that end an answer: sent to the engine, and no part of the text. */
  readonly endIds: ReadonlySet<number>;
  readonly #templates = new Map<string, Template>();
  readonly #marks: ReadonlySet<number>;
  readonly #form: ChatForm;
  readonly #thoughtTail: RegExp | null;
  readonly #describesTools: boolean;

  /** Throws `invalid_input` when the directory has no template, or one of no known family and none is given. */
  constructor(tokenizer: Tokenizer, options: { readonly family?: FamilyName | undefined; readonly template?: string | undefined } = {}) {
    this.tokenizer = tokenizer;
    const sources = options.template === undefined ? tokenizer.templates : new Map([["default", options.template]]);
    const source = sources.get("tool_use") ?? sources.get("default");
    if (source === undefined) {
      throw new MwError("invalid_input", `The tokenizer directory ${tokenizer.directory} has no chat template.`, { fix: "Put the model's chat_template.jinja there; a base model has none and cannot hold a conversation." });
    }
    const family = options.family === undefined ? familyOf(source) : (FAMILIES.find(({ name }) => name === options.family) ?? null);
    if (family === null) {
      throw new MwError("invalid_input", `The chat template in ${tokenizer.directory} is of no known family.`, { fix: `Name one: ${FAMILIES.map(({ name }) => name).join(", ")}.` });
    }
    this.family = family;
    for (const [name, text] of sources) this.#templates.set(name, new Template(text));
    const known = (tokens: readonly string[]): readonly number[] => tokens.flatMap((token) => tokenizer.idOf(token) ?? []);
    this.endIds = new Set([...tokenizer.endIds, ...known(family.name === "harmony" ? ["<|return|>", "<|call|>"] : family.ends)]);
    this.#marks = new Set(known([...family.marks, ...(family.tools?.marks ?? []), ...(family.thought === null ? [] : [family.thought.open, family.thought.close])]));
    this.#form = { family, argumentsAsText: /\['arguments'\]\s*\+/.test(source), hasDeveloper: source.includes("developer") };
    this.#describesTools = source.includes("tools");
    this.#thoughtTail = family.thought === null ? null : new RegExp(`${family.thought.open.replaceAll(/[[\]]/g, "\\$&")}\\s*$`);
  }

  /** `family`: as a user names it; null or absent: read off the template. Rejects `invalid_input`. */
  static async load(directory: string, family: string | null = null): Promise<Renderer> {
    const known = FAMILIES.find(({ name }) => name === family);
    if (family !== null && known === undefined) throw new MwError("usage", `There is no model family ${JSON.stringify(family)}.`, { fix: `Use one of ${FAMILIES.map(({ name }) => name).join(", ")}.` });
    return new Renderer(await Tokenizer.load(directory), known === undefined ? {} : { family: known.name });
  }

  /** Throws `invalid_request` for a conversation that the template refuses. */
  render(request: TurnRequest, history: TokenHistory | null, now: Date): RenderedPrompt {
    const tools = this.#tools(request);
    const notes: string[] = [];
    const facts = { notes, hasTools: tools !== null };
    const earlier = history?.longestPrefix(request.messages, request.tools) ?? null;
    if (earlier !== null) {
      const tail = this.#tail(request, tools, earlier.messages, earlier.ids, now, notes);
      if (tail !== null) return { ...facts, ids: [...earlier.ids, ...this.tokenizer.encode(tail)], extended: earlier.ids.length, inThought: this.#thoughtTail?.test(tail) ?? false };
    }
    const text = this.#full(request, tools, now, notes);
    return { ...facts, ids: this.tokenizer.encode(text), extended: 0, inThought: this.#thoughtTail?.test(text) ?? false };
  }

  /** The whole prompt as text. */
  text(request: TurnRequest, now: Date): string {
    return this.#full(request, this.#tools(request), now, []);
  }

  /** A model whose template says nothing of tools, or whose calls nobody here can read, must not be taken for one that declines to use them. */
  #tools(request: TurnRequest): ReturnType<typeof chatTools> {
    const tools = chatTools(request);
    if (tools === null || (this.#describesTools && (this.family.tools !== null || this.family.parser !== undefined))) return tools;
    const why = this.#describesTools ? `How models of the family ${this.family.name} call tools is not known here.` : "This model's chat template does not tell it of tools; a template that does can take its place in the tokenizer directory.";
    throw new GatewayFailure("invalid_request", why, { field: "tools" });
  }

  /** Reads one answer to `prompt`. */
  reader(request: TurnRequest, prompt: Pick<RenderedPrompt, "inThought" | "hasTools">): AnswerReader {
    const schemas = new Map(wireTools(request.tools).map(({ function: { name, parameters } }) => [name, parameters]));
    return new AnswerReader(parserOf(this.family, prompt), (tool) => schemas.get(tool) ?? null);
  }

  /** An id for the `index`-th call of an answer whose model gave none; null where any will do. */
  callId(requestId: string, index: number): string | null {
    return this.family.shortIds ? createHash("sha256").update(`${requestId} ${index}`).digest("hex").slice(0, 9) : null;
  }

  detokeniser(): Detokeniser {
    return new Detokeniser(this.tokenizer, this.#marks, this.endIds);
  }

  #full(request: TurnRequest, tools: readonly unknown[] | null, now: Date, notes: string[]): string {
    const messages = chatMessages(request.messages, this.#form, notes);
    try {
      return this.#run(request, tools, messages, now);
    } catch (error) {
      const gathered = error instanceof TemplateRefusal ? gatherSystem(messages) : null;
      if (gathered === null) throw refused(error);
      notes.push(`The template refuses the order of messages (${(error as Error).message}): system messages were gathered at the head, later ones given as the user's.`);
      try {
        return this.#run(request, tools, gathered, now);
      } catch (again) {
        throw refused(again);
      }
    }
  }

  /** What the template puts behind the answer that message `covered - 1` is, up to the next answer; null where that cannot be told apart from what comes before. */
  #tail(request: TurnRequest, tools: readonly unknown[] | null, covered: number, ids: readonly number[], now: Date, notes: string[]): string | null {
    const answer = request.messages[covered - 1];
    const appended = request.messages.slice(covered);
    const fresh = (reason: string): null => {
      notes.push(`Rendered anew, as a new segment: ${reason}.`);
      return null;
    };
    if (answer?.role !== "assistant" || appended.length === 0) return fresh("the recorded tokens end with no answer that something was appended to");
    if (appended.some(({ role }) => role === "assistant")) return fresh("an answer that was not sampled here was appended");
    const before: readonly ChatMessage[] = [{ role: "user", content: "x" }, ...chatMessages([standIn(answer)], this.#form, [])];
    let text: string;
    let end: { readonly token: string; readonly from: number } | null;
    try {
      text = this.#run(request, tools, [...before, ...chatMessages(appended, this.#form, [])], now);
      end = this.#endOf(text) ?? this.#endByLength(text, this.#run(request, tools, before, now, false));
    } catch (error) {
      if (error instanceof GatewayFailure) throw error;
      return fresh(error instanceof Error ? error.message : String(error));
    }
    if (end === null) return fresh("the template does not show where an answer ends");
    const last = ids.at(-1);
    const lastEnd = this.family.ends.find((token) => this.tokenizer.idOf(token) === last);
    const rest = text.slice(end.from);
    // An answer that was cut off has no end of its own: it gets the template's, which nobody sampled.
    if (lastEnd === undefined) return end.token + rest;
    if (lastEnd !== end.token && !this.family.endsInterchangeable) return fresh(`the answer ended with ${lastEnd}, and ${end.token} would follow`);
    return rest;
  }

  /** The first end of a turn behind the stand-in, and where the text goes on after it. */
  #endOf(text: string): { readonly token: string; readonly from: number } | null {
    const standIn = text.lastIndexOf(STAND_IN);
    const found = this.family.ends.map((token) => ({ token, at: text.indexOf(token, standIn) })).filter(({ at }) => at >= 0).toSorted((left, right) => left.at - right.at)[0];
    return standIn < 0 || found === undefined ? null : { token: found.token, from: found.at + found.token.length };
  }

  /** For templates that forget the end of an answer: it is where a rendering without the appended messages stops. */
  #endByLength(text: string, before: string): { readonly token: string; readonly from: number } | null {
    const token = this.family.ends[0];
    return token === undefined || !before.includes(STAND_IN) || !text.startsWith(before) || !this.family.endsInterchangeable ? null : { token, from: before.length };
  }

  #run(request: TurnRequest, tools: readonly unknown[] | null, messages: readonly ChatMessage[], now: Date, generate = true): string {
    const template = (tools === null ? null : this.#templates.get("tool_use")) ?? this.#templates.get("default") ?? this.#templates.get("tool_use")!;
    const { enabled = null, effort = null } = request.reasoning ?? {};
    const given = request.extra["chat_template_kwargs"];
    return template.render(
      {
        ...(enabled === null ? {} : { enable_thinking: enabled, thinking: enabled }),
        ...(effort === null ? {} : { reasoning_effort: effort }),
        ...(typeof given === "object" && given !== null ? given : {}),
        messages,
        tools,
        documents: null,
        add_generation_prompt: generate,
        bos_token: this.tokenizer.bosToken ?? "",
        eos_token: this.tokenizer.eosToken ?? "",
      },
      now,
    );
  }
}

/** The same shape of answer, with nothing in it that could be taken for something else. */
function standIn(answer: Message & { readonly role: "assistant" }): Message {
  const calls = answer.content.flatMap((block) => (block.type === "tool_call" ? [{ ...block, arguments: JSON.stringify({ x: STAND_IN }) }] : []));
  return { role: "assistant", content: calls.length === 0 ? [{ type: "text", text: STAND_IN }] : calls };
}

/** Null when there is nothing to gather. */
function gatherSystem(messages: readonly ChatMessage[]): readonly ChatMessage[] | null {
  const isSystem = ({ role }: ChatMessage): boolean => role === "system" || role === "developer";
  const head = messages.findIndex((message) => !isSystem(message));
  const leading = messages.slice(0, head < 0 ? messages.length : head);
  const rest = messages.slice(leading.length);
  if (leading.length <= 1 && !rest.some(isSystem)) return null;
  return [
    ...(leading.length === 0 ? [] : [{ role: "system", content: leading.map(({ content }) => String(content)).join("\n\n") } as ChatMessage]),
    ...rest.map((message) => (isSystem(message) ? { role: "user", content: message["content"] } : message)),
  ];
}

function refused(error: unknown): unknown {
  if (!(error instanceof TemplateError)) return error;
  return new GatewayFailure("invalid_request", `The model's chat template refuses this conversation: ${error.message}`, { field: "messages", cause: error });
}
