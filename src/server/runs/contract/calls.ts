/** The model calls of a rollout: how they hang together, their tokens, and one as it went over the wire. */
import { z } from "zod";
import { count, nullableText, counts } from "./common.ts";

export const traceNodeSchema = z.object({
  call: count,
  kind: z.string(),
  relation: z.string(),
  parent: count.nullable(),
  thread: count,
  spawnedBy: count.nullable(),
  at: z.string(),
  durationMs: z.number(),
  firstDeltaMs: z.number().nullable(),
  dialect: z.string(),
  model: z.string(),
  status: z.string(),
  failure: nullableText,
  finish: nullableText,
  promptTokens: count.nullable(),
  completionTokens: count.nullable(),
  capture: z.string(),
  versions: z.array(z.string()),
  replays: count,
  /** Beginning of what was answered. */
  says: z.string(),
});
export type TraceNodeView = z.infer<typeof traceNodeSchema>;

export const traceSchema = z.object({ version: z.string(), nodes: z.array(traceNodeSchema), mainLine: z.array(count) });
export type TraceView = z.infer<typeof traceSchema>;

export const spanSchema = z.object({ start: count, end: count, call: count, origin: z.enum(["trained", "context", "shared", "realigned", "inherited"]) });
export type SpanView = z.infer<typeof spanSchema>;

export const sampleHeadSchema = z.object({ tokens: count, trained: count, promptLength: count, sharedLength: count, spans: z.array(spanSchema), calls: z.array(count), kind: z.string(), meanLogprob: z.number().nullable(), versions: z.array(z.string()) });
export type SampleHead = z.infer<typeof sampleHeadSchema>;

export const samplesSchema = z.object({
  version: z.string(),
  builder: z.string(),
  versions: z.array(z.string()),
  ledger: z.object({ sampled: count, trained: count, dropped: counts, tokens: count, masked: counts }),
  samples: z.array(sampleHeadSchema),
  /** Tokens can be shown as text: the run's tokenizer is here. */
  text: z.boolean(),
});
export type SamplesView = z.infer<typeof samplesSchema>;

/**
 * A page of one sample's tokens. The binary form is four arrays behind each other, little-endian, for `n` tokens: ids i32[n], logprobs f32[n], versions i32[n], mask u8[n]; with
 * `text=1` a JSON document instead, which has `pieces` too.
 */
export const tokensPageSchema = z.object({ from: count, to: count, total: count, ids: z.array(z.int()), logprobs: z.array(z.number()), versions: z.array(z.int()), mask: z.array(z.int()), pieces: z.array(z.string()).nullable() });
export type TokensPage = z.infer<typeof tokensPageSchema>;

export const rawCallSchema = z.object({
  number: count,
  dialect: z.string(),
  status: z.string(),
  at: z.string(),
  durationMs: z.number(),
  model: z.string(),
  sampling: z.unknown(),
  notes: z.array(z.string()),
  failure: z.unknown(),
  /** The body as the harness sent it, as text; null when it is too long to be shown, then `request` at `calls/N/request` has it. */
  request: nullableText,
  requestCharacters: count,
  /** What was answered, written in the dialect of the request; null where there was no answer. */
  response: nullableText,
  responseCharacters: count,
});
export type RawCall = z.infer<typeof rawCallSchema>;
