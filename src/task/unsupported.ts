/**
 * What a task asks for that cannot be given here, each as one sentence that names the field. Asked before anything of a rollout starts; an empty list means go.
 *
 * Features that lift a reason extend `TaskSupport`, not this list's callers.
 */
import type { Capabilities, NetworkMode } from "../sandbox/sandbox.ts";
import { machineNetwork, phasesFrom } from "./network.ts";
import type { Task, TaskEnvironment, TaskVerifier } from "./task.ts";

/** What the harness and the controller can do beyond the sandbox backend. */
export interface TaskSupport {
  /** The harness passes the task's tool servers on to its agent. */
  readonly mcpServers: boolean;
  /** The harness gives the task's skills to its agent. */
  readonly skills: boolean;
  /** The harness can start from an earlier conversation. */
  readonly trajectory: boolean;
}

export interface TaskOverrides {
  /** Replaces every declared network; recorded in the run. */
  readonly network?: NetworkMode | null;
  /** Hosts that may be reached besides what is declared; recorded in the run. */
  readonly allow?: readonly string[];
  /** Run although declared limits cannot be enforced here; recorded in the run. */
  readonly ignoreLimits?: boolean;
}

export const NO_EXTRA_SUPPORT: TaskSupport = { mcpServers: false, skills: false, trajectory: false };

export function unsupportedReasons(task: Task, capabilities: Capabilities, overrides: TaskOverrides = {}, support: TaskSupport = NO_EXTRA_SUPPORT): string[] {
  /** Fields by reason, which may be long. */
  const reasons = new Map<string, string[]>();
  const add = (field: string, why: string): void => {
    const fields = reasons.get(why) ?? [];
    if (!fields.includes(field)) reasons.set(why, [...fields, field]);
  };

  for (const [table, environment] of environments(task)) environmentReasons(table, environment, capabilities, overrides, support, add);
  for (const [table, verifier] of verifiers(task)) verifierReasons(table, verifier, capabilities, overrides, add);
  if (task.needsUsers && !capabilities.users) add("[metadata.manyworlds] needs_users", `other users than root do not exist in these sandboxes${hint(capabilities, "users")}`);
  for (const [field, user] of users(task)) {
    if (user !== null && !capabilities.users && user !== "root" && user !== "0") add(field, `runs as "${user}", but other users than root do not exist in these sandboxes${hint(capabilities, "users")}`);
  }
  for (const [field, network] of phases(task)) networkReason(field, network, capabilities, overrides, add);
  phaseReasons(task, overrides, add);
  for (const rule of [...task.artifacts, ...task.steps.flatMap((step) => step.artifacts)]) {
    if (rule.service !== null) add("artifacts", `"${rule.source}" comes from the compose service "${rule.service}"; there is only the agent's machine`);
  }
  if (task.trajectory !== null && !support.trajectory) add("trajectory.json", "this harness cannot start from an earlier conversation");
  for (const [table, verifier] of verifiers(task)) {
    if (verifier.mode === "shared" && !capabilities.guarded) add(table, `is to run in the agent's machine, where the agent could put itself in its place${hint(capabilities, "guarded")}`);
  }
  if (!capabilities.seal) add("[verifier]", `the sandbox backend cannot keep a workspace for verification${hint(capabilities, "seal")}`);
  return [...reasons].map(([why, fields]) => `${fields.join(", ")}: ${why}`);
}

type Add = (field: string, why: string) => void;

