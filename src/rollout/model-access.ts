/** A run's access to the model: one gateway for all of its rollouts, one session for each agent that drives a model. */
import { rm } from "node:fs/promises";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { Sampling } from "../gateway/conversation.ts";
import { expectTokens, openGateway } from "../gateway/gateway.ts";
import type { CallLog } from "../gateway/log/call-log.ts";
import type { Gateway, GatewaySession, SessionBudgets } from "../gateway/session.ts";
import { directoryDigest } from "../gateway/render/directory-digest.ts";
import { Renderer } from "../gateway/render/renderer.ts";
import { openUpstream } from "../gateway/upstreams/open.ts";
import { parseUpstreamSpec } from "../gateway/upstreams/spec.ts";
import type { Upstream, UpstreamFacts } from "../gateway/upstreams/upstream.ts";
import { gatewaySocket } from "../sandbox/backends/native/run-directory.ts";
import type { SandboxId } from "../core/ids.ts";
import type { ModelEndpoint } from "../harness/cli/endpoint.ts";
import type { Service } from "../sandbox/sandbox.ts";
import { ownSamplingSeed } from "./sampling-seed.ts";
import type { RunConfig } from "./run-config.ts";

/** Where an agent finds its model inside its machine: high enough to be in nobody's way, below the ports that systems give out. */
const MODEL_PORT = 20_411;

export interface AgentSession {
  readonly session: GatewaySession;
  /** The same as programs in the machine see it. */
  readonly endpoint: ModelEndpoint;
  /** Ends the session, and rejects when some of its calls could not be recorded. */
  close(): Promise<void>;
}

export interface AgentSessionRequest {
  readonly label: string;
  /** The rollout's, for its sampling. */
  readonly seed: string;
  readonly sandbox: SandboxId;
  readonly budgets: SessionBudgets;
  /** The rollout's, to which the steps of a task add one after another. */
  readonly log: CallLog;
}

/** Takes away the socket of a controller that died. For the owner of the data directory. */
export async function sweepModelSocket(home: string): Promise<void> {
  await rm(gatewaySocket(home), { force: true });
}

export class ModelAccess {
  /** What the machine of an agent needs to reach it. */
  readonly service: Service;
  readonly #facts: UpstreamFacts;
  readonly #gateway: Gateway;
  readonly #upstream: Upstream;
  /** With what was found out about it. */
  readonly config: NonNullable<RunConfig["upstream"]>;

  /**
   * Rejects `upstream_failed` when the model does not answer, so that not every rollout finds out by itself, `unsupported` when the run is to be trained on and the
   * server gives no exact tokens, `invalid_input` for a tokenizer directory that cannot be used, and `conflict` for one that has changed since the run began.
   */
  static async open(home: string, config: NonNullable<RunConfig["upstream"]>, apiKey: string | null, runtime: Runtime, signal: AbortSignal): Promise<ModelAccess> {
    const { tokenizer } = config;
    const renderer = tokenizer === null ? undefined : await Renderer.load(tokenizer.directory, tokenizer.family);
    const digest = tokenizer === null ? null : await directoryDigest(tokenizer.directory);
    if (tokenizer !== null && tokenizer.digest !== null && tokenizer.digest !== digest) {
      throw new MwError("conflict", `the tokenizer in ${tokenizer.directory} is not the one that the run began with`, { fix: "put it back as it was to resume, or start a new run" });
    }
    const upstream = openUpstream(parseUpstreamSpec(config.url, "the run's upstream"), { apiKey, runtime, renderer });
    try {
      const facts = await upstream.probe(config.model, signal);
      if (config.requireTokens) expectTokens(upstream, facts);
      const gateway = await openGateway({ runtime, socketPath: gatewaySocket(home), port: null });
      return new ModelAccess({ ...config, tokenizer: tokenizer === null ? null : { ...tokenizer, digest } }, facts, upstream, gateway);
    } catch (error) {
      await upstream.close();
      throw error;
    }
  }

  private constructor(config: NonNullable<RunConfig["upstream"]>, facts: UpstreamFacts, upstream: Upstream, gateway: Gateway) {
    this.config = config;
    this.#facts = facts;
    this.#upstream = upstream;
    this.#gateway = gateway;
    this.service = { port: MODEL_PORT, target: gateway.socketPath };
  }

  /** Null where the server gives them. */
  get whyNoTokens(): string | null {
    return this.#facts.reason;
  }

  async session({ label, seed, sandbox, budgets, log }: AgentSessionRequest): Promise<AgentSession> {
    const { model, sampling, requireTokens } = this.config;
    const session = await this.#gateway.open({ label, sandbox, upstream: this.#upstream, model, sampling: samplingOf(sampling, seed), budgets, purpose: requireTokens ? "train" : "evaluate", log, callsBefore: log.lastNumber });
    const contextTokens = this.#facts.models?.find(({ id }) => id === model)?.contextTokens ?? null;
    return {
      session,
      endpoint: { baseUrl: `http://127.0.0.1:${MODEL_PORT}`, token: session.token, model, contextTokens, totals: () => session.totals() },
      close: async () => {
        await session.close(LIMITS.agentDrainMs);
        // A rollout of which calls are missing is worth nothing to whoever trains on it.
        if (log.failure !== null) throw log.failure;
      },
    };
  }

  async close(): Promise<void> {
    await this.#gateway.close();
    await this.#upstream.close();
  }
}

/** The run's settings by their wire names. */
function samplingOf({ temperature, top_p: topP, max_tokens: maxTokens, seed }: Readonly<Record<string, number>>, rolloutSeed: string): Partial<Sampling> {
  return {
    ...(temperature === undefined ? {} : { temperature }),
    ...(topP === undefined ? {} : { topP }),
    ...(maxTokens === undefined ? {} : { maxTokens }),
    ...(seed === undefined ? {} : { seed: ownSamplingSeed(seed, rolloutSeed) }),
  };
}
