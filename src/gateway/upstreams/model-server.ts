/** One inference server, whatever of its endpoints is used: connections, addresses, the key, and what may be told of it. */
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import { GatewayFailure } from "../failure.ts";
import { AnswerSink, listenerOf, type AnswerReader } from "./answer-sink.ts";
import { record } from "./chat/tokens.ts";
import { failureOfConnection, failureOfErrorObject, failureOfStatus } from "./failures.ts";
import { BrokenConnection, HttpClient, TextSink, type ResponseSink } from "./http.ts";
import { redact } from "./redact.ts";
import type { UpstreamSpec } from "./spec.ts";
import type { GenerateJob, UpstreamFacts } from "./upstream.ts";

export interface ModelServerOptions {
  readonly spec: UpstreamSpec;
  readonly apiKey: string | null;
  readonly runtime: Runtime;
  /** Silence within an answer; default `LIMITS.upstreamStallMs`. */
  readonly stallMs?: number;
}

export type Asked<Result> = { readonly kind: "answer"; readonly answer: Result } | { readonly kind: "reset" | "failed"; readonly failure: GatewayFailure; readonly text: string };

/** A connection that broke before any answer: the server had closed it while it was idle. */
const RESET_CODES = new Set(["UND_ERR_SOCKET", "ECONNRESET", "EPIPE"]);

export class ModelServer {
  readonly spec: UpstreamSpec;
  readonly runtime: Runtime;
  readonly #http: HttpClient;
  readonly #paths: { readonly v1: string; readonly root: string };
  readonly #headers: Readonly<Record<string, string>>;
  readonly #secrets: { readonly apiKey: string | null; readonly host: string };

  constructor({ spec, apiKey, runtime, stallMs = LIMITS.upstreamStallMs }: ModelServerOptions) {
    const url = new URL(spec.url);
    this.spec = spec;
    this.runtime = runtime;
    this.#secrets = { apiKey, host: url.host };
    this.#http = new HttpClient(url.origin, stallMs);
    this.#paths = { v1: url.pathname.replace(/\/$/, ""), root: new URL(spec.root).pathname.replace(/\/$/, "") };
    this.#headers = { "content-type": "application/json", ...(apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }) };
  }

  /** `base`: where `path` is: beside the OpenAI-compatible paths, or among them. */
  post(base: "root" | "v1", path: string, body: unknown, sink: ResponseSink, signal: AbortSignal): Promise<void> {
    return this.#http.exchange({ method: "POST", path: `${this.#paths[base]}${path}`, headers: this.#headers, body: JSON.stringify(body), signal }, sink);
  }

  /**
   * Asks for one generation. `reset`: the connection had been closed while it was idle, and nothing of a response came; `text`: of an error response, redacted. Rejects the signal's
   * reason, once the generation is ended on the server too.
   */
  async ask<Result>(base: "root" | "v1", path: string, body: unknown, requestId: string, reader: AnswerReader<Result>, { signal, ...job }: Pick<GenerateJob, "onDelta" | "progress" | "signal">): Promise<Asked<Result>> {
    const sink = new AnswerSink(reader, listenerOf(job));
    try {
      await this.post(base, path, body, sink, signal);
      if (sink.status < 200 || sink.status > 299) {
        const text = this.redact(sink.errorText());
        return { kind: "failed", failure: failureOfStatus(sink.status, sink.headers, text, this.runtime.now()), text };
      }
      return { kind: "answer", answer: await sink.complete() };
    } catch (error) {
      if (signal.aborted) {
        this.abortGeneration(requestId);
        throw signal.reason;
      }
      if (error instanceof BrokenConnection) {
        const reset = !error.answered && RESET_CODES.has(error.code);
        return { kind: reset ? "reset" : "failed", failure: failureOfConnection(error, reader.begun), text: "" };
      }
      throw error;
    }
  }

  /** Questions about the server have a time of their own; then `timeout` is rejected. A call's time is its session's. */
  async within<T>(signal: AbortSignal, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const stop = new AbortController();
    const onAbort = (): void => stop.abort(signal.reason);
    signal.throwIfAborted();
    signal.addEventListener("abort", onAbort, { once: true });
    const timer = new AbortController();
    this.runtime.sleep(LIMITS.upstreamProbeMs, timer.signal).then(
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

  /** vLLM ends a generation whose connection is gone; SGLang is told. */
  abortGeneration(requestId: string): void {
    if (this.spec.kind !== "sglang") return;
    const sink = new TextSink(LIMITS.upstreamBodyBytes, () => new Error("too much"));
    void this.within(new AbortController().signal, (limited) => this.post("root", "/abort_request", { rid: requestId }, sink, limited)).catch(() => undefined);
  }

  /** Null where the server has no such list. */
  async listModels(signal: AbortSignal): Promise<UpstreamFacts["models"]> {
    const sink = new TextSink(LIMITS.upstreamBodyBytes, () => new GatewayFailure("upstream", "The model server's list of models is too large."));
    try {
      await this.#http.exchange({ method: "GET", path: `${this.#paths.v1}/models`, headers: this.#headers, body: null, signal }, sink);
    } catch (error) {
      throw error instanceof BrokenConnection ? failureOfConnection(error, false) : error;
    }
    if (sink.status === 401 || sink.status === 403) throw failureOfStatus(sink.status, sink.headers, "", this.runtime.now());
    if (sink.status !== 200) return null;
    return readModels(sink.text());
  }

  failureOfError(error: unknown): GatewayFailure {
    const message = typeof error === "string" ? error : record(error)["message"];
    return failureOfErrorObject(error, this.redact(typeof message === "string" ? message : JSON.stringify(error)), this.runtime.now());
  }

  /** What a failed probe is to the person who gave the address. */
  unreachable(model: string, failure: GatewayFailure): MwError {
    const { url } = this.spec;
    return new MwError("upstream_failed", `The model ${JSON.stringify(model)} at ${url} did not answer: ${failure.message}`, { fix: fixOf(failure), cause: failure, facts: { url, model } });
  }

  redact(text: string): string {
    return redact(text, this.#secrets);
  }

  close(): Promise<void> {
    return this.#http.close();
  }
}

function fixOf(failure: GatewayFailure): string {
  const { upstreamStatus } = failure.details;
  if (upstreamStatus === 401 || upstreamStatus === 403) return "Set MW_API_KEY, or name a file that holds the key with --api-key-file.";
  if (failure.kind === "not_found") return "Check --upstream (its base URL up to and including /v1) and --model.";
  if (failure.kind === "refused_by_upstream") return "Check --model and what the server says about the request.";
  return "Check --upstream, and that the model server is up and not overloaded.";
}

function readModels(text: string): UpstreamFacts["models"] {
  const { data } = record(jsonOrNull(text));
  if (!Array.isArray(data)) return null;
  return data.flatMap((entry: unknown) => {
    const model = record(entry);
    if (typeof model["id"] !== "string") return [];
    const context = [model["max_model_len"], model["context_length"], model["context_window"], record(model["meta"])["n_ctx"]].find((value) => Number.isSafeInteger(value) && Number(value) > 0);
    return [{ id: model["id"], contextTokens: typeof context === "number" ? context : null }];
  });
}

export function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}
