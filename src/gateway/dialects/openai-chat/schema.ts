/**
 * The body of `POST /v1/chat/completions`, as the OpenAI API documents it and as agent CLIs send it.
 *
 * Open at the top, where servers add parameters (vLLM, SGLang): fields that are not listed are passed on. Closed inside messages and tools, where a field that nobody
 * reads would change what the model is told.
 */
import { z } from "zod";
import { jsonObject } from "../read-request.ts";

/** Understood, without effect on the answer; listed as dropped. */
const ignored = z.unknown().optional();
/** Refused by name in the decoder when it says something. */
const refused = z.unknown().optional();

const count = z.int().nonnegative();

const textPart = z.strictObject({ type: z.literal("text"), text: z.string(), cache_control: ignored, prompt_cache_breakpoint: ignored });
const imagePart = z.strictObject({
  type: z.literal("image_url"),
  image_url: z.strictObject({ url: z.string().min(1), detail: z.string().nullish() }),
  cache_control: ignored,
  prompt_cache_breakpoint: ignored,
});
const refusalPart = z.strictObject({ type: z.literal("refusal"), refusal: z.string() });
/** Known kinds that no conversation here can carry. */
const unsupportedParts = [z.looseObject({ type: z.literal("input_audio") }), z.looseObject({ type: z.literal("file") }), z.looseObject({ type: z.literal("video_url") })] as const;

const kinds = (names: string) => ({ error: () => `not one of ${names}` });

const textContent = z.union([z.string(), z.array(z.discriminatedUnion("type", [textPart], kinds("the content types here: text")))]);
const mixedContent = z.union([
  z.string(),
  z.array(z.discriminatedUnion("type", [textPart, imagePart, ...unsupportedParts], kinds("the content types text, image_url"))),
]);
const assistantContent = z.union([z.string(), z.array(z.discriminatedUnion("type", [textPart, refusalPart], kinds("the content types here: text, refusal")))]);

const toolCall = z.strictObject({
  id: z.string().min(1),
  type: z.enum(["function", "custom"]).nullish(),
  function: z.strictObject({ name: z.string().min(1), arguments: z.string().nullish(), parsed_arguments: ignored }).nullish(),
  custom: z.strictObject({ name: z.string().min(1), input: z.string().nullish() }).nullish(),
  index: ignored,
});

const message = z.discriminatedUnion(
  "role",
  [
    z.strictObject({ role: z.enum(["system", "developer"]), content: textContent, name: ignored }),
    z.strictObject({ role: z.literal("user"), content: mixedContent, name: ignored }),
    z.strictObject({
      role: z.literal("assistant"),
      content: assistantContent.nullish(),
      refusal: z.string().nullish(),
      tool_calls: z.array(toolCall).nullish(),
      reasoning_content: z.string().nullish(),
      reasoning: z.string().nullish(),
      name: ignored,
      annotations: ignored,
      reasoning_details: ignored,
      parsed: ignored,
      audio: refused,
      function_call: refused,
    }),
    z.strictObject({ role: z.literal("tool"), tool_call_id: z.string().min(1), content: mixedContent.nullish(), name: z.string().nullish() }),
    z.looseObject({ role: z.literal("function") }),
  ],
  kinds("the roles system, developer, user, assistant, tool"),
);

const tool = z.discriminatedUnion(
  "type",
  [
    z.strictObject({
      type: z.literal("function"),
      function: z.strictObject({ name: z.string().min(1), description: z.string().nullish(), parameters: jsonObject.nullish(), strict: z.boolean().nullish() }),
      cache_control: ignored,
    }),
    z.strictObject({
      type: z.literal("custom"),
      custom: z.strictObject({ name: z.string().min(1), description: z.string().nullish(), format: z.unknown().optional() }),
      cache_control: ignored,
    }),
  ],
  kinds("the tool types function, custom"),
);

const namedTool = z.union([
  z.strictObject({ type: z.literal("function"), function: z.strictObject({ name: z.string().min(1) }) }),
  z.strictObject({ type: z.literal("custom"), custom: z.strictObject({ name: z.string().min(1) }) }),
]);

const toolChoice = z.union([
  z.enum(["auto", "none", "required"]),
  namedTool,
  z.strictObject({ type: z.literal("allowed_tools"), allowed_tools: z.strictObject({ mode: z.enum(["auto", "required"]), tools: z.array(namedTool).min(1) }) }),
]);

const responseFormat = z.discriminatedUnion(
  "type",
  [
    z.strictObject({ type: z.literal("text") }),
    z.strictObject({ type: z.literal("json_object") }),
    z.strictObject({
      type: z.literal("json_schema"),
      json_schema: z.strictObject({ name: z.string().nullish(), description: ignored, schema: jsonObject.nullish(), strict: z.boolean().nullish() }),
    }),
  ],
  kinds("the formats text, json_object, json_schema"),
);

/** Fields of the body without effect here. */
export const IGNORED_FIELDS = [
  "metadata",
  "store",
  "user",
  "safety_identifier",
  "prompt_cache_key",
  "prompt_cache_options",
  "prompt_cache_retention",
  "service_tier",
  "moderation",
  "prediction",
  "web_search_options",
] as const;

/** Fields of the body that ask for what is not offered, with what to do instead. */
export const REFUSED_FIELDS = {
  functions: "the legacy form of tools; send tools",
  function_call: "the legacy form of tool_choice; send tool_choice",
  audio: "audio answers are not supported",
} as const;

export const chatRequestSchema = z.looseObject({
  model: z.string().min(1),
  messages: z.array(message).min(1),
  tools: z.array(tool).nullish(),
  tool_choice: toolChoice.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  max_tokens: z.int().positive().nullish(),
  max_completion_tokens: z.int().positive().nullish(),
  temperature: z.number().nonnegative().nullish(),
  top_p: z.number().nullish(),
  /** vLLM and SGLang; -1 is their way to say none. */
  top_k: z.int().nullish(),
  min_p: z.number().nullish(),
  repetition_penalty: z.number().nullish(),
  presence_penalty: z.number().nullish(),
  frequency_penalty: z.number().nullish(),
  seed: z.int().nullish(),
  stop: z.union([z.string(), z.array(z.string())]).nullish(),
  n: z.int().nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: count.max(20).nullish(),
  response_format: responseFormat.nullish(),
  reasoning_effort: z.string().min(1).nullish(),
  modalities: z.array(z.string()).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.strictObject({ include_usage: z.boolean().nullish(), include_obfuscation: ignored, continuous_usage_stats: ignored }).nullish(),
  ...Object.fromEntries(IGNORED_FIELDS.map((name) => [name, ignored])),
  ...Object.fromEntries(Object.keys(REFUSED_FIELDS).map((name) => [name, refused])),
});

export type ChatRequest = z.infer<typeof chatRequestSchema>;
export type ChatMessage = ChatRequest["messages"][number];
export type ChatPart = Exclude<z.infer<typeof mixedContent>, string>[number] | z.infer<typeof refusalPart>;
export type ChatTool = z.infer<typeof tool>;
