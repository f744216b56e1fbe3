/** A run's access to the model: one gateway for all rollouts, one session for each agent that drives a model. */
import { rm } from "node:fs/promises";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Runtime } from "../core/runtime.ts";
import type { CallBoard } from "../gateway/call-board.ts";
import type { Sampling } from "../gateway/conversation.ts";
import { expectTokens, openGateway } from "../gateway/gateway.ts";
import type { Call } from "../gateway/call.ts";
import type { CallLog } from "../gateway/log/call-log.ts";
import type { Gateway, GatewaySession, SessionBudgets } from "../gateway/session.ts";
import { directoryDigest } from "../gateway/render/directory-digest.ts";
import { Renderer } from "../gateway/render/renderer.ts";
import { openUpstream } from "../gateway/upstreams/open.ts";
import { parseUpstreamSpec } from "../gateway/upstreams/spec.ts";
import { PolicyUpstream } from "../gateway/upstreams/policy/upstream.ts";
import type { Upstream } from "../gateway/upstreams/upstream.ts";
import type { PolicyRegister } from "../policy/register.ts";
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
  /** By their wire names, over the run's. */
  readonly sampling: Readonly<Record<string, number>>;
  readonly sandbox: SandboxId;
  readonly budgets: SessionBudgets;
  /** The rollout's, to which the steps of a task add one after another. */
  readonly log: CallLog;
  /** What the rollout has asked before, where it goes on from a checkpoint. */
  readonly earlier?: readonly Call[];
  /** Of the session that the agent of a machine that was taken over has; then `earlier` are all its calls. */
  readonly token?: string;
}

export interface GatewayPlace {
  readonly home: string;
  readonly runtime: Runtime;
  /** Shows the model calls of rollouts, by their ids, while they are made. */
  readonly board?: CallBoard | undefined;
  /** Machines that were taken over, whose agents have sessions. */
  readonly awaited?: readonly SandboxId[];
}

/** One gateway for all runs of a data directory, whose machines reach it by its socket. What a controller left that died is replaced. For the owner of the directory. */
export async function openMachinesGateway({ home, runtime, board, awaited = [] }: GatewayPlace): Promise<Gateway> {
  const socketPath = gatewaySocket(home);
  await rm(socketPath, { force: true });
  return await openGateway({ runtime, socketPath, port: null, board, awaited });
}

export interface ModelAccessOptions {
  readonly gateway: Gateway;
  /** Closed with the access. */
  readonly upstream: Upstream;
  /** The upstream's name of it, now. */
  readonly model: () => string;
  /** The run's, by their wire names. */
  readonly sampling: Readonly<Record<string, number>>;
  /** Only what can be trained on is of use. */
  readonly requireTokens: boolean;
  /** Digest of what prompts are rendered with here; null where the server renders. */
  readonly tokenizer: string | null;
  /** How long its calls have been held in all, for new weights; absent for a model that never changes. */
  readonly heldMs?: () => number;
}

export class ModelAccess {
  readonly #options: ModelAccessOptions;

  constructor(options: ModelAccessOptions) {
    this.#options = options;
  }

