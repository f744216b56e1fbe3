/**
 * What the policy server understands of SGLang's API (`sglang/srt/managers/io_struct.py`, `entrypoints/http_server.py`): `/generate` with token ids, `/update_weights_from_disk`,
 * `/abort_request`. What it cannot do is refused by name, never ignored.
 */
import { z } from "zod";
import type { SamplingRules } from "../model/sample.ts";

const tokenIds = z.array(z.int().nonnegative());

const samplingSchema = z.strictObject({
  temperature: z.number().nonnegative().max(100).default(1),
  top_p: z.number().positive().max(1).default(1),
  top_k: z.int().min(-1).default(-1),
  min_p: z.number().nonnegative().max(1).default(0),
  max_new_tokens: z.int().nonnegative().default(128),
  stop_token_ids: tokenIds.nullish(),
  sampling_seed: z.int().nullish(),
  ignore_eos: z.literal(false).optional(),
  // Said by clients that want every token as it was sampled, which is the only way here.
  skip_special_tokens: z.boolean().optional(),
  no_stop_trim: z.literal(true).optional(),
  presence_penalty: z.literal(0).optional(),
  frequency_penalty: z.literal(0).optional(),
  repetition_penalty: z.literal(1).optional(),
});

export const generateSchema = z.strictObject({
  rid: z.string().max(512).optional(),
  input_ids: tokenIds.min(1),
  sampling_params: samplingSchema.prefault({}),
  return_logprob: z.boolean().default(false),
  top_logprobs_num: z.int().min(0).max(64).default(0),
  stream: z.boolean().default(false),
  model: z.string().optional(),
});
export type GenerateRequest = z.infer<typeof generateSchema>;

export const updateWeightsSchema = z.strictObject({
  /** Directory with `model.safetensors`. */
  model_path: z.string().min(1),
  weight_version: z.string().min(1).max(64),
  load_format: z.string().nullish(),
  /** Generations in flight end with what they have, instead of going on under the new weights. */
  abort_all_requests: z.boolean().default(false),
});

export const abortSchema = z.strictObject({ rid: z.string().default(""), abort_all: z.boolean().default(false) });

export function samplingRules({ temperature, top_p: topP, top_k: topK, min_p: minP }: GenerateRequest["sampling_params"]): SamplingRules {
  return { temperature, topP, topK, minP };
}

export type Finish = { readonly type: "stop"; readonly matched: number } | { readonly type: "length"; readonly length: number } | { readonly type: "abort"; readonly message: string };
