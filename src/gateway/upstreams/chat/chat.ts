/** An inference server behind chat completions: vLLM, SGLang, or any other that speaks them. */
import { LIMITS } from "../../../core/limits.ts";
import type { TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { failureOfConnection, failureOfStatus } from "../failures.ts";
import { BrokenConnection, TextSink } from "../http.ts";
import { listenerOf } from "../answer-sink.ts";
import { jsonOrNull, ModelServer, type Asked, type ModelServerOptions } from "../model-server.ts";
import { probeRequest } from "../probe-request.ts";
import type { UpstreamSpec } from "../spec.ts";
import type { GenerateJob, Generation, Upstream, UpstreamFacts } from "../upstream.ts";
import { fewerAsks, firstAsks, provenAsks, UnmetWishes, type ChatAsks } from "./asks.ts";
import { chatMessages, type ReasoningField } from "./messages.ts";
import { ChatReader, type ChatAnswer } from "./read.ts";
import { chatBody } from "./request.ts";
import { record } from "./tokens.ts";
import { wireTools } from "../tool-names.ts";

/** What is known of one model on the server. */
interface ModelMemory {
  /** By whether the answer is streamed. */
  readonly asks: Record<"whole" | "stream", ChatAsks>;
  readonly unmet: UnmetWishes;
  contextTokens: number | null;
  /** Streams of this server come without token ids, whole answers with them: ask for whole ones. */
  wholeOnly: boolean;
  facts: Promise<UpstreamFacts> | null;
}

export class ChatUpstream implements Upstream {
  readonly name: string;
  readonly #server: ModelServer;
  readonly #models = new Map<string, ModelMemory>();
  #reasoningField: ReasoningField = "reasoning_content";

  constructor(options: ModelServerOptions) {
    this.name = `${options.spec.kind} ${options.spec.url}`;
    this.#server = new ModelServer(options);
  }

  async generate(job: GenerateJob): Promise<Generation> {
    const memory = this.#memory(job.request.model);
    const { answer, tokens, upstreamId, notes } = await this.#generate(job, listenerOf(job) !== null && !memory.wholeOnly);
    return { answer, tokens, upstreamId, notes };
  }

  /** Tries until the server takes the request: with fewer wishes, with a limit that fits, or over a new connection. */
  async #generate(job: GenerateJob, stream: boolean): Promise<ChatAnswer> {
    const memory = this.#memory(job.request.model);
    const form = stream ? "stream" : "whole";
    const notes: string[] = [];
    const before = memory.asks[form];
    let asks = memory.unmet.apply(before, job.request);
    let maxTokens = this.#sensibleLimit(job.request.sampling.maxTokens, memory);
    let reconnected = false;
    for (let attempt = 0; ; attempt++) {
      const requestId = attempt === 0 ? job.requestId : `${job.requestId}-${attempt}`;
      const body = chatBody(job.request, { asks, stream, requestId, reasoningField: this.#reasoningField, maxTokens });
      const result = await this.#call(job, body, requestId, maxTokens);
      if (result.kind === "answer") {
        memory.unmet.note(before, asks, job.request);
        memory.asks[form] = provenAsks(asks, body, before);
        return { ...result.answer, notes: [...notes, ...result.answer.notes] };
      }
      if (result.kind === "reset" && !reconnected) {
        reconnected = true;
        notes.push("The connection to the model server had been closed; asked again over a new one.");
        continue;
      }
      const { failure } = result;
      const fits = roomOf(failure, memory.contextTokens, maxTokens);
      if (fits !== null) {
        notes.push(`The limit of ${maxTokens} tokens does not fit the context beside the prompt; ${fits} were asked for.`);
        maxTokens = fits;
        continue;
      }
      const { upstreamStatus } = failure.details;
      const fewer = failure.kind === "refused_by_upstream" && (upstreamStatus === 400 || upstreamStatus === 422) ? fewerAsks(asks, body, result.text) : null;
      if (fewer === null) throw failure;
      notes.push(`The model server refused a request (${failure.message}); asked again without ${fewer.given}.`);
      asks = fewer.asks;
    }
  }

  /** A limit that the context cannot reach is the server's own, which needs no room beside the prompt. */
  #sensibleLimit(maxTokens: number | null, memory: ModelMemory): number | null {
    const { contextTokens } = memory;
    return maxTokens !== null && contextTokens !== null && this.#server.spec.kind !== "openai" && maxTokens >= contextTokens ? null : maxTokens;
  }

  async #call(job: GenerateJob, body: unknown, requestId: string, maxTokens: number | null): Promise<Asked<ChatAnswer>> {
    const { kind } = this.#server.spec;
    const reader = new ChatReader({ request: job.request, requestId, maxTokens, unlimited: kind !== "openai", fail: (error) => this.#server.failureOfError(error) });
    const result = await this.#server.ask("v1", "/chat/completions", body, requestId, reader, job);
    if (result.kind === "answer" && reader.reasoningField !== null) this.#reasoningField = reader.reasoningField;
    return result;
  }

  probe(model: string, signal: AbortSignal): Promise<UpstreamFacts> {
    const memory = this.#memory(model);
    memory.facts ??= this.#probe(model, memory, signal).catch((error: unknown) => {
      // Not remembered: the server may be up the next time.
      memory.facts = null;
      throw error;
    });
    return memory.facts;
  }

  async #probe(model: string, memory: ModelMemory, signal: AbortSignal): Promise<UpstreamFacts> {
    const { spec } = this.#server;
    try {
      const models = await this.#server.within(signal, (limited) => this.#server.listModels(limited));
      memory.contextTokens = models?.find(({ id }) => id === model)?.contextTokens ?? null;
      const whole = await this.#tinyGeneration(model, false, signal);
      const capture = levelOf(whole);
      if (capture !== "tokens") return { capture, reason: reasonOf(spec.kind, capture), models };
      memory.wholeOnly = levelOf(await this.#tinyGeneration(model, true, signal)) !== "tokens";
      return { capture, reason: null, models };
    } catch (error) {
      if (!(error instanceof GatewayFailure)) throw error;
      throw this.#server.unreachable(model, error);
    }
  }

  #tinyGeneration(model: string, stream: boolean, signal: AbortSignal): Promise<ChatAnswer> {
    const request = probeRequest(model, stream);
    const requestId = `probe-${Buffer.from(this.#server.runtime.randomBytes(8)).toString("hex")}`;
    return this.#server.within(signal, (limited) => this.#generate({ request, requestId, onDelta: stream ? () => undefined : null, history: null, signal: limited }, stream));
  }

  async countTokens(request: TurnRequest, signal: AbortSignal): Promise<number | null> {
    if (this.#server.spec.kind !== "vllm") return null;
    const sink = new TextSink(LIMITS.upstreamBodyBytes, () => new GatewayFailure("upstream", "The model server's answer is too large."));
    const tools = request.tools.length === 0 ? {} : { tools: wireTools(request.tools) };
    const body = { model: request.model, messages: chatMessages(request.messages, this.#reasoningField), ...tools, add_generation_prompt: true };
    try {
      await this.#server.within(signal, (limited) => this.#server.post("root", "/tokenize", body, sink, limited));
    } catch (error) {
      if (error instanceof BrokenConnection) throw failureOfConnection(error, false);
      throw error;
    }
    if (sink.status === 404 || sink.status === 405) return null;
    if (sink.status !== 200) throw failureOfStatus(sink.status, sink.headers, this.#server.redact(sink.text()), this.#server.runtime.now());
    const { count } = record(jsonOrNull(sink.text()));
    return typeof count === "number" && Number.isSafeInteger(count) && count >= 0 ? count : null;
  }

  close(): Promise<void> {
    return this.#server.close();
  }

  #memory(model: string): ModelMemory {
    let memory = this.#models.get(model);
    if (memory === undefined) {
      const asks = firstAsks(this.#server.spec.kind);
      memory = { asks: { whole: asks, stream: asks }, unmet: new UnmetWishes(), contextTokens: null, wholeOnly: false, facts: null };
      this.#models.set(model, memory);
    }
    return memory;
  }
}

/** How many tokens fit beside the prompt, where the limit alone was too large; null for any other failure. */
function roomOf(failure: GatewayFailure, knownContext: number | null, maxTokens: number | null): number | null {
  if (failure.kind !== "context_overflow" || maxTokens === null) return null;
  const { promptTokens, contextTokens = knownContext } = failure.details;
  if (promptTokens === undefined || contextTokens === null) return null;
  const room = contextTokens - promptTokens;
  return room >= 1 && room < maxTokens ? room : null;
}

function levelOf({ tokens, sawLogprobs }: ChatAnswer): UpstreamFacts["capture"] {
  if (tokens !== null && tokens.logprobs !== null && tokens.completionIds.length > 0) return "tokens";
  return sawLogprobs ? "logprobs" : "text";
}

function reasonOf(kind: UpstreamSpec["kind"], capture: "text" | "logprobs"): string {
  const what = capture === "text" ? "The server returns neither token ids nor logprobs" : "The server returns logprobs without token ids";
  switch (kind) {
    case "vllm":
      return `${what}. vLLM returns them for chat completions (return_token_ids) from version 0.10.2 on, and logprobs unless it was started with --max-logprobs 0. Or give --tokenizer DIRECTORY: the gateway then sends token ids itself.`;
    case "sglang":
      return `${what} for chat completions. Give --tokenizer DIRECTORY: the gateway then sends token ids itself; or update SGLang.`;
    case "openai":
      return `${what}. Exact tokens come from vLLM 0.10.2 or newer and from SGLang: name the kind, as in --upstream vllm=URL.`;
  }
}
