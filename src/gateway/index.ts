/** The model gateway: dialects in front, inference servers behind, and between them every call with its exact tokens. */
export type * from "./call.ts";
export type * from "./conversation.ts";
export type * from "./dialects/dialect.ts";
export { GatewayFailure, type FailureDetails, type FailureKind } from "./failure.ts";
export { Renderer, type RenderedPrompt } from "./render/renderer.ts";
export { Tokenizer } from "./render/tokenizer.ts";
export type * from "./session.ts";
export { answerKey, chainKeys, conversationFacts, messageKey, toolsKey, type MessageKey } from "./trace/message-key.ts";
export { openUpstream, type OpenUpstreamOptions } from "./upstreams/open.ts";
export { parseUpstreamSpec, type UpstreamKind, type UpstreamSpec } from "./upstreams/spec.ts";
export type * from "./upstreams/upstream.ts";
export { openGateway, type GatewayOptions } from "./gateway.ts";
export { CallLog } from "./log/call-log.ts";
export { readCalls } from "./log/read-calls.ts";
export { buildTrace, CALL_KINDS, type CallKind, type Relation, type Trace, type TraceNode, type TraceOptions } from "./trace/trace.ts";
export { buildSamples, TRAINED_KINDS, type SampleOptions } from "./samples/build-samples.ts";
export { BUILDERS, checkLedger, type Builder, type DropCause, type Ledger, type MaskCause, type Sample, type SampleSet, type Span } from "./samples/sample.ts";