function environmentReasons(table: string, environment: TaskEnvironment, capabilities: Capabilities, overrides: TaskOverrides, support: TaskSupport, add: Add): void {
  const { enforced } = capabilities.isolation;
  if (environment.os !== "linux") add(`${table} os`, `"${environment.os}" machines cannot be made here, only linux`);
  if (environment.gpus > 0) add(`${table} gpus`, `asks for ${environment.gpus}; sandboxes have no GPU`);
  if (environment.tpu !== null) add(`${table} tpu`, `asks for ${environment.tpu.type} ${environment.tpu.topology}; sandboxes have no TPU`);
  if (environment.composeFile !== null) add(environment.composeFile, "compose environments (several containers) are not supported; describe one machine with a Dockerfile or docker_image");
  if (environment.mcpServers.length > 0 && !support.mcpServers) add(`${table} mcp_servers`, `this harness cannot give the tool server${environment.mcpServers.length > 1 ? "s" : ""} ${environment.mcpServers.map((server) => server.name).join(", ")} to its agent`);
  if (environment.skillsDir !== null && !support.skills) add(`${table} skills_dir`, "this harness cannot give skills to its agent");
  networkReason(`${table} network_mode`, environment.network, capabilities, overrides, add);
  if (overrides.ignoreLimits === true) return;
  if (environment.cpus !== null && !enforced.cpu) add(`${table} cpus`, `cannot be enforced here${hint(capabilities, "cpu")}`);
  if (environment.memoryBytes !== null && !enforced.memory) add(`${table} memory_mb`, `cannot be enforced here${hint(capabilities, "memory")}`);
  if (environment.diskBytes !== null && !enforced.disk) add(`${table} storage_mb`, `cannot be enforced here${hint(capabilities, "disk")}`);
}

function verifierReasons(table: string, verifier: TaskVerifier, capabilities: Capabilities, overrides: TaskOverrides, add: Add): void {
  networkReason(`${table} network_mode`, verifier.network, capabilities, overrides, add);
  for (const hook of verifier.collect) if (hook.service !== null) add(`${table} collect`, `"${hook.command}" runs in the compose service "${hook.service}"; there is only the agent's machine`);
}

function networkReason(field: string, network: NetworkMode | null, capabilities: Capabilities, overrides: TaskOverrides, add: Add): void {
  if (network === null || overrides.network) return;
  if (!capabilities.networks.includes(network)) {
    add(field, `"${network === "none" ? "no-network" : network}" is not available here${hint(capabilities, network)}; override with ${capabilities.networks.map((mode) => `--network ${mode}`).join(" or ")}`);
  }
}

/** Phases of one machine, of which one has the whole internet and another does not: a machine cannot change so. */
function phaseReasons(task: Task, overrides: TaskOverrides, add: Add): void {
  const override = { network: overrides.network ?? null, allow: overrides.allow ?? [] };
  const count = Math.max(1, task.steps.length);
  for (let index = 0; index < count; index++) {
    const phases = phasesFrom(task, index, override);
    if (machineNetwork(phases) === null) {
      add("network_mode", `the agent and the tests that run in its machine have different networks (${[...new Set(phases.map(({ mode }) => (mode === "none" ? "no-network" : mode)))].join(", ")}), and a machine cannot change to "public" or from it; give them the same, or override with --network`);
      return;
    }
  }
}

function hint(capabilities: Capabilities, name: string): string {
  const why = capabilities.missing[name];
  return why === undefined ? "" : ` (${why})`;
}

function environments(task: Task): [string, TaskEnvironment][] {
  const found: [string, TaskEnvironment][] = [["[environment]", task.environment]];
  for (const [table, verifier] of verifiers(task)) if (verifier.environment !== null) found.push([`[${table.slice(1, -1)}.environment]`, verifier.environment]);
  return found;
}

function verifiers(task: Task): [string, TaskVerifier][] {
  return task.steps.length === 0 ? [["[verifier]", task.verifier]] : task.steps.map((step) => [`[steps.${step.name}.verifier]`, step.verifier]);
}

function users(task: Task): [string, string | null][] {
  const found: [string, string | null][] = [["[agent] user", task.agent.user]];
  for (const [table, verifier] of verifiers(task)) {
    found.push([`${table} user`, verifier.user]);
    for (const service of verifier.services) found.push([`${table} services`, service.user]);
    for (const hook of verifier.collect) found.push([`${table} collect`, hook.user]);
  }
  for (const step of task.steps) found.push([`[steps.${step.name}.agent] user`, step.agentUser]);
  return found;
}

function phases(task: Task): [string, NetworkMode | null][] {
  return [["[agent] network_mode", task.agent.network], ...task.steps.map((step): [string, NetworkMode | null] => [`[steps.${step.name}.agent] network_mode`, step.agentNetwork])];
}
