/** The model gateway: dialects in front, inference servers behind, and between them every call with its exact tokens. */
export type * from "./call.ts";
export type * from "./conversation.ts";
export type * from "./dialects/dialect.ts";
export { GatewayFailure, type FailureDetails, type FailureKind } from "./failure.ts";
export type * from "./session.ts";
export { answerKey, chainKeys, conversationFacts, messageKey, toolsKey, type MessageKey } from "./trace/message-key.ts";
export type * from "./upstreams/upstream.ts";
