/** OpenAI's Responses API: `POST /v1/responses`, without the parts of it that need a server that remembers. */
import type { DialectCodec } from "../dialect.ts";
import { encodeModels } from "../openai-models.ts";
import { decode } from "./decode.ts";
import { encode } from "./encode.ts";
import { encodeFailure } from "./failure.ts";
import { ResponsesStream } from "./stream.ts";

export const openaiResponses: DialectCodec = {
  dialect: "openai-responses",
  decode,
  encode,
  stream: (context) => new ResponsesStream(context),
  encodeFailure,
  encodeCount: (tokens) => ({ object: "response.input_tokens", input_tokens: tokens }),
  encodeModels,
};
