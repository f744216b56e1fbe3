/**
 * What a program in a machine may not have the model server do. The server stands in a network of its own, and serves the neighbours too: it must not become a way out of
 * the machine, or into another rollout. Programs of the host have no such limits.
 */
import type { TurnRequest } from "../conversation.ts";
import { GatewayFailure } from "../failure.ts";

/**
 * Parameters of servers that reach beyond the one answer. vLLM's are those of `ChatCompletionRequest` in its `entrypoints/openai` protocol, SGLang's those of its
 * `ChatCompletionRequest` and `GenerateReqInput`.
 */
const BEYOND_THE_ANSWER: Readonly<Record<string, string>> = {
  // Hosts that the server would connect to.
  kv_transfer_params: "it names hosts to fetch from",
  bootstrap_host: "it names hosts to fetch from",
  bootstrap_port: "it names hosts to fetch from",
  bootstrap_room: "it names hosts to fetch from",
  media_io_kwargs: "it changes how the server reads media",
  mm_processor_kwargs: "it changes how the server reads media",
  // Code, or what the server would run like code.
  logits_processors: "it names code",
  custom_logit_processor: "it names code",
  custom_params: "it is for code",
  chat_template: "it is run by the server",
  vllm_xargs: "it is for code",
  // Other weights, other people's requests, other people's turn.
  lora_path: "it names other weights",
  request_id: "it names a request",
  rid: "it names a request",
  session_params: "it names a session",
  priority: "it is the operator's",
  data_parallel_rank: "it is the operator's",
  cache_salt: "it is the operator's",
  extra_key: "it is the operator's",
};

/** With them the tokens of an answer are not what the policy would have said, and its logprobs not those of the tokens. */
const OTHER_THAN_SAMPLED = new Set(["logit_bias", "allowed_token_ids", "bad_words", "bad_words_ids", "ignore_eos", "min_tokens", "min_new_tokens", "use_beam_search"]);

/** `train`: what is sampled is to be trained on. Throws `invalid_request`. */
export function refuseBeyondMachine({ messages, extra }: TurnRequest, train: boolean): void {
  for (const field of Object.keys(extra)) {
    const why = Object.hasOwn(BEYOND_THE_ANSWER, field) ? BEYOND_THE_ANSWER[field] : train && OTHER_THAN_SAMPLED.has(field) ? "answers that are trained on are the model's own" : undefined;
    if (why !== undefined) throw new GatewayFailure("invalid_request", `The field ${field} is not passed on: ${why}.`, { field });
  }
  const byAddress = messages.some(({ content }) => content.some((block) => block.type === "image" && block.source.kind === "url"));
  if (byAddress) throw new GatewayFailure("invalid_request", "An image is sent as base64 data: the model server fetches no addresses for a machine.", { field: "messages" });
}
