/**
 * What the service draws by itself: parts with weights, each a list of tasks that is gone through again and again in an order of its own.
 *
 * The next part is the one that was begun least often for its weight, so the shares hold at every moment and a part whose tasks take long is not drawn less. The order of a part's
 * tasks comes from the run's seed and the number of the pass: the same seed gives the same draws.
 */
import { seededRandom } from "../core/runtime.ts";
import type { RunRequest } from "./contract.ts";
import type { DeliveryEvent } from "./events.ts";
import { submissionHash } from "./submission-hash.ts";
import type { DeliveryState } from "./state.ts";
import type { RolloutWorker } from "./worker.ts";

type Accepted = DeliveryEvent & { readonly type: "accepted" };
export type Drawn = { readonly kind: "group"; readonly event: Accepted } | { readonly kind: "broken"; readonly task: string };

/** A part with its tasks: directories, in a fixed order. */
export interface MixPart {
  readonly name: string;
  readonly tasks: readonly string[];
}

export class TaskMix {
  readonly #state: DeliveryState;
  readonly #worker: RolloutWorker;
  readonly #tasks: ReadonlyMap<string, readonly string[]>;
  readonly #orders = new Map<string, { readonly pass: number; readonly order: Uint32Array }>();

  constructor(state: DeliveryState, worker: RolloutWorker, parts: readonly MixPart[]) {
    this.#state = state;
    this.#worker = worker;
    this.#tasks = new Map(parts.map(({ name, tasks }) => [name, tasks]));
  }

  /** The next group, or a task that cannot be run; null when none is left. */
  async draw(): Promise<Drawn | null> {
    const part = this.#nextPart();
    if (part === null) return null;
    const { draw, task } = this.#nextTask(part.name);
    const harness = part.harness ?? this.#state.request.harness;
    const facts = await this.#worker.check(task, harness).catch(() => null);
    if (facts === null) return { kind: "broken", task };
    const spec = { group_id: `${part.name}:${String(draw).padStart(8, "0")}`, task, ...(part.group_size === undefined ? {} : { size: part.group_size }) };
    return { kind: "group", event: { type: "accepted", spec, hash: submissionHash(spec), ...facts, dataset: part.name, draw } };
  }

  #nextPart(): NonNullable<RunRequest["dataset"]>[number] | null {
    let best: { readonly share: number; readonly part: NonNullable<RunRequest["dataset"]>[number] } | null = null;
    for (const part of this.#state.request.dataset ?? []) {
      if (!this.#tasksOf(part.name).some((task) => !this.#state.quarantined.has(task))) continue;
      const share = (this.#state.part(part.name).begun + 1) / part.weight;
      if (best === null || share < best.share) best = { share, part };
    }
    return best?.part ?? null;
  }

  /** Of a part that has one. Names that a trainer has taken for groups of its own are passed over. */
  #nextTask(part: string): { readonly draw: number; readonly task: string } {
    const tasks = this.#tasksOf(part);
    for (let draw = this.#state.part(part).draws; ; draw++) {
      const order = this.#order(part, Math.floor(draw / tasks.length), tasks.length);
      const task = tasks[order[draw % tasks.length] ?? 0] ?? "";
      if (!this.#state.quarantined.has(task) && !this.#state.known.has(`${part}:${String(draw).padStart(8, "0")}`)) return { draw, task };
    }
  }

  #tasksOf(part: string): readonly string[] {
    return this.#tasks.get(part) ?? [];
  }

  #order(part: string, pass: number, length: number): Uint32Array {
    const known = this.#orders.get(part);
    if (known?.pass === pass) return known.order;
    const random = seededRandom(`${this.#state.request.seed}/${part}/${pass}`);
    const order = Uint32Array.from({ length }, (_, index) => index);
    for (let at = length - 1; at > 0; at--) {
      const other = Math.floor(random() * (at + 1));
      [order[at], order[other]] = [order[other] ?? 0, order[at] ?? 0];
    }
    this.#orders.set(part, { pass, order });
    return order;
  }
}
