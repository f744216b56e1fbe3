/**
 * What a chat completion says, read from the body of any OpenAI-compatible server.
 *
 * Only what the loop needs is checked; everything else is kept as it came. Token ids and logprobs are taken from the shapes of vLLM (`prompt_token_ids` of the
 * response, `token_ids` of the choice, `logprobs.content[].logprob`) and SGLang (`prompt_token_ids` and `meta_info.output_token_logprobs` of the choice).
 */
import { z } from "zod";

const toolCallSchema = z.looseObject({
  id: z.string().nullish(),
  function: z.looseObject({ name: z.string().nullish(), arguments: z.unknown().optional() }).nullish(),
});

const choiceSchema = z.looseObject({
  finish_reason: z.string().nullish(),
  message: z.looseObject({
    content: z.unknown().optional(),
    refusal: z.string().nullish(),
    reasoning: z.unknown().optional(),
    reasoning_content: z.unknown().optional(),
    tool_calls: z.array(toolCallSchema).nullish(),
  }),
});

const responseSchema = z.looseObject({
  choices: z.array(choiceSchema).min(1),
  usage: z.looseObject({ prompt_tokens: z.number().nullish(), completion_tokens: z.number().nullish() }).nullish(),
});

export interface ToolCall {
  /** As the server named it; null when it did not. */
  readonly id: string | null;
  readonly name: string;
  /** The raw text of the arguments, which need not be JSON. */
  readonly arguments: string;
}

interface Tokens {
  readonly prompt: readonly number[] | null;
  readonly completion: readonly number[] | null;
  /** One for each completion token, or null. */
  readonly logprobs: readonly number[] | null;
}

export interface Answer {
  /** Text as the server sent it; null when there is none. */
  readonly content: string | null;
  readonly toolCalls: readonly ToolCall[];
  readonly refusal: string | null;
  /** The reasoning under the server's own field name, to be sent back as it came. */
  readonly reasoning: Readonly<Record<string, unknown>>;
  readonly finishReason: string | null;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
  readonly tokens: Tokens;
  /** The response without the token arrays that `tokens` holds. */
  readonly response: unknown;
}

/** Null when the body is JSON but no chat completion. */
export function readAnswer(body: unknown): Answer | null {
  const parsed = responseSchema.safeParse(body);
  const choice = parsed.data?.choices[0];
  if (parsed.data === undefined || choice === undefined) return null;
  const { message } = choice;
  const tokens = readTokens(parsed.data, choice);
  return {
    content: textOf(message.content),
    toolCalls: (message.tool_calls ?? []).map((call) => ({ id: call.id ?? null, name: call.function?.name ?? "", arguments: argumentsOf(call.function?.arguments) })),
    refusal: message.refusal ?? null,
    reasoning: {
      ...(typeof message.reasoning === "string" ? { reasoning: message.reasoning } : {}),
      ...(typeof message.reasoning_content === "string" ? { reasoning_content: message.reasoning_content } : {}),
    },
    finishReason: choice.finish_reason ?? null,
    usage: readUsage(parsed.data.usage ?? null, tokens),
    tokens,
    response: withoutTokens(parsed.data, tokens),
  };
}

function textOf(content: unknown): string | null {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return null;
  // Content parts, as some servers answer.
  const texts = content.map((part: unknown) => (isRecord(part) && typeof part["text"] === "string" ? part["text"] : ""));
  return texts.length === 0 ? null : texts.join("");
}

/** Some servers send the arguments as an object instead of its JSON text. */
function argumentsOf(value: unknown): string {
  if (typeof value === "string") return value;
  return value === undefined || value === null ? "" : JSON.stringify(value);
}

function readUsage(usage: { prompt_tokens?: number | null | undefined; completion_tokens?: number | null | undefined } | null, tokens: Tokens): Answer["usage"] {
  const promptTokens = count(usage?.prompt_tokens) ?? tokens.prompt?.length;
  const completionTokens = count(usage?.completion_tokens) ?? tokens.completion?.length;
  if (promptTokens === undefined && completionTokens === undefined) return null;
  return { promptTokens: promptTokens ?? 0, completionTokens: completionTokens ?? 0 };
}

function count(value: number | null | undefined): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

function readTokens(response: Record<string, unknown>, choice: Record<string, unknown>): Tokens {
  const meta = isRecord(choice["meta_info"]) ? choice["meta_info"] : {};
  const triples = Array.isArray(meta["output_token_logprobs"]) ? meta["output_token_logprobs"] : null;
  const content = isRecord(choice["logprobs"]) && Array.isArray(choice["logprobs"]["content"]) ? choice["logprobs"]["content"] : null;
  const prompt = ids(response["prompt_token_ids"]) ?? ids(choice["prompt_token_ids"]);
  const completion = ids(choice["token_ids"]) ?? ids(triples?.map((triple: unknown) => (Array.isArray(triple) ? triple[1] : null))) ?? idsInText(content);
  const logprobs =
    numbers(triples?.map((triple: unknown) => (Array.isArray(triple) ? triple[0] : null))) ??
    numbers(content?.map((entry: unknown) => (isRecord(entry) ? entry["logprob"] : null)));
  // A logprob that cannot be matched to its token is worth nothing.
  const matched = completion === null || logprobs === null || completion.length === logprobs.length;
  return { prompt, completion, logprobs: matched ? logprobs : null };
}

/** vLLM's `return_tokens_as_token_ids` spells each token as `token_id:123`. */
function idsInText(content: readonly unknown[] | null): readonly number[] | null {
  if (content === null || content.length === 0) return null;
  return ids(
    content.map((entry) => {
      const match = isRecord(entry) && typeof entry["token"] === "string" ? /^token_id:(\d+)$/.exec(entry["token"]) : null;
      return match === null ? null : Number(match[1]);
    }),
  );
}

function ids(value: unknown): readonly number[] | null {
  if (!Array.isArray(value)) return null;
  const all: unknown[] = value;
  return all.every((id): id is number => typeof id === "number" && Number.isSafeInteger(id) && id >= 0) ? all : null;
}

function numbers(value: unknown): readonly number[] | null {
  if (!Array.isArray(value)) return null;
  const all: unknown[] = value;
  return all.every((entry): entry is number => typeof entry === "number" && Number.isFinite(entry)) ? all : null;
}

function withoutTokens(response: Record<string, unknown>, tokens: Tokens): unknown {
  const rest = { ...response };
  if (tokens.prompt !== null) delete rest["prompt_token_ids"];
  if (Array.isArray(rest["choices"])) {
    rest["choices"] = rest["choices"].map((choice: unknown) => {
      if (!isRecord(choice)) return choice;
      const kept = { ...choice };
      if (tokens.prompt !== null) delete kept["prompt_token_ids"];
      if (tokens.completion !== null) delete kept["token_ids"];
      if (tokens.completion === null || tokens.logprobs === null) return kept;
      delete kept["logprobs"];
      if (isRecord(kept["meta_info"])) {
        const { output_token_logprobs: _taken, ...meta } = kept["meta_info"];
        kept["meta_info"] = meta;
      }
      return kept;
    });
  }
  return rest;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
