/** The codec of each dialect. */
import { LIMITS } from "../../core/limits.ts";
import type { Dialect } from "../conversation.ts";
import { anthropic } from "./anthropic/codec.ts";
import type { DialectCodec } from "./dialect.ts";
import { gemini } from "./gemini/codec.ts";
import { openaiChat } from "./openai-chat/codec.ts";
import { openaiResponses } from "./openai-responses/codec.ts";
import { invalid } from "./read-request.ts";

export const CODECS: Readonly<Record<Dialect, DialectCodec>> = {
  "openai-chat": bounded(openaiChat),
  "openai-responses": bounded(openaiResponses),
  anthropic: bounded(anthropic),
  gemini: bounded(gemini),
};

/** Bodies that nest without end are refused before anything walks through them: from here on it may recurse, and write them again. */
function bounded(codec: DialectCodec): DialectCodec {
  return {
    ...codec,
    decode: (body, route) => {
      if (nestsDeeper(body, LIMITS.requestNesting)) throw invalid("", `The request nests more than ${LIMITS.requestNesting} objects and lists.`);
      return codec.decode(body, route);
    },
  };
}

function nestsDeeper(body: unknown, limit: number): boolean {
  let level: readonly unknown[] = [body];
  for (let depth = 0; depth <= limit; depth++) {
    level = level.flatMap((value): readonly unknown[] => (typeof value === "object" && value !== null ? Object.values(value) : []));
    if (level.length === 0) return false;
  }
  return true;
}
