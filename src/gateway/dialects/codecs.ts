/** The codec of each dialect. Bodies are read by the server, which refuses those that nest too deep for what recurses here. */
import type { Dialect } from "../conversation.ts";
import { anthropic } from "./anthropic/codec.ts";
import type { DialectCodec } from "./dialect.ts";
import { gemini } from "./gemini/codec.ts";
import { openaiChat } from "./openai-chat/codec.ts";
import { openaiResponses } from "./openai-responses/codec.ts";

export const CODECS: Readonly<Record<Dialect, DialectCodec>> = {
  "openai-chat": openaiChat,
  "openai-responses": openaiResponses,
  anthropic,
  gemini,
};
