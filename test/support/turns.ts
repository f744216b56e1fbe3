/** Turn requests for tests: a user's words, and what a test changes about them. */
import { DEFAULT_SAMPLING, type Sampling, type ToolDefinition, type TurnRequest } from "../../src/gateway/conversation.ts";

export function turn(changes: Partial<Omit<TurnRequest, "sampling">> & { readonly sampling?: Partial<Sampling> } = {}): TurnRequest {
  return {
    dialect: "openai-chat",
    model: "test-model",
    messages: [{ role: "user", content: [{ type: "text", text: "hi" }] }],
    tools: [],
    toolChoice: null,
    parallelToolCalls: null,
    reasoning: null,
    responseFormat: null,
    logprobs: null,
    stream: false,
    streamUsage: false,
    extra: {},
    dropped: [],
    ...changes,
    sampling: { ...DEFAULT_SAMPLING, ...changes.sampling },
  };
}

export const BASH: ToolDefinition = { name: "bash", description: "Runs a command.", parameters: { type: "object", properties: { command: { type: "string" } }, required: ["command"] } };
