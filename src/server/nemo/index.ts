/**
 * `POST /run` in the form of NeMo Gym's agent servers (`nemo_gym/base_responses_api_agent.py`): one task in, what the agent said and did with its tokens and its reward out.
 *
 * A rollout that came to no reward is an answer with `mask_sample`, and a kind of failure from their vocabulary or of our own name; a request that cannot be run is a problem document.
 */
import { isAbsolute } from "node:path";
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import type { Outcome } from "../../core/outcome.ts";
import { machineWorkers } from "../../delivery/machines/worker.ts";
import { checked, endpoint, mountEndpoints, openApiOf, type AnyEndpoint } from "../endpoint.ts";
import type { Services } from "../services.ts";
import { SingleRollouts, type SingleEnd, type SingleRequest } from "../single/single-rollouts.ts";
import { responseOf } from "./response.ts";

const policySchema = z.strictObject({ url: z.string().min(1), model: z.string().min(1), kind: z.enum(["vllm", "sglang", "openai"]).optional() });
const bodySchema = z.looseObject({
  responses_create_params: z.looseObject({ temperature: z.number().nullish(), top_p: z.number().nullish(), max_output_tokens: z.int().nullish() }),
  /** Absolute path of the task's directory. */
  task: z.string().refine(isAbsolute, "the absolute path of a task's directory"),
  harness: z.union([z.string().min(1).transform((name) => [name]), z.array(z.string().min(1)).min(1)]).nullish(),
  deadline_s: z.number().positive().nullish(),
  /** Where the policy is; MW_POLICY_URL, MW_POLICY_MODEL and MW_POLICY_KIND of the server where absent. */
  policy: policySchema.nullish(),
});
type Body = z.output<typeof bodySchema>;

const answerSchema = z.looseObject({
  responses_create_params: z.looseObject({}),
  response: z.looseObject({}),
  reward: z.number(),
  reward_components: z.record(z.string(), z.number()),
  mask_sample: z.boolean(),
  failure_kind: z.string().nullable(),
  failure_reason: z.string().nullable(),
});

export function nemoModule(app: FastifyInstance, services: Services): void {
  const { home, runtime, runs } = services;
  const rollouts = new SingleRollouts({ home, runtime, name: "nemo-gym", defaults: {}, openWorker: machineWorkers({ home, host: runs, runtime }) });
  app.addHook("onClose", () => rollouts.close());
  mountEndpoints(app, routes((body, request, reply) => run(rollouts, services, body, request, reply)));
}

export function nemoOpenApi(version: string): ReturnType<typeof openApiOf> {
  return openApiOf({ title: "Manyworlds: NeMo Gym", version, description: "One rollout, as NeMo Gym's agent servers answer." }, routes(null));
}

type Handle = (body: Body, request: FastifyRequest, reply: FastifyReply) => Promise<unknown>;

function routes(handle: Handle | null): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "POST",
      path: "/run",
      id: "run",
      summary: "Run one task, and answer when it is graded",
      body: bodySchema,
      responses: { 200: { description: "The rollout", schema: answerSchema } },
      handle: ({ body, request, reply }) => handle?.(body, request, reply),
    }),
  ];
}

async function run(rollouts: SingleRollouts, { env, runtime }: Services, body: Body, request: FastifyRequest, reply: FastifyReply): Promise<unknown> {
  const policy = policyOf(body, env);
  const { temperature, top_p, max_output_tokens } = body.responses_create_params;
  const sampling = Object.fromEntries(Object.entries({ temperature, top_p, max_tokens: max_output_tokens }).flatMap(([name, value]) => (typeof value === "number" ? [[name, value]] : [])));
  const gone = new AbortController();
  // Who asked has hung up: nobody waits for the machine any more.
  reply.raw.once("close", () => gone.abort(new MwError("cancelled", "the client hung up")));
  const single = await rollouts.run({ task: body.task, harness: body.harness ?? null, sampling, deadlineMs: body.deadline_s == null ? null : body.deadline_s * 1000, policy }, gone.signal);
  return answerOf(single, body, policy.model, { id: request.id, now: runtime.now() });
}

function answerOf(single: SingleEnd, body: Body, model: string, { id, now }: { readonly id: string; readonly now: number }): unknown {
  const { end, tokens } = single;
  const ok = end.outcome === "scored" && end.reward !== null && end.error === null;
  const { response, input, left } = responseOf(tokens, { id: end.rollout ?? id, createdAt: end.startedAt ?? now, model });
  return {
    ...body,
    responses_create_params: { input, ...body.responses_create_params },
    response,
    reward: ok ? end.reward : 0,
    reward_components: ok ? end.rewards : {},
    mask_sample: !ok,
    failure_kind: ok ? null : FAILURE_KINDS[end.outcome],
    failure_reason: ok ? null : end.error === null ? `the rollout ended as ${end.outcome}` : `${end.error.code}: ${end.error.message}`,
    manyworlds: { rollout: end.rollout, outcome: end.outcome, stop_reason: end.stopReason, task_digest: end.task.digest, samples_left_out: left },
  };
}

/** `nemo_gym/failure_kinds.py`; what it has no word for has our name before it. */
const FAILURE_KINDS: Readonly<Record<Outcome, string>> = {
  scored: "manyworlds:internal_error",
  harness_error: "agent_run_error",
  model_error: "manyworlds:model_error",
  verifier_error: "verifier_error",
  task_error: "manyworlds:task_error",
  sandbox_error: "provider_unavailable",
  cancelled: "cancelled",
  stale: "cancelled",
};

function policyOf(body: Body, env: Services["env"]): SingleRequest["policy"] {
  const given = body.policy ?? { url: env["MW_POLICY_URL"], model: env["MW_POLICY_MODEL"], kind: env["MW_POLICY_KIND"] };
  if (given.url === undefined || given.model === undefined) {
    throw new MwError("invalid_input", "policy: no word about where the policy is served", { fix: "send `policy: {url, model, kind}` with the task, or start the server with MW_POLICY_URL and MW_POLICY_MODEL" });
  }
  const { url, model, kind } = checked(policySchema, { ...given, kind: given.kind }, "policy");
  return { url, model, kind: kind ?? null };
}
