/** Runs by plan on the wire: what `mw run` says of a run, as schemas. Paths are the server's host's. */
import { z } from "zod";
import { isId, type RunId } from "../../core/ids.ts";
import { runConfigSchema } from "../../rollout/run-config.ts";

export const runId = z.custom<RunId>((value) => isId("run", value as string), "is no id of a run").meta({ type: "string", id: undefined });

/** As in `run.json`, where the fields are described; harnesses by name. */
export const planSchema = runConfigSchema
  .omit({ format: true, run: true, createdAt: true, version: true, harnesses: true, trainer: true, apiKeyFile: true, backend: true, takeOverSeconds: true })
  .extend({
    harnesses: z.array(z.string()).min(1),
    /** The id of the new run. The same request with the same id again finds the run of the first. */
    run: runId,
  })
  .strict();
export type PlanRequest = z.output<typeof planSchema>;

export const stopSchema = z.strictObject({ /** End what is under way at once; else it has a while to finish. */ now: z.boolean().default(false) });
export const resumeSchema = z.strictObject({
  /** Begin again what ended in a failure of a machine, a model server or a harness. */
  errors: z.boolean().default(false),
  concurrency: z.int().min(1).exactOptional(),
});
export const planParams = z.strictObject({ run: z.string().max(64) });

export const EXECUTION_STATES = ["starting", "running", "stopping", "stopped", "finished", "failed"] as const;
export const executionSchema = z.strictObject({
  run: z.string(),
  /** `starting`: nothing has begun. `stopped`: what was under way is tried again by a resume. `failed`: so too, once the cause is gone. */
  state: z.enum(EXECUTION_STATES),
  /** Of what failed. */
  error: z.strictObject({ code: z.string(), message: z.string(), fix: z.string().nullable() }).nullable(),
  /** What is under way beside rollouts, such as an image that is being made. */
  activity: z.string().nullable(),
});
export type ExecutionView = z.infer<typeof executionSchema>;
