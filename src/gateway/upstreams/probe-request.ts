/** The smallest turn there is, for asking a server what it can do. */
import { DEFAULT_SAMPLING, EMPTY_TURN, type TurnRequest } from "../conversation.ts";

export function probeRequest(model: string, stream: boolean): TurnRequest {
  return { ...EMPTY_TURN, model, messages: [{ role: "user", content: [{ type: "text", text: "Hi" }] }], sampling: { ...DEFAULT_SAMPLING, maxTokens: 1 }, stream };
}
