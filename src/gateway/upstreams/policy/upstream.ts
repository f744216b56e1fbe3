/**
 * The policy of a run as an upstream: whichever version, model and endpoints its trainer names, also while sessions are open and answers under way.
 *
 * A call waits while the policy is being updated. Where prompts are rendered here, an answer that its server aborts for new weights, or that dies with its server, goes on from the
 * tokens that were sampled, at whichever endpoint the policy then has; each token keeps the version that sampled it. The server's own word about versions holds where it is a number;
 * of other tokens it is the version that was live when their request began, the oldest that can have had a part in them. A chat endpoint is asked again only while nothing of its
 * answer was passed on.
 */
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import { specOf, type LivePolicy, type PolicyEndpoint, type PolicyRegister } from "../../../policy/register.ts";
import type { Delta, TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import type { Renderer } from "../../render/renderer.ts";
import { ChatUpstream } from "../chat/chat.ts";
import { parseUpstreamSpec } from "../spec.ts";
import { isPolicyVersion } from "../tokens/generation.ts";
import { abortNote, finish, isUnfinished, TokensUpstream, type TokenWork } from "../tokens/upstream.ts";
import type { CallTokens, GenerateJob, Generation, Upstream, UpstreamFacts } from "../upstream.ts";
import { Endpoints, type EndpointUse } from "./endpoints.ts";

export interface PolicyUpstreamOptions {
  readonly register: PolicyRegister;
  readonly runtime: Runtime;
  readonly apiKey: string | null;
  /** Absent: the endpoints render prompts, by their chat endpoints. */
  readonly renderer?: Renderer | undefined;
  /** No answer is of two versions: one that would be is thrown away and sampled again, and nothing of an answer is passed on before its end. */
  readonly singleVersion?: boolean;
  /** How long a call is held whose client can be told to come back. */
  readonly holdMs?: number;
  /** How long a call goes on trying while no endpoint answers. */
  readonly outageMs?: number;
  readonly stallMs?: number;
}

/** Failures that another endpoint, or the same one a moment later, may not have. */
const PASSING = new Set(["upstream", "truncated", "overloaded"]);
const RETRY_AFTER_MS = 5_000;

export class PolicyUpstream implements Upstream {
  readonly name = "policy";
  readonly #options: PolicyUpstreamOptions;
  readonly #endpoints: Endpoints<ChatUpstream | TokensUpstream>;
  readonly #stopListening: () => void;

  constructor(options: PolicyUpstreamOptions) {
    this.#options = options;
    const { register, runtime } = options;
    this.#endpoints = new Endpoints((endpoint) => this.#open(endpoint), runtime);
    this.#endpoints.name(register.current.endpoints);
    this.#stopListening = register.onChange(({ endpoints }) => this.#endpoints.name(endpoints));
  }

  async generate(job: GenerateJob): Promise<Generation> {
    const { singleVersion = false } = this.#options;
    const deltas: Delta[] = [];
    // What is held back until the end can still be thrown away.
    const held: GenerateJob = singleVersion && job.onDelta !== null ? { ...job, onDelta: (delta) => void deltas.push(delta) } : job;
    const thrown: string[] = [];
    for (let again = 0; ; again++) {
      const attempt = again === 0 ? held : { ...held, requestId: `again${again}-${job.requestId}` };
      const generation = await (this.#options.renderer === undefined ? this.#chat(attempt) : this.#tokens(attempt));
      const versions = new Set(generation.tokens?.versions.map(([version]) => version));
      if (!singleVersion || versions.size < 2 || again >= LIMITS.generationResumes) {
        if (held !== job) for (const delta of deltas) await job.onDelta?.(delta);
        return { ...generation, notes: [...thrown, ...generation.notes] };
      }
      deltas.length = 0;
      job.progress?.clear();
      thrown.push(`An answer of the versions ${[...versions].join(", ")} was thrown away; one version was asked for.`);
    }
  }

  /** The answer as tokens, over as many requests as it takes. */
  async #tokens(job: GenerateJob): Promise<Generation> {
    let work: TokenWork | null = null;
    const outage = new Outage(this.#options);
    for (let aborts = 0; ; ) {
      const { policy, use } = await this.#enter(job, work !== null && work.generation.ids.length > 0);
      try {
        // Endpoints are opened as what the renderer says.
        const server = use.server as TokensUpstream;
        work ??= server.begin({ ...job, request: { ...job.request, model: policy.model } });
        await server.ask(work, job, policy.model);
        use.works();
        outage.over();
      } catch (error) {
        const failure = this.#passing(error, job, use);
        work?.generation.endRun(String(policy.version));
        await outage.wait(failure, job, work !== null && work.generation.ids.length > 0);
        if (work !== null && work.generation.ids.length > 0) work.notes.push(`The model server failed after ${work.generation.ids.length} tokens (${failure.message}); the answer was resumed from there.`);
        if (work !== null && work.generation.ids.length >= work.maxTokens) return await finish(work, job);
        continue;
      } finally {
        use.release();
      }
      work.generation.endRun(String(policy.version));
      if (!isUnfinished(work)) return await finish(work, job);
      if (aborts++ >= LIMITS.generationResumes) throw new GatewayFailure("upstream", `The model server aborted the generation ${aborts} times.`);
      work.notes.push(abortNote(work));
      // Whoever aborts for new weights says so about now.
      await this.#options.register.changed(Math.min(50 * 2 ** aborts, 5_000), job.signal);
    }
  }

  async #chat(job: GenerateJob): Promise<Generation> {
    const outage = new Outage(this.#options);
    let begun = false;
    const onDelta =
      job.onDelta === null
        ? null
        : (delta: Delta): void | Promise<void> => {
            begun = true;
            return job.onDelta?.(delta);
          };
    for (let tries = 0; ; tries++) {
      const { policy, use } = await this.#enter(job, false);
      try {
        const requestId = tries === 0 ? job.requestId : `${tries}-${job.requestId}`;
        const generation = await use.server.generate({ ...job, requestId, onDelta, request: { ...job.request, model: policy.model } });
        use.works();
        return { ...generation, tokens: stamped(generation.tokens, String(policy.version)) };
      } catch (error) {
        const failure = this.#passing(error, job, use);
        if (begun) throw failure;
        job.progress?.clear();
        await outage.wait(failure, job, false);
      } finally {
        use.release();
      }
    }
  }

  async #enter(job: GenerateJob, begun: boolean): Promise<{ readonly policy: LivePolicy; readonly use: EndpointUse<ChatUpstream | TokensUpstream> }> {
    const { register, holdMs = LIMITS.policyHoldMs } = this.#options;
    const policy = await register.live(job.signal, begun || job.patient === true ? LIMITS.policyHoldBegunMs : holdMs).catch((error: unknown) => {
      if (!(error instanceof MwError) || error.code !== "busy") throw error;
      throw new GatewayFailure("rate_limited", "The policy is being updated; try again.", { retryAfterMs: RETRY_AFTER_MS });
    });
    return { policy, use: this.#endpoints.use(job.session ?? job.requestId) };
  }

  /** The failure where trying again can help; else it is thrown. */
  #passing(error: unknown, job: GenerateJob, use: EndpointUse<unknown>): GatewayFailure {
    if (job.signal.aborted || !(error instanceof GatewayFailure) || !PASSING.has(error.kind)) throw error;
    use.fails();
    return error;
  }

  /** Of the first endpoint that answers. Waits while there is no policy, or it is being updated. */
  async probe(_model: string, signal: AbortSignal): Promise<UpstreamFacts> {
    const outage = new Outage(this.#options);
    for (;;) {
      const policy = await this.#options.register.live(signal, LIMITS.policyHoldBegunMs);
      const use = this.#endpoints.use("probe");
      try {
        const facts = await use.server.probe(policy.model, signal);
        use.works();
        return facts;
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof MwError) || error.code !== "upstream_failed") throw error;
        use.fails();
        await outage.pause(error, signal);
      } finally {
        use.release();
      }
    }
  }

  async countTokens(request: TurnRequest, signal: AbortSignal): Promise<number | null> {
    const policy = await this.#options.register.live(signal, LIMITS.policyHoldBegunMs);
    const use = this.#endpoints.use("count");
    try {
      return await use.server.countTokens({ ...request, model: policy.model }, signal);
    } finally {
      use.release();
    }
  }

  async close(): Promise<void> {
    this.#stopListening();
    await this.#endpoints.close();
  }

  #open(endpoint: PolicyEndpoint): ChatUpstream | TokensUpstream {
    const { apiKey, runtime, renderer, stallMs } = this.#options;
    const options = { spec: parseUpstreamSpec(specOf(endpoint), "the policy's endpoint"), apiKey, runtime, ...(stallMs === undefined ? {} : { stallMs }) };
    return renderer === undefined ? new ChatUpstream(options) : new TokensUpstream({ ...options, renderer });
  }
}

