/** The codecs by dialect. */
import { anthropic } from "./anthropic/codec.ts";
import type { Dialect } from "../conversation.ts";
import type { DialectCodec } from "./dialect.ts";
import { openaiChat } from "./openai-chat/codec.ts";

export const CODECS: Readonly<Partial<Record<Dialect, DialectCodec>>> = { "openai-chat": openaiChat, anthropic };
