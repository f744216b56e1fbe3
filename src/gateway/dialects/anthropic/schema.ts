/**
 * The body of `POST /v1/messages` and `/v1/messages/count_tokens`, as the official SDK's types (stable and beta) have it and as Claude Code sends it.
 *
 * Open at the top, closed inside messages and tools, where a field that nobody reads would change what the model is told.
 */
import { z } from "zod";
import { jsonObject } from "../read-request.ts";

/** Understood, without effect on the answer; listed as dropped. */
const ignored = z.unknown().optional();

const kinds = (names: string) => ({ error: () => `not one of ${names}` });

const text = z.strictObject({ type: z.literal("text"), text: z.string(), cache_control: ignored, citations: ignored });

const image = z.strictObject({
  type: z.literal("image"),
  source: z.discriminatedUnion(
    "type",
    [
      z.strictObject({ type: z.literal("base64"), media_type: z.string().min(1), data: z.string() }),
      z.strictObject({ type: z.literal("url"), url: z.string().min(1) }),
    ],
    kinds("the image sources base64, url"),
  ),
  cache_control: ignored,
  transformations: ignored,
});

const document = z.strictObject({
  type: z.literal("document"),
  source: z.discriminatedUnion(
    "type",
    [
      z.strictObject({ type: z.literal("text"), media_type: z.literal("text/plain").optional(), data: z.string() }),
      z.strictObject({ type: z.literal("content"), content: z.union([z.string(), z.array(z.discriminatedUnion("type", [text, image], kinds("the content types here: text, image")))]) }),
    ],
    kinds("the document sources text, content: PDF and uploaded files are not supported, send their text"),
  ),
  title: z.string().nullish(),
  context: z.string().nullish(),
  cache_control: ignored,
  citations: ignored,
});

const toolReference = z.strictObject({ type: z.literal("tool_reference"), tool_name: z.string().min(1), cache_control: ignored });

const toolResult = z.strictObject({
  type: z.literal("tool_result"),
  tool_use_id: z.string().min(1),
  content: z
    .union([z.string(), z.array(z.discriminatedUnion("type", [text, image, document, toolReference], kinds("the content types here: text, image, document, tool_reference")))])
    .nullish(),
  is_error: z.boolean().nullish(),
  cache_control: ignored,
});

const thinking = z.strictObject({ type: z.literal("thinking"), thinking: z.string(), signature: z.string().nullish(), cache_control: ignored });
const redactedThinking = z.strictObject({ type: z.literal("redacted_thinking"), data: z.string(), cache_control: ignored });
const toolUse = z.strictObject({
  type: z.literal("tool_use"),
  id: z.string().min(1),
  name: z.string().min(1),
  input: jsonObject.nullish(),
  cache_control: ignored,
  caller: ignored,
});

const tool = z.strictObject({
  type: z.literal("custom").nullish(),
  name: z.string().min(1),
  description: z.string().nullish(),
  input_schema: jsonObject,
  strict: z.boolean().nullish(),
  cache_control: ignored,
  eager_input_streaming: ignored,
  defer_loading: ignored,
  input_examples: ignored,
  allowed_callers: ignored,
});

/** Tools that Anthropic defines: `web_search_20250305`, `bash_20250124`, ... Judged by name in the decoder. */
const typedTool = z.looseObject({ type: z.string().refine((type) => type !== "custom", { abort: true }), name: z.string().optional() });

const namedChange = z.strictObject({ type: z.literal("tool_reference"), name: z.string().min(1) });
const toolChange = [
  z.strictObject({
    type: z.literal("tool_addition"),
    tool: z.discriminatedUnion("type", [namedChange, z.strictObject({ type: z.literal("tool_definition"), definition: tool })], kinds("the tool changes tool_reference, tool_definition")),
    cache_control: ignored,
  }),
  z.strictObject({ type: z.literal("tool_removal"), tool: namedChange, cache_control: ignored }),
] as const;

