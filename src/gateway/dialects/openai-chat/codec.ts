/** OpenAI chat completions: `POST /v1/chat/completions`, `GET /v1/models`. */
import type { DialectCodec } from "../dialect.ts";
import { encodeModels } from "../openai-models.ts";
import { decodeChat } from "./decode.ts";
import { encodeChat } from "./encode.ts";
import { encodeChatFailure } from "./failure.ts";
import { ChatStream } from "./stream.ts";

export const openaiChat: DialectCodec = {
  dialect: "openai-chat",
  decode: decodeChat,
  encode: encodeChat,
  stream: (context) => new ChatStream(context),
  encodeFailure: encodeChatFailure,
  encodeCount: null,
  encodeModels,
};
