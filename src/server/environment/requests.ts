/** What an environment client asks, and the answers (`verifiers/v1/serve/types.py`). Fields that we have no use for are let through: the client's classes grow. */
import { isAbsolute } from "node:path";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import type { SingleRequest } from "../single/single-rollouts.ts";

const harnessSchema = z.union([z.string().min(1).transform((name) => [name]), z.array(z.string().min(1)).min(1)]);

const runRequestSchema = z.looseObject({
  task_data: z.looseObject({
    /** Absolute path of the task's directory. */
    task: z.string().refine(isAbsolute, "the absolute path of a task's directory"),
    harness: harnessSchema.nullish(),
    deadline_s: z.number().positive().nullish(),
  }),
  client: z.looseObject({ type: z.enum(["train", "eval"]), base_url: z.url() }),
  model: z.string().min(1),
  sampling: z.looseObject({ temperature: z.number().nullish(), top_p: z.number().nullish(), max_tokens: z.int().nullish(), seed: z.int().nullish() }),
});
const cancelRequestSchema = z.looseObject({ request_id: z.string() });

export interface EnvironmentRun {
  readonly request: SingleRequest;
  readonly taskData: Readonly<Record<string, unknown>>;
  readonly model: string;
  readonly sampling: unknown;
}

/** Throws `invalid_input` that names the fields. */
export function readRun(document: unknown): EnvironmentRun {
  const { task_data: taskData, client, model, sampling } = read(runRequestSchema, document);
  const known = { temperature: sampling.temperature, top_p: sampling.top_p, max_tokens: sampling.max_tokens, seed: sampling.seed };
  return {
    request: {
      task: taskData.task,
      harness: taskData.harness ?? null,
      sampling: Object.fromEntries(Object.entries(known).flatMap(([name, value]) => (typeof value === "number" ? [[name, value]] : []))),
      deadlineMs: taskData.deadline_s == null ? null : taskData.deadline_s * 1000,
      // A training client's engine is vLLM: its tokens are asked for.
      policy: { url: client.base_url, kind: client.type === "train" ? "vllm" : null, model },
    },
    taskData,
    model,
    sampling,
  };
}

export function readCancel(document: unknown): string {
  return read(cancelRequestSchema, document).request_id;
}

function read<T extends z.ZodType>(schema: T, document: unknown): z.output<T> {
  const result = schema.safeParse(document);
  if (result.success) return result.data;
  const issues = result.error.issues.slice(0, 10).map(({ path, message }) => `${path.join(".")}: ${message}`);
  throw new MwError("invalid_input", issues.join("; "), { fix: "docs/trainers/prime-rl.md has the fields of a task" });
}
