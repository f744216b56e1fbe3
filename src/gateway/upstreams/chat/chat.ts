/** An inference server behind chat completions: vLLM, SGLang, or any other that speaks them. */
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { DEFAULT_SAMPLING, type TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import { failureOfConnection, failureOfErrorObject, failureOfStatus } from "../failures.ts";
import { BrokenConnection, HttpClient, TextSink } from "../http.ts";
import { redact } from "../redact.ts";
import type { UpstreamSpec } from "../spec.ts";
import type { GenerateJob, Generation, Upstream, UpstreamFacts } from "../upstream.ts";
import { fewerAsks, firstAsks, type ChatAsks } from "./asks.ts";
import { chatMessages, type ReasoningField } from "./messages.ts";
import { ChatReader, type ChatAnswer } from "./read.ts";
import { chatBody } from "./request.ts";
import { ChatSink } from "./sink.ts";
import { record } from "./tokens.ts";
import { wireTools } from "../tool-names.ts";

export interface ChatUpstreamOptions {
  readonly spec: UpstreamSpec;
  readonly apiKey: string | null;
  readonly runtime: Runtime;
  /** Silence within an answer; default `LIMITS.upstreamStallMs`. */
  readonly stallMs?: number;
}

/** What is known of one model on the server. */
interface ModelMemory {
  /** By whether the answer is streamed: what is asked, and whether a request with it was accepted. */
  readonly asks: Record<"whole" | "stream", { asks: ChatAsks; accepted: boolean }>;
  contextTokens: number | null;
  /** Streams of this server come without token ids, whole answers with them: ask for whole ones. */
  wholeOnly: boolean;
  facts: Promise<UpstreamFacts> | null;
}

/** A connection that broke before any answer: the server had closed it while it was idle. */
const RESET_CODES = new Set(["UND_ERR_SOCKET", "ECONNRESET", "EPIPE"]);

export class ChatUpstream implements Upstream {
  readonly name: string;
  readonly #options: ChatUpstreamOptions;
  readonly #http: HttpClient;
  readonly #paths: { readonly v1: string; readonly root: string };
  readonly #headers: Readonly<Record<string, string>>;
  readonly #host: string;
  readonly #models = new Map<string, ModelMemory>();
  #reasoningField: ReasoningField = "reasoning_content";

  constructor(options: ChatUpstreamOptions) {
    const { spec, apiKey, stallMs = LIMITS.upstreamStallMs } = options;
    const url = new URL(spec.url);
    this.name = `${spec.kind} ${spec.url}`;
    this.#options = options;
    this.#host = url.host;
    this.#http = new HttpClient(url.origin, stallMs);
    this.#paths = { v1: url.pathname.replace(/\/$/, ""), root: new URL(spec.root).pathname.replace(/\/$/, "") };
    this.#headers = { "content-type": "application/json", ...(apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }) };
  }

  async generate(job: GenerateJob): Promise<Generation> {
    const memory = this.#memory(job.request.model);
    const { answer, tokens, upstreamId, notes } = await this.#generate(job, job.onDelta !== null && !memory.wholeOnly);
    return { answer, tokens, upstreamId, notes };
  }

  /** Tries until the server takes the request: with fewer wishes, with a limit that fits, or over a new connection. */
  async #generate(job: GenerateJob, stream: boolean): Promise<ChatAnswer> {
    const memory = this.#memory(job.request.model);
    const learnt = memory.asks[stream ? "stream" : "whole"];
    const notes: string[] = [];
    let { asks } = learnt;
    let maxTokens = this.#sensibleLimit(job.request.sampling.maxTokens, memory);
    let reconnected = false;
    for (let attempt = 0; ; attempt++) {
      const requestId = attempt === 0 ? job.requestId : `${job.requestId}-${attempt}`;
      const body = chatBody(job.request, { asks, stream, requestId, reasoningField: this.#reasoningField, maxTokens });
      const result = await this.#call(job, body, requestId, maxTokens);
      if ("answer" in result) {
        learnt.asks = asks;
        learnt.accepted = true;
        return { ...result, notes: [...notes, ...result.notes] };
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
      const fewer = failure.kind === "refused_by_upstream" && (upstreamStatus === 400 || upstreamStatus === 422) && !learnt.accepted ? fewerAsks(asks, body, result.text) : null;
      if (fewer === null) throw failure;
      notes.push(`The model server refused a request (${failure.message}); asked again without ${fewer.given}.`);
      asks = fewer.asks;
    }
  }

  /** A limit that the context cannot reach is the server's own, which needs no room beside the prompt. */
  #sensibleLimit(maxTokens: number | null, memory: ModelMemory): number | null {
    const { contextTokens } = memory;
    return maxTokens !== null && contextTokens !== null && this.#options.spec.kind !== "openai" && maxTokens >= contextTokens ? null : maxTokens;
  }

  async #call(
    job: GenerateJob,
    body: Readonly<Record<string, unknown>>,
    requestId: string,
    maxTokens: number | null,
  ): Promise<ChatAnswer | { readonly kind: "reset" | "failed"; readonly failure: GatewayFailure; readonly text: string }> {
    const reader = new ChatReader({ request: job.request, requestId, maxTokens, unlimited: this.#options.spec.kind !== "openai", fail: (error) => this.#failureOfError(error) });
    const sink = new ChatSink(reader, job.onDelta);
    try {
      await this.#post(`${this.#paths.v1}/chat/completions`, body, sink, job.signal);
      if (sink.status < 200 || sink.status > 299) {
        const text = this.#redact(sink.errorText());
        return { kind: "failed", failure: failureOfStatus(sink.status, sink.headers, text, this.#options.runtime.now()), text };
      }
      const answer = await sink.complete();
      if (reader.reasoningField !== null) this.#reasoningField = reader.reasoningField;
      return answer;
    } catch (error) {
      if (job.signal.aborted) {
        this.#abortGeneration(requestId);
        throw job.signal.reason;
      }
      if (error instanceof BrokenConnection) {
        const reset = !error.answered && RESET_CODES.has(error.code);
        return { kind: reset ? "reset" : "failed", failure: failureOfConnection(error, reader.begun), text: "" };
      }
      throw error;
    }
  }

  /** vLLM ends a generation whose connection is gone; SGLang is told. */
  #abortGeneration(requestId: string): void {
    if (this.#options.spec.kind !== "sglang") return;
    const sink = new TextSink(LIMITS.upstreamBodyBytes, () => new Error("too much"));
    const signal = new AbortController().signal;
    void this.#within(signal, (limited) => this.#post(`${this.#paths.root}/abort_request`, { rid: requestId }, sink, limited)).catch(() => undefined);
  }

  #post(path: string, body: unknown, sink: ChatSink | TextSink, signal: AbortSignal): Promise<void> {
    return this.#http.exchange({ method: "POST", path, headers: this.#headers, body: JSON.stringify(body), signal }, sink);
  }

  /** Questions about the server have a time of their own; then `timeout` is rejected. A call's time is its session's. */
  async #within<T>(signal: AbortSignal, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const stop = new AbortController();
    const onAbort = (): void => stop.abort(signal.reason);
    signal.throwIfAborted();
    signal.addEventListener("abort", onAbort, { once: true });
    const timer = new AbortController();
    this.#options.runtime.sleep(LIMITS.upstreamProbeMs, timer.signal).then(
      () => stop.abort(new GatewayFailure("timeout", `The model server did not answer within ${LIMITS.upstreamProbeMs / 1000} s.`)),
      () => undefined,
    );
    try {
      return await run(stop.signal);
    } finally {
      signal.removeEventListener("abort", onAbort);
      timer.abort();
    }
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
    const { spec } = this.#options;
    try {
      const models = await this.#within(signal, (limited) => this.#listModels(limited));
      memory.contextTokens = models?.find(({ id }) => id === model)?.contextTokens ?? null;
      const whole = await this.#tinyGeneration(model, false, signal);
      const capture = levelOf(whole);
      if (capture !== "tokens") return { capture, reason: reasonOf(spec.kind, capture), models };
      memory.wholeOnly = levelOf(await this.#tinyGeneration(model, true, signal)) !== "tokens";
      return { capture, reason: null, models };
    } catch (error) {
      if (!(error instanceof GatewayFailure)) throw error;
      throw new MwError("upstream_failed", `The model ${JSON.stringify(model)} at ${spec.url} did not answer: ${error.message}`, { fix: fixOf(error), cause: error, facts: { url: spec.url, model } });
    }
  }

  #tinyGeneration(model: string, stream: boolean, signal: AbortSignal): Promise<ChatAnswer> {
    const request: TurnRequest = {
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
    const requestId = `probe-${Buffer.from(this.#options.runtime.randomBytes(8)).toString("hex")}`;
    return this.#within(signal, (limited) => this.#generate({ request, requestId, onDelta: stream ? () => undefined : null, history: null, signal: limited }, stream));
  }

  /** Null where the server has no such list. */
  async #listModels(signal: AbortSignal): Promise<UpstreamFacts["models"]> {
    const sink = new TextSink(LIMITS.upstreamBodyBytes, () => new GatewayFailure("upstream", "The model server's list of models is too large."));
    try {
      await this.#http.exchange({ method: "GET", path: `${this.#paths.v1}/models`, headers: this.#headers, body: null, signal }, sink);
    } catch (error) {
      throw error instanceof BrokenConnection ? failureOfConnection(error, false) : error;
    }
    if (sink.status === 401 || sink.status === 403) throw failureOfStatus(sink.status, sink.headers, "", this.#options.runtime.now());
    if (sink.status !== 200) return null;
    return readModels(sink.text());
  }

  async countTokens(request: TurnRequest, signal: AbortSignal): Promise<number | null> {
    if (this.#options.spec.kind !== "vllm") return null;
    const sink = new TextSink(LIMITS.upstreamBodyBytes, () => new GatewayFailure("upstream", "The model server's answer is too large."));
    const tools = request.tools.length === 0 ? {} : { tools: wireTools(request.tools) };
    const body = { model: request.model, messages: chatMessages(request.messages, this.#reasoningField), ...tools, add_generation_prompt: true };
    try {
      await this.#within(signal, (limited) => this.#post(`${this.#paths.root}/tokenize`, body, sink, limited));
    } catch (error) {
      if (error instanceof BrokenConnection) throw failureOfConnection(error, false);
      throw error;
    }
    if (sink.status === 404 || sink.status === 405) return null;
    if (sink.status !== 200) throw failureOfStatus(sink.status, sink.headers, this.#redact(sink.text()), this.#options.runtime.now());
    const { count } = record(jsonOrNull(sink.text()));
    return typeof count === "number" && Number.isSafeInteger(count) && count >= 0 ? count : null;
  }

  close(): Promise<void> {
    return this.#http.close();
  }

  #failureOfError(error: unknown): GatewayFailure {
    const message = typeof error === "string" ? error : record(error)["message"];
    return failureOfErrorObject(error, this.#redact(typeof message === "string" ? message : JSON.stringify(error)), this.#options.runtime.now());
  }

  #redact(text: string): string {
    return redact(text, { apiKey: this.#options.apiKey, host: this.#host });
  }

  #memory(model: string): ModelMemory {
    let memory = this.#models.get(model);
    if (memory === undefined) {
      const asks = firstAsks(this.#options.spec.kind);
      memory = { asks: { whole: { asks, accepted: false }, stream: { asks, accepted: false } }, contextTokens: null, wholeOnly: false, facts: null };
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
      return `${what}. vLLM returns them for chat completions (return_token_ids) from version 0.10.2 on, and logprobs unless it was started with --max-logprobs 0.`;
    case "sglang":
      return `${what} for chat completions. Update SGLang, or let the gateway render prompts itself.`;
    case "openai":
      return `${what}. Exact tokens come from vLLM 0.10.2 or newer and from SGLang: name the kind, as in --upstream vllm=URL.`;
  }
}

function fixOf(failure: GatewayFailure): string {
  const { upstreamStatus } = failure.details;
  if (upstreamStatus === 401 || upstreamStatus === 403) return "Set MW_API_KEY, or name a file that holds the key with --api-key-file.";
  if (failure.kind === "not_found") return "Check --upstream (its base URL up to and including /v1) and --model.";
  if (failure.kind === "refused_by_upstream") return "Check --model and what the server says about the request.";
  return "Check that the model server is up and not overloaded.";
}

function readModels(text: string): UpstreamFacts["models"] {
  const { data } = record(jsonOrNull(text));
  if (!Array.isArray(data)) return null;
  return data.flatMap((entry: unknown) => {
    const model = record(entry);
    if (typeof model["id"] !== "string") return [];
    const context = [model["max_model_len"], model["context_length"], model["context_window"], record(model["meta"])["n_ctx"]].find((value) => typeof value === "number");
    return [{ id: model["id"], contextTokens: typeof context === "number" ? context : null }];
  });
}

function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}