const message = z.discriminatedUnion(
  "role",
  [
    z.strictObject({
      role: z.literal("user"),
      content: z.union([z.string(), z.array(z.discriminatedUnion("type", [text, image, document, toolResult], kinds("the content types text, image, document, tool_result")))]),
    }),
    z.strictObject({
      role: z.literal("assistant"),
      content: z.union([
        z.string(),
        z.array(z.discriminatedUnion("type", [text, thinking, redactedThinking, toolUse], kinds("the content types text, thinking, redacted_thinking, tool_use"))),
      ]),
    }),
    z.strictObject({
      role: z.literal("system"),
      content: z.union([z.string(), z.array(z.discriminatedUnion("type", [text, ...toolChange], kinds("the content types here: text, tool_addition, tool_removal")))]).nullish(),
      clear_at: z.enum(["next_user_message", "never"]).nullish(),
      output_config: z.strictObject({ effort: z.string().min(1).nullish() }).nullish(),
    }),
  ],
  kinds("the roles user, assistant, system"),
);

const parallel = { disable_parallel_tool_use: z.boolean().nullish() };
const toolChoice = z.discriminatedUnion(
  "type",
  [
    z.strictObject({ type: z.literal("auto"), ...parallel }),
    z.strictObject({ type: z.literal("any"), ...parallel }),
    z.strictObject({ type: z.literal("tool"), name: z.string().min(1), ...parallel }),
    z.strictObject({ type: z.literal("none"), ...parallel }),
  ],
  kinds("the choices auto, any, tool, none"),
);

const thinkingDisplay = { display: ignored, block_binding: ignored };
const thinkingConfig = z.discriminatedUnion(
  "type",
  [
    z.strictObject({ type: z.literal("enabled"), budget_tokens: z.int().positive(), ...thinkingDisplay }),
    z.strictObject({ type: z.literal("adaptive"), ...thinkingDisplay }),
    z.strictObject({ type: z.literal("disabled"), ...thinkingDisplay }),
    z.strictObject({ type: z.literal("between_tools"), ...thinkingDisplay }),
  ],
  kinds("the thinking types enabled, adaptive, disabled, between_tools"),
);

const jsonFormat = z.strictObject({ type: z.literal("json_schema"), schema: jsonObject });

/** Fields of the body without effect here: accounting, caching and routing, and what only Anthropic's servers do. */
export const IGNORED_FIELDS = [
  "metadata",
  "cache_control",
  "service_tier",
  "inference_geo",
  "speed",
  "diagnostics",
  "betas",
  "anthropic_beta",
  "anthropic_version",
  "billing_policy",
  "fallbacks",
  "fallback_credit_token",
  "user_profile_id",
  "workspace_id",
  "context_management",
  "mcp_servers",
] as const;

/** Fields of the body that ask for what is not offered. */
export const REFUSED_FIELDS = {
  container: "containers of Anthropic's servers are not offered",
  compaction: "compaction by the server is not offered; ask for a summary in a message",
  thread: "threads kept by the server are not offered; send the whole conversation",
} as const;

export const messagesRequestSchema = z.looseObject({
  model: z.string().min(1),
  /** Required by the API; token counts come without. */
  max_tokens: z.int().positive().nullish(),
  messages: z.array(message).min(1),
  system: z.union([z.string(), z.array(z.discriminatedUnion("type", [text], kinds("the content types here: text")))]).nullish(),
  tools: z.array(z.union([tool, typedTool])).nullish(),
  tool_choice: toolChoice.nullish(),
  thinking: thinkingConfig.nullish(),
  output_config: z.strictObject({ effort: z.string().min(1).nullish(), format: jsonFormat.nullish(), task_budget: ignored }).nullish(),
  /** The older place of `output_config.format`. */
  output_format: jsonFormat.nullish(),
  stop_sequences: z.array(z.string().min(1)).nullish(),
  temperature: z.number().nonnegative().nullish(),
  top_p: z.number().nullish(),
  top_k: z.int().nullish(),
  stream: z.boolean().nullish(),
  ...Object.fromEntries(IGNORED_FIELDS.map((name) => [name, ignored])),
  ...Object.fromEntries(Object.keys(REFUSED_FIELDS).map((name) => [name, ignored])),
});

export type MessagesRequest = z.infer<typeof messagesRequestSchema>;
export type WireMessage = MessagesRequest["messages"][number];
export type WireTool = z.infer<typeof tool>;
export type WireTypedTool = z.infer<typeof typedTool>;
export type WireContent = z.infer<typeof text> | z.infer<typeof image> | z.infer<typeof document> | z.infer<typeof toolReference>;
