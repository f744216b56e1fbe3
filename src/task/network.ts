/**
 * The network of a task, phase by phase, as Harbor has it: the environment's is the baseline, the agent's and the verifier's are in its place where they are given. A run may put
 * another in place of all of them, or add hosts; both are recorded.
 *
 * A machine can change between `none` and `allowlist`, and from one list to another, while it lives; to `public` or from it, it cannot.
 */
import type { NetworkMode, Sandbox, SandboxSpec } from "../sandbox/sandbox.ts";
import type { Task, TaskEnvironment, TaskStep, TaskVerifier } from "./task.ts";

export interface PhaseNetwork {
  readonly mode: NetworkMode;
  /** Of `allowlist`; else empty. */
  readonly allow: readonly string[];
}

/** What a run says besides its tasks. */
export interface NetworkOverride {
  /** In place of every declared mode. */
  readonly network?: NetworkMode | null;
  /** Added to what may be reached wherever that is not everything. */
  readonly allow?: readonly string[];
}

type Declared = { readonly network: NetworkMode | null; readonly allowedHosts: readonly string[] };

/** While the agent works: on the task, or on one of its steps. */
export function agentNetwork(task: Task, step: TaskStep | null, override: NetworkOverride): PhaseNetwork {
  return phase(override, step === null ? null : { network: step.agentNetwork, allowedHosts: step.agentAllowedHosts }, task.agent, task.environment);
}

/** Before the agent: its machine is made ready. Never wider than what the same machine can give up again. */
export function setupNetwork(task: Task, step: TaskStep | null, override: NetworkOverride): PhaseNetwork {
  const agent = agentNetwork(task, step, override);
  const environment = phase(override, task.environment);
  return agent.mode === "public" || environment.mode === "public" ? agent : environment;
}

/** While the tests run. Null: in the agent's machine, as that is, for tests that declare nothing. */
export function verifierNetwork(task: Task, step: TaskStep | null, override: NetworkOverride, mode: TaskVerifier["mode"] = (step?.verifier ?? task.verifier).mode): PhaseNetwork | null {
  const settings = step?.verifier ?? task.verifier;
  if (mode === "shared" && settings.network === null) return null;
  return phase(override, settings, mode === "separate" ? settings.environment : null, task.environment);
}

/** What a machine is made with that has to live through all of these, the first of them first; null when no machine can. */
export function machineNetwork(phases: readonly PhaseNetwork[]): PhaseNetwork | null {
  const [first] = phases;
  if (first === undefined) return null;
  if (phases.every(({ mode }) => mode === first.mode)) return first;
  return phases.some(({ mode }) => mode === "public") ? null : { mode: "allowlist", allow: first.allow };
}

/** The phases of one machine of the agent's, from a step on. Where tests run in it, it lives until the last step. */
export function phasesFrom(task: Task, index: number, override: NetworkOverride): readonly PhaseNetwork[] {
  const steps: readonly (TaskStep | null)[] = task.steps.length === 0 ? [null] : task.steps;
  const staying = steps.some((step) => (step?.verifier ?? task.verifier).mode === "shared");
  const phases: PhaseNetwork[] = [setupNetwork(task, steps[index] ?? null, override)];
  for (const step of steps.slice(index, staying ? undefined : index + 1)) {
    phases.push(agentNetwork(task, step, override));
    const verifier = staying ? verifierNetwork(task, step, override) : null;
    if (verifier !== null) phases.push(verifier);
  }
  return phases;
}

/** Of a machine's specification. */
export function networkSpec({ mode, allow }: PhaseNetwork): Pick<SandboxSpec, "network" | "allow"> {
  return mode === "allowlist" ? { network: mode, allow } : { network: mode };
}

/** Makes it the network of a living machine; false when that machine cannot have it. */
export function changeNetwork(sandbox: Sandbox, { mode, allow }: PhaseNetwork): boolean {
  const now = sandbox.spec.network ?? "none";
  if (now !== "allowlist" || mode === "public") return now === mode;
  sandbox.egress?.allow(allow);
  return true;
}

/** The first that says something; the environment always does. */
function phase({ network, allow: added = [] }: NetworkOverride, ...declared: readonly (Declared | TaskEnvironment | null)[]): PhaseNetwork {
  const own = declared.find((entry) => entry !== null && entry.network !== null);
  const mode = network ?? own?.network ?? "none";
  if (mode === "public" || (mode === "none" && (network === "none" || added.length === 0))) return { mode, allow: [] };
  return { mode: "allowlist", allow: [...new Set([...(own?.network === "allowlist" ? own.allowedHosts : []), ...added])] };
}
