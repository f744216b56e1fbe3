/**
 * Which boundary a failure of the machinery belongs to. The table is read by the phase in which the failure happened and its code; what the agent causes is not
 * here, because it is verified and scored; also a machine that died of the memory that was used up in it.
 *
 * | phase    | failure                                                      | outcome        | why                                                             |
 * |----------|--------------------------------------------------------------|----------------|-----------------------------------------------------------------|
 * | any      | `cancelled`                                                  | `cancelled`    | somebody asked                                                  |
 * | any      | `host_exhausted`, `sandbox_failed`, `sandbox_gone`, `busy`   | `sandbox_error`| the machine or its host                                         |
 * | any      | `registry_failed`                                            | `sandbox_error`| the network between us and a registry; trying again can help    |
 * | not agent| `internal`, `corrupt`                                        | `sandbox_error`| a bug of ours, or damaged data of ours: no task causes it       |
 * | image    | `environment`                                                | `sandbox_error`| the host lacks a program, or refuses us a directory             |
 * | image    | anything else                                                | `task_error`   | the task's image cannot be had or built                         |
 * | lease    | `unsupported`, `invalid_*`, `not_found`                      | `task_error`   | the task wants what this backend does not have                  |
 * | lease    | anything else                                                | `sandbox_error`|                                                                 |
 * | prepare  | anything else                                                | `task_error`   | health check, set-up files                                      |
 * | agent    | `upstream_failed`                                            | `model_error`  |                                                                 |
 * | agent    | anything else                                                | `harness_error`| the harness's own machinery                                     |
 * | collect  | anything else                                                | `sandbox_error`| moving files out is our work                                    |
 * | verify   | `invalid_*`, `not_found`, `unsupported`, `environment`       | `verifier_error`| the task's verifier cannot run                                 |
 * | verify   | anything else                                                | `sandbox_error`| the verifier's own failures are verdicts, so this is machinery  |
 */
import { toMwError, type ErrorCode } from "../core/errors.ts";
import type { Outcome } from "../core/outcome.ts";

export type WorkPhase = "image" | "lease" | "prepare" | "agent" | "collect" | "verify";

const ANY_PHASE: Readonly<Partial<Record<ErrorCode, Outcome>>> = {
  cancelled: "cancelled",
  host_exhausted: "sandbox_error",
  sandbox_failed: "sandbox_error",
  sandbox_gone: "sandbox_error",
  busy: "sandbox_error",
  registry_failed: "sandbox_error",
};

/** In the agent's phase they are the harness's, and in the phases that end with `sandbox_error` they need no row. */
const OURS: Readonly<Partial<Record<ErrorCode, Outcome>>> = { internal: "sandbox_error", corrupt: "sandbox_error" };

const BY_PHASE: Readonly<Record<WorkPhase, { readonly codes: Readonly<Partial<Record<ErrorCode, Outcome>>>; readonly otherwise: Outcome }>> = {
  image: { codes: { ...OURS, environment: "sandbox_error" }, otherwise: "task_error" },
  lease: {
    codes: { unsupported: "task_error", invalid_input: "task_error", invalid_task: "task_error", invalid_image: "task_error", not_found: "task_error" },
    otherwise: "sandbox_error",
  },
  prepare: { codes: OURS, otherwise: "task_error" },
  agent: { codes: { upstream_failed: "model_error" }, otherwise: "harness_error" },
  collect: { codes: {}, otherwise: "sandbox_error" },
  verify: {
    codes: {
      invalid_input: "verifier_error",
      invalid_task: "verifier_error",
      invalid_image: "verifier_error",
      image_failed: "verifier_error",
      not_found: "verifier_error",
      unsupported: "verifier_error",
      environment: "verifier_error",
    },
    otherwise: "sandbox_error",
  },
};

export function attribute(phase: WorkPhase, error: unknown): Outcome {
  const { code } = toMwError(error);
  const row = BY_PHASE[phase];
  return ANY_PHASE[code] ?? row.codes[code] ?? row.otherwise;
}
