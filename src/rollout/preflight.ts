/** What a task needs and this host or backend does not have: found before anything starts. */
import { MwError } from "../core/errors.ts";
import type { Capabilities, NetworkMode } from "../sandbox/sandbox.ts";
import type { Task } from "../task/task.ts";

export interface PreflightOptions {
  readonly capabilities: Capabilities | null;
  readonly networkOverride: NetworkMode | null;
  readonly expandEnv: (env: Readonly<Record<string, string>>, where: string) => Readonly<Record<string, string>>;
}

/** Throws an `MwError` that names what is missing and how to get it. */
export function preflight(task: Task, { capabilities, networkOverride, expandEnv }: PreflightOptions): void {
  const network = machineNetwork(task, networkOverride);
  expandEnv(task.environment.env, `${task.name}: [environment.env]`);
  if (capabilities === null) return;
  if (!capabilities.networks.includes(network)) {
    throw new MwError("unsupported", `${task.name} needs the network ${network}: ${capabilities.missing[network] ?? "this host cannot give it"}`, {
      fix: network === "public" ? "give --network none if the task can do without" : "see mw doctor",
    });
  }
  const users = [task.agent.user, task.verifier.user, ...task.steps.map((step) => step.agentUser)].filter((user) => user !== null && user !== "root" && user !== "0");
  if (users.length > 0 && !capabilities.users) {
    throw new MwError("unsupported", `${task.name} needs the user ${users[0]} in its machine: ${capabilities.missing["users"] ?? "this host cannot have other users inside"}`, { fix: "see mw doctor" });
  }
}

/** The network of the agent's machine: what the task declares, unless the run overrides it. */
export function machineNetwork(task: Task, override: NetworkMode | null): NetworkMode {
  if (override !== null) return override;
  const declared = task.agent.network ?? task.environment.network;
  if (declared === "allowlist") {
    throw new MwError("unsupported", `${task.name} declares network_mode = "allowlist", which needs an egress proxy that is not there yet`, {
      fix: "give --network none or --network public; the override is recorded",
    });
  }
  return declared;
}
