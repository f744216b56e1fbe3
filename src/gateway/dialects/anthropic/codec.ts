/** Anthropic Messages: `POST /v1/messages`, `POST /v1/messages/count_tokens`, `GET /v1/models`. */
import type { DialectCodec } from "../dialect.ts";
import { decodeMessages } from "./decode.ts";
import { encodeMessage } from "./encode.ts";
import { encodeMessagesFailure } from "./failure.ts";
import { MessageStream } from "./stream.ts";

export const anthropic: DialectCodec = {
  dialect: "anthropic",
  decode: decodeMessages,
  encode: encodeMessage,
  stream: (context) => new MessageStream(context),
  encodeFailure: encodeMessagesFailure,
  encodeCount: (tokens) => ({ input_tokens: tokens }),
  encodeModels: (models) => ({
    data: models.map(({ id, contextTokens }) => ({ type: "model", id, display_name: id, created_at: "1970-01-01T00:00:00Z", max_input_tokens: contextTokens })),
    has_more: false,
    first_id: models[0]?.id ?? null,
    last_id: models.at(-1)?.id ?? null,
  }),
};
