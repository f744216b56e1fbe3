/**
 * An inference server that is given token ids: the gateway renders the chat template itself, so that a turn's prompt extends the recorded tokens exactly.
 *
 * A generation that the server aborts by itself, as servers do for new weights, goes on from the tokens that were sampled, under the new weights; each run of tokens keeps its version.
 */
import { LIMITS } from "../../../core/limits.ts";
import type { TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import type { Renderer } from "../../render/renderer.ts";
import { listenerOf } from "../answer-sink.ts";
import { ModelServer, type ModelServerOptions } from "../model-server.ts";
import { probeRequest } from "../probe-request.ts";
import type { GenerateJob, Generation, Upstream, UpstreamFacts } from "../upstream.ts";
import { COMPLETIONS } from "./completions.ts";
import { TokenGeneration } from "./generation.ts";
import { SGLANG_GENERATE } from "./sglang-generate.ts";
import { VLLM_GENERATE } from "./vllm-generate.ts";
import type { TokenAsk, TokenWire } from "./wire.ts";

export interface TokensUpstreamOptions extends ModelServerOptions {
  readonly renderer: Renderer;
}

/** An answer in the making. */
export interface TokenWork {
  readonly request: TurnRequest;
  readonly requestId: string;
  readonly promptIds: readonly number[];
  readonly maxTokens: number;
  readonly notes: string[];
  readonly generation: TokenGeneration;
  /** So far. */
  requests: number;
}

/** Whether the server gave up before the end, as it does for new weights. */
export function isUnfinished({ generation, maxTokens }: TokenWork): boolean {
  return generation.finish === "abort" && generation.ids.length < maxTokens;
}

export function abortNote({ generation }: TokenWork): string {
  return `The model server aborted the generation after ${generation.ids.length} tokens; it was resumed from there.`;
}

export async function finish({ generation, notes }: TokenWork, job: Pick<GenerateJob, "onDelta" | "progress">): Promise<Generation> {
  const onDelta = listenerOf(job);
  const { deltas, notes: more, ...rest } = generation.end();
  if (onDelta !== null) for (const delta of deltas) await onDelta(delta);
  return { ...rest, notes: [...notes, ...more] };
}

/** Fields of chat completions that change nothing which is not said otherwise. */
const KNOWN_EXTRAS = new Set(["chat_template_kwargs"]);

export class TokensUpstream implements Upstream {
  readonly name: string;
  readonly #server: ModelServer;
  readonly #renderer: Renderer;
  /** The first one that the server has. */
  #wires: readonly TokenWire[];
  #models: UpstreamFacts["models"] = null;
  readonly #facts = new Map<string, Promise<UpstreamFacts>>();

  constructor({ renderer, ...options }: TokensUpstreamOptions) {
    const { kind, url } = options.spec;
    this.name = `${kind} ${url}, ${renderer.family.name} prompts rendered here`;
    this.#server = new ModelServer(options);
    this.#renderer = renderer;
    this.#wires = kind === "sglang" ? [SGLANG_GENERATE] : kind === "vllm" ? [VLLM_GENERATE, COMPLETIONS] : [COMPLETIONS];
  }

  async generate(job: GenerateJob): Promise<Generation> {
    const work = this.begin(job);
    for (let resumes = 0; ; resumes++) {
      await this.ask(work, job);
      work.generation.endRun(null);
      if (!isUnfinished(work)) return await finish(work, job);
      if (resumes >= LIMITS.generationResumes) throw new GatewayFailure("upstream", `The model server aborted the generation ${resumes + 1} times.`);
      work.notes.push(abortNote(work));
      await this.#server.runtime.sleep(Math.min(50 * 2 ** resumes, 5_000), job.signal);
    }
  }

  /** Renders the prompt of an answer that may take several requests, not all of them to this server. */
  begin({ request, requestId, history }: GenerateJob): TokenWork {
    refuseUnenforceable(request);
    const prompt = this.#renderer.render(request, history, new Date(this.#server.runtime.now()));
    const { maxTokens, atContext } = this.#room(request, prompt.ids.length);
    return { request, requestId, promptIds: prompt.ids, maxTokens, notes: [...prompt.notes, ...givenUp(request)], generation: new TokenGeneration({ renderer: this.#renderer, request, requestId, prompt, atContext }), requests: 0 };
  }

  /** One request for what is still to be sampled, over a new connection where the kept one had been closed, by the first endpoint that the server has. */
  async ask(work: TokenWork, job: Pick<GenerateJob, "onDelta" | "progress" | "signal">, model: string = work.request.model): Promise<void> {
    const { request, generation } = work;
    const ask: TokenAsk = {
      model,
      // No id begins with another: servers abort by the beginning of an id.
      requestId: work.requests === 0 ? work.requestId : `${work.requests}-${work.requestId}`,
      promptIds: [...work.promptIds, ...generation.ids],
      sampling: request.sampling,
      maxTokens: work.maxTokens - generation.ids.length,
      endIds: [...this.#renderer.endIds],
      topLogprobs: request.logprobs,
      responseFormat: request.responseFormat,
      stream: listenerOf(job) !== null,
    };
    work.requests += 1;
    let reconnected = false;
    for (;;) {
      const [wire, ...others] = this.#wires;
      if (wire === undefined) throw new Error("an upstream without an endpoint");
      const result = await this.#server.ask(wire.base, wire.path, wire.body(ask), ask.requestId, generation.run(wire, (error) => this.#server.failureOfError(error)), job);
      if (result.kind === "answer") {
        // A stop string was met before the server knew.
        if (generation.finish === null) this.#server.abortGeneration(ask.requestId);
        return;
      }
      if (result.kind === "reset" && !reconnected) reconnected = true;
      else if (others.length > 0 && (result.failure.details.upstreamStatus === 404 || result.failure.details.upstreamStatus === 405)) this.#wires = others;
      else throw result.failure;
    }
  }

  /** How long the answer may be; throws `context_overflow`, with exact numbers, when nothing fits any more. */
  #room(request: TurnRequest, promptTokens: number): { readonly maxTokens: number; readonly atContext: boolean } {
    const wanted = request.sampling.maxTokens;
    const contextTokens = this.#models?.find(({ id }) => id === request.model)?.contextTokens ?? null;
    if (contextTokens === null) return { maxTokens: wanted ?? LIMITS.answerTokens, atContext: false };
    const room = contextTokens - promptTokens;
    if (room < 1) {
      throw new GatewayFailure("context_overflow", `The conversation is ${promptTokens} tokens long; the model's context holds ${contextTokens}, its answer included.`, { promptTokens, contextTokens });
    }
    return wanted === null || wanted > room ? { maxTokens: room, atContext: true } : { maxTokens: wanted, atContext: false };
  }

  probe(model: string, signal: AbortSignal): Promise<UpstreamFacts> {
    const known = this.#facts.get(model);
    if (known !== undefined) return known;
    const facts = this.#probe(model, signal);
    this.#facts.set(model, facts);
    // Not remembered when it failed: the server may be up the next time.
    facts.catch(() => this.#facts.delete(model));
    return facts;
  }

  async #probe(model: string, signal: AbortSignal): Promise<UpstreamFacts> {
    try {
      this.#models = await this.#server.within(signal, (limited) => this.#server.listModels(limited));
      const { tokens } = await this.#server.within(signal, (limited) => this.generate({ request: probeRequest(model, false), requestId: `probe-${Buffer.from(this.#server.runtime.randomBytes(8)).toString("hex")}`, onDelta: null, history: null, signal: limited }));
      if (tokens === null || tokens.completionIds.length === 0) return { capture: "text", reason: "The server returns no token ids. vLLM does from version 0.10.2 on.", models: this.#models };
      if (tokens.logprobs === null) return { capture: "text", reason: "The server returns token ids without logprobs.", models: this.#models };
      return { capture: "tokens", reason: null, models: this.#models };
    } catch (error) {
      throw error instanceof GatewayFailure ? this.#server.unreachable(model, error) : error;
    }
  }

  countTokens(request: TurnRequest): Promise<number | null> {
    return Promise.resolve(this.#renderer.render(request, null, new Date(this.#server.runtime.now())).ids.length);
  }

  close(): Promise<void> {
    return this.#server.close();
  }
}

/** What only the server's own chat endpoint can force is refused, not dropped. */
function refuseUnenforceable({ toolChoice, tools, extra }: TurnRequest): void {
  if (toolChoice !== null && tools.length > 0 && (toolChoice.type === "required" || toolChoice.type === "tool")) {
    throw new GatewayFailure("invalid_request", "tool_choice: a model that is given tokens cannot be made to call a tool; leave the choice to it (auto), or forbid it (none).", { field: "tool_choice" });
  }
  const unknown = Object.entries(extra).find(([field, value]) => !KNOWN_EXTRAS.has(field) && !(field === "n" && (value === null || value === 1)));
  if (unknown !== undefined) throw new GatewayFailure("invalid_request", `The field ${unknown[0]} cannot be passed on to an engine that is given tokens.`, { field: unknown[0] });
}

function givenUp({ parallelToolCalls, tools, reasoning }: TurnRequest): readonly string[] {
  return [
    ...(parallelToolCalls === false && tools.length > 0 ? ["parallel_tool_calls: the model was not kept from calling several tools."] : []),
    ...(reasoning !== null && reasoning.budgetTokens !== null ? ["A budget for thinking has no effect on an engine that is given tokens."] : []),
  ];
}
