/** What a task needs and this host or backend does not have: found before anything of it starts. */
import { MwError } from "../core/errors.ts";
import type { Harness } from "../harness/harness.ts";
import type { Capabilities } from "../sandbox/sandbox.ts";
import type { NetworkOverride } from "../task/network.ts";
import type { Task } from "../task/task.ts";
import { unsupportedReasons } from "../task/unsupported.ts";
import { stepsOf } from "./steps.ts";

export interface PreflightOptions {
  readonly capabilities: Capabilities;
  readonly networkOverride: NetworkOverride;
  /** Run although declared limits cannot be enforced here. */
  readonly ignoreLimits: boolean;
  readonly pauseOnThink: boolean;
  /** Those of the run; each must be able to work on the task. */
  readonly harnesses: readonly Harness[];
  readonly expandEnv: (env: Readonly<Record<string, string>>, where: string) => Readonly<Record<string, string>>;
}

/** Throws an `MwError` that names what is missing and how to get it. */
export function preflight(task: Task, { capabilities, networkOverride, ignoreLimits, pauseOnThink, harnesses, expandEnv }: PreflightOptions): void {
  if (pauseOnThink && !capabilities.freeze) {
    throw new MwError("unsupported", `machines cannot be frozen here${capabilities.missing["freeze"] === undefined ? "" : `: ${capabilities.missing["freeze"]}`}`, { fix: "leave --pause-on-think out, or see mw doctor" });
  }
  const overrides = { ...networkOverride, ignoreLimits };
  const reasons = unsupportedReasons(task, capabilities, overrides);
  if (reasons.length > 0) {
    throw new MwError("unsupported", `the task ${task.name} cannot be honoured here: ${reasons.join("; ")}`, {
      fix: reasons.some((reason) => reason.includes("cannot be enforced")) ? "mw doctor says what is missing; --ignore-limits runs without those limits" : "mw doctor says what this host can do",
    });
  }
  checkHarnesses(harnesses, capabilities);
  expandEnv(task.environment.env, `${task.name}: [environment.env]`);
  for (const harness of harnesses) for (const step of stepsOf(task)) harness.check?.(step);
  if (harnesses.some((harness) => harness.usesSolution)) expandEnv(task.solution.env, `${task.name}: [solution.env]`);
}

/** What an agent CLI needs of its machine beyond commands and files. */
function checkHarnesses(harnesses: readonly Harness[], { services, layers, missing }: Capabilities): void {
  for (const harness of harnesses) {
    const lacking = harness.callsFromMachine === true && !services ? "services" : "layers" in harness && !layers ? "layers" : null;
    if (lacking === null) continue;
    const why = missing[lacking] === undefined ? "" : `: ${missing[lacking]}`;
    throw new MwError("unsupported", `the harness ${harness.name} ${lacking === "services" ? "calls its model from inside the machine" : "is put over the image of the machine"}, which this sandbox backend cannot give${why}`, { fix: "use a white-box harness (bash, ...), or another --backend" });
  }
}