/** How long no endpoint has answered one call. */
class Outage {
  readonly #options: PolicyUpstreamOptions;
  #since: number | null = null;
  #failures = 0;

  constructor(options: PolicyUpstreamOptions) {
    this.#options = options;
  }

  over(): void {
    this.#since = null;
    this.#failures = 0;
  }

  /** Before the next try. What has gone on too long is the failure, which a client that has seen nothing yet is told to try again. */
  async wait(failure: GatewayFailure, { signal, patient }: GenerateJob, begun: boolean): Promise<void> {
    const last = begun || patient === true ? failure : new GatewayFailure("overloaded", failure.message, { ...failure.details, retryAfterMs: RETRY_AFTER_MS });
    await this.pause(last, signal);
  }

  async pause(last: Error, signal: AbortSignal): Promise<void> {
    const { runtime, register, outageMs = LIMITS.policyOutageMs } = this.#options;
    this.#since ??= runtime.monotonic();
    if (runtime.monotonic() - this.#since > outageMs) throw last;
    await register.changed(Math.min(100 * 2 ** this.#failures++, 2_000), signal);
  }
}

function stamped(tokens: CallTokens | null, version: string): CallTokens | null {
  if (tokens === null || tokens.completionIds.length === 0) return tokens;
  const known = tokens.versions.length > 0 && tokens.versions.every(([name]) => isPolicyVersion(name));
  return known ? tokens : { ...tokens, versions: [[version, tokens.completionIds.length]] };
}