  /** What the machine of an agent needs to reach it. */
  get service(): Service {
    return { port: MODEL_PORT, target: this.#options.gateway.socketPath };
  }

  get model(): string {
    return this.#options.model();
  }

  /** Grows while the model is being updated and its calls are held, which is no time of an agent's; null for a model that never changes. */
  get heldMs(): (() => number) | null {
    return this.#options.heldMs ?? null;
  }

  get tokenizer(): string | null {
    return this.#options.tokenizer;
  }

  async session({ label, seed, sandbox, budgets, log, sampling, earlier = [], token }: AgentSessionRequest): Promise<AgentSession> {
    const { gateway, upstream, requireTokens } = this.#options;
    const opening = gateway.open({
      label,
      sandbox,
      upstream,
      model: this.model,
      sampling: samplingOf({ ...this.#options.sampling, ...sampling }, seed),
      budgets,
      purpose: requireTokens ? "train" : "evaluate",
      log,
      callsBefore: log.lastNumber,
      earlier,
      ...(token === undefined ? {} : { token }),
    });
    // A server that gives no tokens where it is to be trained on fails as a server does: neither agent nor task can help it.
    const session = await opening.catch((error: unknown) => {
      throw error instanceof MwError && error.code === "unsupported" ? new MwError("upstream_failed", error.message, { cause: error, ...(error.fix === undefined ? {} : { fix: error.fix }) }) : error;
    });
    // A policy may have waited for its first version.
    const { model } = this;
    const { models } = await upstream.probe(model, AbortSignal.timeout(LIMITS.upstreamProbeMs));
    const contextTokens = models?.find(({ id }) => id === model)?.contextTokens ?? null;
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
    await this.#options.upstream.close();
  }
}

/** One model of one server, with what was found out about it. */
export interface FixedModel {
  readonly access: ModelAccess;
  readonly config: NonNullable<RunConfig["upstream"]>;
  /** Null where the server gives them. */
  readonly whyNoTokens: string | null;
}

/**
 * Rejects `upstream_failed` when the model does not answer, so that not every rollout finds out by itself, `unsupported` when the run is to be trained on and the
 * server gives no exact tokens, `invalid_input` for a tokenizer directory that cannot be used, and `conflict` for one that has changed since the run began.
 */
export async function openFixedModel(gateway: Gateway, config: NonNullable<RunConfig["upstream"]>, apiKey: string | null, runtime: Runtime, signal: AbortSignal): Promise<FixedModel> {
  const { model, sampling, requireTokens } = config;
  const { renderer, digest } = await loadTokenizer(config.tokenizer);
  const upstream = openUpstream(parseUpstreamSpec(config.url, "the run's upstream"), { apiKey, runtime, renderer });
  try {
    const facts = await upstream.probe(model, signal);
    if (requireTokens) expectTokens(upstream, facts);
    const access = new ModelAccess({ gateway, upstream, model: () => model, sampling, requireTokens, tokenizer: digest });
    return { access, config: { ...config, tokenizer: config.tokenizer === null ? null : { ...config.tokenizer, digest } }, whyNoTokens: facts.reason };
  } catch (error) {
    await upstream.close();
    throw error;
  }
}

export interface PolicyModelOptions {
  readonly gateway: Gateway;
  readonly register: PolicyRegister;
  readonly runtime: Runtime;
  readonly apiKey: string | null;
  readonly tokenizer: NonNullable<RunConfig["upstream"]>["tokenizer"];
  readonly sampling: Readonly<Record<string, number>>;
  readonly singleVersion: boolean;
}

/** Whatever a trainer's policy is now. Rejects as `openFixedModel` for the tokenizer; servers are asked when they are needed. */
export async function openPolicyModel({ gateway, register, runtime, apiKey, sampling, singleVersion, ...options }: PolicyModelOptions): Promise<ModelAccess> {
  const { renderer, digest } = await loadTokenizer(options.tokenizer);
  const upstream = new PolicyUpstream({ register, runtime, apiKey, renderer, singleVersion });
  return new ModelAccess({ gateway, upstream, model: () => register.current.model ?? "", sampling, requireTokens: true, tokenizer: digest, heldMs: () => register.updatingMs });
}

async function loadTokenizer(tokenizer: PolicyModelOptions["tokenizer"]): Promise<{ readonly renderer: Renderer | undefined; readonly digest: string | null }> {
  if (tokenizer === null) return { renderer: undefined, digest: null };
  const renderer = await Renderer.load(tokenizer.directory, tokenizer.family);
  const digest = await directoryDigest(tokenizer.directory);
  if (tokenizer.digest !== null && tokenizer.digest !== digest) {
    throw new MwError("conflict", `the tokenizer in ${tokenizer.directory} is not the one that the run began with`, { fix: "put it back as it was to resume, or start a new run" });
  }
  return { renderer, digest };
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
