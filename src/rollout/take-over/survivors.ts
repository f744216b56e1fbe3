/** Machines that outlived the controller of a run: the rollouts that can be gone on with in them, and the end of others. */
import type { RolloutId } from "../../core/ids.ts";
import type { StopReason } from "../../core/outcome.ts";
import type { Sandbox, SandboxBackend } from "../../sandbox/sandbox.ts";
import { handoverDirectory } from "../../store/run-directory.ts";
import type { RolloutState } from "../rollout-state.ts";
import type { RunState } from "../run-state.ts";
import { readAgentFacts, type AgentFacts } from "./agent-record.ts";

/** Where a rollout goes on: `running`, its agent is at work, or has ended and nobody was told of it; `ended`, what the agent left is to be collected; `collected`, it is to be verified. */
export type SurvivorPhase = "running" | "ended" | "collected";

export interface Survivor {
  readonly sandbox: Sandbox;
  /** It is over, and `seal` gives its files. */
  readonly isSealed: boolean;
  readonly phase: SurvivorPhase;
  /** Of an agent that has ended. */
  readonly stopReason: StopReason | null;
  readonly facts: AgentFacts;
}

export class Survivors {
  readonly #found: Map<RolloutId, Survivor | string>;

  /** Of one run, among the machines that the backend has taken over. */
  static async find(home: string, state: RunState, backend: SandboxBackend): Promise<Survivors> {
    const found = new Map<RolloutId, Survivor | string>();
    for (const rollout of state.rollouts.values()) {
      if (rollout.phase !== "planned" && rollout.phase !== "recorded") found.set(rollout.rollout, await survivorOf(home, state, rollout, backend));
    }
    return new Survivors(found);
  }

  static readonly none = new Survivors(new Map());

  private constructor(found: Map<RolloutId, Survivor | string>) {
    this.#found = found;
  }

  get sandboxes(): readonly Sandbox["id"][] {
    return [...this.#found.values()].flatMap((found) => (typeof found === "string" ? [] : [found.sandbox.id]));
  }

  /** Those whose agents may be asking for something. */
  get awaited(): readonly Sandbox["id"][] {
    return [...this.#found.values()].flatMap((found) => (typeof found === "string" || found.phase !== "running" ? [] : [found.sandbox.id]));
  }

  has({ rollout }: RolloutState): boolean {
    return typeof this.#found.get(rollout) === "object";
  }

  /** Why a rollout that was under way is none; null for one that is, or where machines do not outlive their controllers. */
  whyNot({ rollout }: RolloutState): string | null {
    const found = this.#found.get(rollout);
    return typeof found === "string" ? found : null;
  }

  /** Those that nobody has taken. */
  async end(): Promise<void> {
    for (const found of this.#found.values()) if (typeof found !== "string") await found.sandbox.kill();
  }

  /** From now on it is the caller's. */
  take({ rollout }: RolloutState): Survivor | null {
    const found = this.#found.get(rollout);
    this.#found.delete(rollout);
    return typeof found === "object" ? found : null;
  }
}

/** The machine that a rollout may go on in, or why not. */
async function survivorOf(home: string, { run }: RunState, { rollout, phase, try: number, sandbox: id, stopReason }: RolloutState, backend: SandboxBackend): Promise<Survivor | string> {
  if (phase !== "running" && phase !== "ended" && phase !== "collected") return `a rollout that is ${phase} begins again`;
  const sealed = id === null || phase !== "collected" ? undefined : backend.sealed?.get(id);
  const sandbox = id === null ? null : (sealed ?? backend.get(id));
  if (sandbox === null) return "its machine is gone";
  const facts = run === null ? null : await readAgentFacts(handoverDirectory(home, run, rollout));
  if (facts === null || facts.try !== number || facts.sandbox !== id) return "its agent had not begun yet, or is none that another controller can go on with";
  return { sandbox, isSealed: sealed !== undefined, phase, stopReason, facts };
}

/** Before anything is made: what the backend has now is what it took over. `claimed` are left. */
export async function endOthers(backend: SandboxBackend, claimed: readonly Sandbox["id"][]): Promise<readonly Sandbox["id"][]> {
  const living = (await backend.list()).map(({ id }) => id);
  const others = [...living, ...(backend.sealed?.keys() ?? [])].filter((id) => !claimed.includes(id));
  await Promise.all(others.map(async (id) => (backend.get(id) ?? backend.sealed?.get(id))?.kill()));
  return others;
}
