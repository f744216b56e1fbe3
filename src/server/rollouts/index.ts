/** `/v1/rollouts`: rollouts whose agents are outside, such as a trainer that samples by itself and calls tools. They are all of one run, as long as the server lives. */
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { FastifyInstance } from "fastify";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { isId, newId, type RolloutId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Harness, HarnessContext } from "../../harness/harness.ts";
import { PolicyRegister } from "../../policy/register.ts";
import type { OpenedRun } from "../../rollout/run-host.ts";
import { endpoint, mountEndpoints, openApiOf, type AnyEndpoint } from "../endpoint.ts";
import type { Services } from "../services.ts";
import { DrivenRollout } from "./driven-rollout.ts";
import { beginSchema, begunSchema, endedSchema, endSchema, execResultSchema, execSchema, extendedSchema, extendSchema, type BeginRequest } from "./wire.ts";

/** Ends that are still told to who asks again. */
const ENDED_KEPT = 4096;

export async function rolloutsModule(app: FastifyInstance, services: Services): Promise<void> {
  const rollouts = new DrivenRollouts(services);
  await rollouts.sweep();
  app.addHook("onClose", () => rollouts.close());
  mountEndpoints(app, routes(rollouts));
}

export function rolloutsOpenApi(version: string): ReturnType<typeof openApiOf> {
  return openApiOf({ title: "Manyworlds: rollouts driven from outside", version, description: "A machine for one attempt at a task, commands in it, and its grade." }, routes(null));
}

