/** Google's Gemini API: `generateContent`, `streamGenerateContent` (as events and as a JSON array), `countTokens`, the listing of models. */
import type { DialectCodec } from "../dialect.ts";
import { decode } from "./decode.ts";
import { encode } from "./encode.ts";
import { encodeFailure } from "./failure.ts";
import { GeminiStream, JSON_ARRAY, SSE } from "./stream.ts";

export const gemini: DialectCodec = {
  dialect: "gemini",
  decode,
  encode,
  stream: (context) => new GeminiStream(context, SSE),
  streamJson: (context) => new GeminiStream(context, JSON_ARRAY),
  encodeFailure,
  encodeCount: (totalTokens) => ({ totalTokens }),
  encodeModels: (models) => ({
    models: models.map(({ id, contextTokens }) => ({
      name: `models/${id}`,
      displayName: id,
      supportedGenerationMethods: ["generateContent", "countTokens"],
      ...(contextTokens === null ? {} : { inputTokenLimit: contextTokens, outputTokenLimit: contextTokens }),
    })),
  }),
};
