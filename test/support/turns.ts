/** Turn requests for tests: a user's words, and what a test changes about them. */
import { DEFAULT_SAMPLING, EMPTY_TURN, type Sampling, type ToolDefinition, type TurnRequest } from "../../src/gateway/conversation.ts";

export function turn(changes: Partial<Omit<TurnRequest, "sampling">> & { readonly sampling?: Partial<Sampling> } = {}): TurnRequest {
  return { ...EMPTY_TURN, model: "test-model", messages: [{ role: "user", content: [{ type: "text", text: "hi" }] }], ...changes, sampling: { ...DEFAULT_SAMPLING, ...changes.sampling } };
}

export const BASH: ToolDefinition = { name: "bash", description: "Runs a command.", parameters: { type: "object", properties: { command: { type: "string" } }, required: ["command"] } };