function routes(given: DrivenRollouts | null): readonly AnyEndpoint[] {
  const params = z.strictObject({ rollout: z.string() });
  const of = (): DrivenRollouts => {
    if (given === null) throw new MwError("internal", "routes that only describe");
    return given;
  };
  return [
    endpoint({
      method: "POST",
      path: "/v1/rollouts",
      id: "beginRollout",
      summary: "Begin a rollout: answers when its machine is ready",
      body: beginSchema,
      responses: { 201: { description: "Its machine", schema: begunSchema } },
      handle: async ({ body, request, reply }) => reply.code(201).send(await of().begin(request.owner.id, body)),
    }),
    endpoint({
      method: "POST",
      path: "/v1/rollouts/{rollout}/exec",
      id: "execInRollout",
      summary: "Run one command in its machine, as the task's user; recorded with the rollout",
      params,
      body: execSchema,
      bodyLimit: 2 * LIMITS.agentCommandBytes,
      responses: { 200: { description: "How it ended", schema: execResultSchema } },
      handle: async ({ params: { rollout }, body, request }) => {
        const { exit, stdout, stderr } = await of().find(request.owner.id, rollout).exec(body);
        const text = new TextDecoder();
        return { code: exit.code, ended: exit.ended, cause: exit.cause, stdout: text.decode(stdout), stderr: text.decode(stderr), stdout_bytes: exit.stdoutBytes, stderr_bytes: exit.stderrBytes, duration_ms: exit.durationMs };
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/rollouts/{rollout}/extend",
      id: "extendRollout",
      summary: "A sign of the driver's: it is not cancelled yet",
      params,
      body: extendSchema,
      responses: { 200: { description: "Until when", schema: extendedSchema } },
      handle: ({ params: { rollout }, body, request }) => ({ expires_at: of().find(request.owner.id, rollout).extend(body.ttl_s === undefined ? undefined : body.ttl_s * 1000) }),
    }),
    endpoint({
      method: "POST",
      path: "/v1/rollouts/{rollout}/end",
      id: "endRollout",
      summary: "The agent is done: the work is graded in a fresh machine, and the end recorded",
      params,
      body: endSchema,
      responses: { 200: { description: "How it ended", schema: endedSchema } },
      handle: ({ params: { rollout }, body, request }) => of().find(request.owner.id, rollout).end(body),
    }),
    endpoint({
      method: "DELETE",
      path: "/v1/rollouts/{rollout}",
      id: "cancelRollout",
      summary: "Cancel it; it is recorded as cancelled",
      params,
      responses: { 200: { description: "How it ended", schema: endedSchema } },
      handle: ({ params: { rollout }, request }) => of().find(request.owner.id, rollout).cancel("its driver cancelled it"),
    }),
  ];
}

interface Place {
  readonly group: string;
  readonly member: number;
}

class DrivenRollouts {
  readonly #services: Services;
  /** By rollout id, once there is one; those that ended are taken out oldest first. */
  readonly #known = new Map<string, DrivenRollout>();
  readonly #active = new Map<DrivenRollout, Place>();
  readonly #members = new Map<string, number>();
  #opening: Promise<OpenedRun> | null = null;

  constructor(services: Services) {
    this.#services = services;
  }

  async begin(owner: string, { task, seed, group, ttl_s: ttlS }: BeginRequest): Promise<z.input<typeof begunSchema>> {
    const { runtime } = this.#services;
    if (this.#active.size >= LIMITS.drivenRollouts) throw new MwError("overloaded", `${this.#active.size} rollouts are driven from outside already`, { fix: "end some of them" });
    const { run, state } = await (this.#opening ??= this.#open());
    const name = `${owner}/${group ?? newId("grp", runtime)}`;
    const member = this.#members.get(name) ?? 0;
    if (group !== undefined) this.#members.set(name, member + 1);
    const driven: DrivenRollout = new DrivenRollout(owner, ttlS * 1000, runtime, (signal) => {
      const request = { group: name, task, dataset: null, member, replacement: 0, seed, harnesses: [HARNESS], sampling: {}, deadlineMs: null };
      return run.member(request, signal).finally(() => this.#active.delete(driven));
    });
    this.#active.set(driven, { group: name, member });
    const context = await driven.ready;
    const rollout = rolloutOf(context);
    this.#known.set(rollout, driven);
    this.#services.sandboxes.show(owner, context.sandbox, task, { rollout });
    if (this.#known.size > ENDED_KEPT + LIMITS.drivenRollouts) this.#forgetOldest();
    return { rollout_id: rollout, run: String(state.run), sandbox_id: context.sandbox.id, instruction: context.instruction, workdir: context.workdir, user: context.user, expires_at: driven.expiresAt };
  }

  /** What is another owner's is not there. */
  find(owner: string, rollout: string): DrivenRollout {
    const driven = this.#known.get(rollout);
    if (driven?.owner !== owner) throw new MwError("not_found", `there is no rollout ${JSON.stringify(rollout.slice(0, 100))} that is driven from outside`, { fix: "its server was started anew, or it ended long ago" });
    return driven;
  }

  /** Finishes what a server that died left: its drivers are gone. */
  async sweep(): Promise<void> {
    const left = await readFile(this.#mark, "utf8").catch(() => "");
    if (!isId("run", left)) return;
    try {
      const { run } = await this.#services.runs.openRun(left, RUN, new PolicyRegister(this.#services.runtime), () => this.#harness(() => null));
      await run.close(true);
    } catch (error) {
      this.#services.log(`${left}, which an earlier server left, could not be finished: ${error instanceof Error ? error.message : String(error)}`);
    }
    await rm(this.#mark, { force: true });
  }

  async close(): Promise<void> {
    if (this.#opening === null) return;
    const { run } = await this.#opening;
    await run.close(true);
    await rm(this.#mark, { force: true });
  }

  async #open(): Promise<OpenedRun> {
    const { runs, runtime } = this.#services;
    const run = newId("run", runtime);
    await writeFile(this.#mark, run);
    const opened = await runs.openRun(run, RUN, new PolicyRegister(runtime), () =>
      this.#harness((rollout) => {
        const at = opened.state.rollout(rollout);
        const [driven] = [...this.#active].find(([, place]) => at.attempt === place.member + 1 && opened.state.groupNamed(place.group)?.group === at.group) ?? [];
        return driven ?? null;
      }),
    );
    return opened;
  }

  /** Waits for the driver of each of its rollouts. */
  #harness(driverOf: (rollout: RolloutId) => DrivenRollout | null): Harness {
    return {
      name: HARNESS,
      version: "1",
      needsModel: false,
      settings: {},
      run: async (context) => {
        const rollout = rolloutOf(context);
        const driven = isId("ro", rollout) ? driverOf(rollout) : null;
        if (driven === null) throw new MwError("internal", "a rollout without a driver");
        return await driven.drive(context);
      },
    };
  }

  #forgetOldest(): void {
    for (const [rollout, driven] of this.#known) {
      if (this.#active.has(driven)) continue;
      this.#known.delete(rollout);
      return;
    }
  }

  get #mark(): string {
    return join(this.#services.home, "driven-run");
  }
}

/** Whose machine it is. */
function rolloutOf({ sandbox }: HarnessContext): string {
  return sandbox.spec.labels?.["rollout"] ?? "";
}

const HARNESS = "outside";

const RUN = {
  inputs: [],
  attempts: 1,
  seed: "0",
  concurrency: LIMITS.drivenRollouts,
  keepWorkspace: false,
  checkpointEveryMs: null,
  ignoreLimits: false,
  network: null,
  harnesses: [HARNESS],
  budgets: { turns: Number.MAX_SAFE_INTEGER, tokens: null },
  trainer: { name: HARNESS, epoch: 1, tokenizer: null, singleVersion: false },
} as const;
