/** The body of `POST /v1/responses`, read. Facts: OpenAI's API reference as of the `openai` package 7.59. */
import { z } from "zod";
import type { TurnRequest } from "../../conversation.ts";
import { Dropped, invalid, readBody, readObject, shown } from "../read-request.ts";
import { decodeInput } from "./input.ts";
import { decodeToolChoice, decodeTools, withoutRepeats } from "./tools.ts";

const bodySchema = z.looseObject({
  model: z.string().min(1),
  instructions: z.string().nullish(),
  tools: z.array(z.unknown()).nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  max_output_tokens: z.int().positive().nullish(),
  // Open servers take these too; OpenAI's does not.
  top_k: z.int().nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  seed: z.int().nullish(),
  stop: z.union([z.string().transform((one) => [one]), z.array(z.string())]).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  repetition_penalty: z.number().positive().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  include: z.array(z.string()).nullish(),
  reasoning: z.looseObject({ effort: z.string().nullish() }).nullish(),
  text: z.looseObject({ format: z.looseObject({ type: z.string() }).nullish() }).nullish(),
});
const jsonSchemaSchema = z.looseObject({ name: z.string().nullish(), schema: z.record(z.string(), z.unknown()), strict: z.boolean().nullish() });

const KNOWN = new Set([...Object.keys(bodySchema.shape), "input", "tool_choice"]);
/** What needs a server that remembers. */
const STATEFUL: Readonly<Record<string, string>> = {
  previous_response_id: "responses are not kept here; send the whole conversation as input",
  conversation: "conversations are not kept here; send the whole conversation as input",
  prompt: "prompt templates are not kept here; send instructions and input",
  context_management: "the conversation is not shortened here",
  background: "responses are not kept here; leave it out or set it to false",
  store: "responses are not kept here; set it to false",
};
/** What has no effect on the meaning of an answer. */
const WITHOUT_EFFECT = new Set([
  "client_metadata",
  "max_tool_calls",
  "metadata",
  "prompt_cache_key",
  "prompt_cache_options",
  "prompt_cache_retention",
  "safety_identifier",
  "service_tier",
  "stream_options",
  "user",
]);

export function decode(value: unknown): TurnRequest {
  const raw = readObject(value, "");
  const body = readBody(bodySchema, raw, "");
  const dropped = new Dropped();
  const extra = sortOut(raw, dropped);
  const { messages, tools: additional } = decodeInput(raw["input"], dropped);
  const { choice, tools } = decodeToolChoice(raw["tool_choice"], withoutRepeats([...decodeTools(body.tools ?? [], "tools", dropped), ...additional]));
  return {
    dialect: "openai-responses",
    model: body.model,
    messages: body.instructions ? [{ role: "system", name: "system", content: [{ type: "text", text: body.instructions }] }, ...messages] : messages,
    tools,
    toolChoice: choice,
    parallelToolCalls: body.parallel_tool_calls ?? null,
    sampling: {
      temperature: body.temperature ?? null,
      topP: body.top_p ?? null,
      topK: body.top_k ?? null,
      minP: body.min_p ?? null,
      maxTokens: body.max_output_tokens ?? null,
      stop: body.stop ?? [],
      seed: body.seed ?? null,
      presencePenalty: body.presence_penalty ?? null,
      frequencyPenalty: body.frequency_penalty ?? null,
      repetitionPenalty: body.repetition_penalty ?? null,
    },
    reasoning: decodeReasoningConfig(body.reasoning ?? null, dropped),
    responseFormat: decodeFormat(body.text ?? null, dropped),
    logprobs: decodeLogprobs(body, dropped),
    stream: body.stream ?? false,
    streamUsage: true,
    extra,
    dropped: dropped.list(),
  };
}

/** The top-level fields that `bodySchema` does not read: refused, noted, or handed on as unknown. */
function sortOut(raw: Readonly<Record<string, unknown>>, dropped: Dropped): Readonly<Record<string, unknown>> {
  const extra: [string, unknown][] = [];
  for (const [key, value] of Object.entries(raw)) {
    if (KNOWN.has(key) || value === null || value === undefined) continue;
    const stateful = Object.hasOwn(STATEFUL, key) ? STATEFUL[key] : undefined;
    if (stateful !== undefined) {
      if (value !== false) throw invalid(key, stateful);
    } else if (key === "truncation") {
      if (value !== "disabled" && value !== "auto") throw invalid(key, "must be auto or disabled");
      if (value === "auto") dropped.add(key, "nothing is cut here; a conversation that does not fit is answered with context_length_exceeded");
    } else if (WITHOUT_EFFECT.has(key)) dropped.add(key, "no effect here");
    else extra.push([key, value]);
  }
  return Object.fromEntries(extra);
}

function decodeReasoningConfig(value: z.infer<typeof bodySchema>["reasoning"] | null, dropped: Dropped): TurnRequest["reasoning"] {
  if (!value) return null;
  for (const [key, entry] of Object.entries(value)) {
    if (key !== "effort" && entry !== null) dropped.add(`reasoning.${key}`, key === "summary" || key === "generate_summary" ? "reasoning is given whole, not summed up" : "no effect here");
  }
  const effort = value.effort ?? null;
  return { enabled: effort === "none" ? false : null, effort, budgetTokens: null };
}

function decodeFormat(value: z.infer<typeof bodySchema>["text"] | null, dropped: Dropped): TurnRequest["responseFormat"] {
  if (!value) return null;
  for (const [key, entry] of Object.entries(value)) if (key !== "format" && entry !== null) dropped.add(`text.${key}`, "no effect here");
  const format = value.format;
  if (!format || format.type === "text") return null;
  if (format.type === "json_object") return { type: "json_object" };
  if (format.type !== "json_schema") throw invalid("text.format.type", `${shown(format.type)} is not one of text, json_object, json_schema`);
  const { name, schema, strict } = readBody(jsonSchemaSchema, format, "text.format");
  if (format["description"]) dropped.add("text.format.description", "not shown to the model");
  return { type: "json_schema", name: name ?? null, schema, strict: strict ?? null };
}

function decodeLogprobs(body: z.infer<typeof bodySchema>, dropped: Dropped): number | null {
  let asked = (body.top_logprobs ?? 0) > 0;
  for (const entry of body.include ?? []) {
    if (entry === "message.output_text.logprobs") asked = true;
    // Reasoning always comes with what carries it back.
    else if (entry !== "reasoning.encrypted_content") dropped.add(`include(${entry})`, "nothing of the kind is produced here");
  }
  return asked ? (body.top_logprobs ?? 0) : null;
}
