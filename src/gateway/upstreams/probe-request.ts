/** The smallest turn there is, for asking a server what it can do. */
import { DEFAULT_SAMPLING, type TurnRequest } from "../conversation.ts";

export function probeRequest(model: string, stream: boolean): TurnRequest {
  return {
    dialect: "openai-chat",
    model,
    messages: [{ role: "user", content: [{ type: "text", text: "Hi" }] }],
    tools: [],
    toolChoice: null,
    parallelToolCalls: null,
    sampling: { ...DEFAULT_SAMPLING, maxTokens: 1 },
    reasoning: null,
    responseFormat: null,
    logprobs: null,
    stream,
    streamUsage: false,
    extra: {},
    dropped: [],
  };
}
