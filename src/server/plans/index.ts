/**
 * Runs by plan on the server's machines: what `mw run --server` submits. Each is under way until it has finished or somebody stops it, whatever becomes of whoever asked for it; a server
 * that died goes on with it when it starts again. Who reads of it, and how it goes, is `../runs`.
 */
import { existsSync } from "node:fs";
import type { FastifyInstance } from "fastify";
import { MwError } from "../../core/errors.ts";
import { isId, type RunId } from "../../core/ids.ts";
import { runDirectory } from "../../store/run-directory.ts";
import { LOCAL_OWNER } from "../authentication/keys.ts";
import { endpoint, mountEndpoints, openApiOf, type AnyEndpoint } from "../endpoint.ts";
import { requestDigest } from "../sandboxes/sandbox-entry.ts";
import type { Services } from "../services.ts";
import { Execution } from "./execution.ts";
import { Marks, type Mark } from "./marks.ts";
import { executionSchema, planParams, planSchema, resumeSchema, stopSchema, type ExecutionView, type PlanRequest } from "./wire.ts";

export async function plansModule(app: FastifyInstance, services: Services): Promise<void> {
  const plans = new Plans(services);
  await plans.takeUp();
  app.addHook("onClose", () => plans.close());
  // As for reading: runs are those of who runs the server.
  app.addHook("onRequest", (request, _reply, done) => {
    done(request.owner.id === LOCAL_OWNER.id ? undefined : new MwError("not_found", "this key does not open the runs of this server", { fix: "use the server's first key" }));
  });
  mountEndpoints(app, routes(plans));
}

/** The OpenAPI document that is committed as `docs/openapi/plans.json`. */
export function plansDocument(): ReturnType<typeof openApiOf> {
  // Nothing of the services is used before a request comes.
  return openApiOf({ title: "Manyworlds: runs by plan", version: "1", description: "What mw run --server submits: see docs/server.md." }, routes(new Plans({ home: "" } as Services)));
}

function routes(plans: Plans): readonly AnyEndpoint[] {
  const VIEW = { 200: { description: "How it stands with this server", schema: executionSchema } };
  return [
    endpoint({
      method: "POST",
      path: "/v1/runs",
      id: "startRun",
      summary: "Start a run of tasks; answers when its rollouts begin, or why they cannot. The same request with the same id again finds it (200), another one is a conflict (409).",
      body: planSchema,
      responses: { ...VIEW, 201: VIEW[200] },
      handle: async ({ body, reply }) => {
        const { view, fresh } = await plans.start(body);
        return reply.code(fresh ? 201 : 200).send(view);
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/runs/{run}/execution",
      id: "getExecution",
      summary: "Whether this server has the run under way",
      params: planParams,
      responses: VIEW,
      handle: ({ params }) => plans.find(params.run).view,
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{run}/stop",
      id: "stopRun",
      summary: "Begin nothing more of it; what is under way may finish for a while, and is tried again by a resume where it does not",
      params: planParams,
      body: stopSchema,
      responses: VIEW,
      handle: ({ params, body }) => plans.stop(params.run, body.now),
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{run}/resume",
      id: "resumeRun",
      summary: "Go on with a run that was stopped, failed or was another process's; one that is under way stays as it is",
      params: planParams,
      body: resumeSchema,
      responses: VIEW,
      handle: ({ params, body }) => plans.resume(params.run, body),
    }),
  ];
}

class Plans {
  readonly #services: Services;
  readonly #marks: Marks;
  readonly #executions = new Map<RunId, Execution>();
  /** Of the requests that this server was asked, while it knows the runs. */
  readonly #digests = new Map<RunId, string>();

  constructor(services: Services) {
    this.#services = services;
    this.#marks = new Marks(services.home);
  }

  /** Goes on with what an earlier server had under way. */
  async takeUp(): Promise<void> {
    for (const { run, mark } of await this.#marks.all(this.#services.log)) {
      this.#services.log(`going on with ${run}`);
      if (mark.request !== null) this.#digests.set(run, requestDigest(mark.request));
      this.#execute(run, mark);
    }
  }

  async start(request: PlanRequest): Promise<{ readonly view: ExecutionView; readonly fresh: boolean }> {
    const { run } = request;
    const digest = requestDigest(request);
    if ((this.#digests.get(run) ?? digest) !== digest) throw new MwError("conflict", `another run was asked for as ${run}`, { fix: "give each run an id of its own" });
    const known = this.#executions.get(run);
    if (known !== undefined || existsSync(runDirectory(this.#services.home, run))) {
      await known?.begun;
      return { view: this.find(run).view, fresh: false };
    }
    const mark = { request, errors: false };
    this.#digests.set(run, digest);
    const execution = this.#execute(run, mark, undefined, this.#marks.put(run, mark));
    await execution.begun;
    // One that could not begin leaves nothing, and may be asked for again.
    if (execution.error === null || existsSync(runDirectory(this.#services.home, run))) return { view: execution.view, fresh: true };
    this.#executions.delete(run);
    this.#digests.delete(run);
    throw execution.error;
  }

  find(name: string): { readonly view: ExecutionView } {
    const run = this.#runOf(name);
    const known = this.#executions.get(run);
    if (known !== undefined) return known;
    if (!existsSync(runDirectory(this.#services.home, run))) throw new MwError("not_found", `there is no run ${run}`, { fix: "GET /v1/runs lists them" });
    return { view: { run, state: "stopped", error: null, activity: null } };
  }

  async stop(name: string, now: boolean): Promise<ExecutionView> {
    const run = this.#runOf(name);
    const execution = this.#executions.get(run);
    if (execution === undefined || !execution.isUnderWay) throw new MwError("conflict", `${run} is not under way here`);
    execution.stop(now);
    // What was asked to stop is not taken up by a later server.
    await this.#marks.delete(run);
    return execution.view;
  }

  async resume(name: string, { errors, concurrency }: { readonly errors: boolean; readonly concurrency?: number | undefined }): Promise<ExecutionView> {
    const { run, state } = this.find(name).view;
    // An id that was found is one.
    const known = this.#executions.get(run as RunId);
    if (state === "stopping") await known?.ended;
    if (known?.isUnderWay === true) return known.view;
    const mark = { request: null, errors };
    const execution = this.#execute(run as RunId, mark, concurrency, this.#marks.put(run as RunId, mark));
    await execution.begun;
    if (execution.error !== null) throw execution.error;
    return execution.view;
  }

  async close(): Promise<void> {
    for (const execution of this.#executions.values()) execution.stop(true, "server");
    await Promise.all(Array.from(this.#executions.values(), ({ ended }) => ended));
  }

  #runOf(name: string): RunId {
    if (!isId("run", name)) throw new MwError("not_found", `${JSON.stringify(name)} is no id of a run`, { fix: "GET /v1/runs lists them" });
    return name;
  }

  /** `marked`: before anything of it exists. */
  #execute(run: RunId, mark: Mark, concurrency?: number, marked: Promise<void> = Promise.resolve()): Execution {
    const { home, runs, log } = this.#services;
    const execution = new Execution({ home, runs, run, mark, concurrency, log, marked });
    this.#executions.set(run, execution);
    void execution.ended.then(async (afterwards) => {
      if (afterwards === "leave") await this.#marks.delete(run);
    });
    return execution;
  }
}
