/** Machines that outlived the controller of a run: the rollouts that can be gone on with in them, and the end of others. */
import type { RolloutId } from "../../core/ids.ts";
import type { Sandbox, SandboxBackend } from "../../sandbox/sandbox.ts";
import { handoverDirectory } from "../../store/run-directory.ts";
import type { RolloutState } from "../rollout-state.ts";
import type { RunState } from "../run-state.ts";
import { readAgentFacts, type AgentFacts } from "./agent-record.ts";

/** A rollout whose agent is at work, or has ended and nobody was told of it. */
export interface Survivor {
  readonly sandbox: Sandbox;
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
async function survivorOf(home: string, { run }: RunState, { rollout, phase, try: number, sandbox: id }: RolloutState, backend: SandboxBackend): Promise<Survivor | string> {
  if (phase !== "running") return `a rollout that is ${phase} begins again`;
  const sandbox = id === null ? null : backend.get(id);
  if (sandbox === null) return "its machine is gone";
  const facts = run === null ? null : await readAgentFacts(handoverDirectory(home, run, rollout));
  if (facts === null || facts.try !== number || facts.sandbox !== id) return "its agent is no process that another controller can attach to, or had not begun yet";
  return { sandbox, facts };
}

/** Before anything is made: what the backend has now is what it took over. */
export async function endOthers(backend: SandboxBackend, { sandboxes }: Survivors = Survivors.none): Promise<readonly Sandbox["id"][]> {
  const others = (await backend.list()).map(({ id }) => id).filter((id) => !sandboxes.includes(id));
  await Promise.all(others.map(async (id) => backend.get(id)?.kill()));
  return others;
}
