/**
 * Rollouts that are asked for one at a time, by somebody who waits for each: environment servers and `POST /run`. No groups, no leases; whoever asks keeps the account.
 *
 * Each policy (endpoint and model) has a worker of its own, so that rollouts of different policies run beside each other; those that were used longest ago are closed when there are too many.
 */
import { MwError } from "../../core/errors.ts";
import { isId, newId, type RunId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import { runRequestSchema, type RunRequest } from "../../delivery/contract.ts";
import type { MemberEnd, RolloutWorker, WorkerFactory } from "../../delivery/index.ts";
import { rolloutTokens, type RolloutTokens } from "../../rollout/samples/rollout-samples.ts";
import { rolloutDirectory } from "../../store/run-directory.ts";

export interface SingleRequest {
  /** Absolute directory. */
  readonly task: string;
  /** Candidates, of which one is drawn; null: the default ones. */
  readonly harness: readonly string[] | null;
  readonly sampling: Readonly<Record<string, number>>;
  readonly deadlineMs: number | null;
  readonly policy: { readonly url: string; readonly kind: "vllm" | "sglang" | "openai" | null; readonly model: string };
}

export interface SingleEnd {
  readonly end: MemberEnd;
  /** Its calls and what they come to; null when it never began or its log cannot be read. */
  readonly tokens: RolloutTokens | null;
}

export interface SingleRolloutsOptions {
  readonly home: string;
  readonly runtime: Runtime;
  readonly openWorker: WorkerFactory;
  /** Names what it makes. */
  readonly name: string;
  /** As for `PUT /v1/runs`; what a request does not say. */
  readonly defaults: unknown;
}

interface Worker {
  readonly run: RunId;
  readonly opened: Promise<RolloutWorker>;
  running: number;
}

export class SingleRollouts {
  readonly #options: SingleRolloutsOptions;
  readonly #request: RunRequest;
  /** By policy, those used last at the end. */
  readonly #workers = new Map<string, Worker>();
  #closed = false;

  /** Throws `invalid_input` for defaults that are none. */
  constructor(options: SingleRolloutsOptions) {
    const parsed = runRequestSchema.safeParse(options.defaults);
    if (!parsed.success) throw new MwError("invalid_input", `the defaults of single rollouts: ${parsed.error.issues.map(({ path, message }) => `${path.join(".")}: ${message}`).join("; ")}`, { fix: "they are a body of PUT /v1/runs: see docs/delivery.md" });
    this.#options = options;
    this.#request = parsed.data;
  }

  /** Resolves with the rollout's end, whatever it is. Rejects `invalid_task`, `overloaded` with too many policies at once, and `cancelled` when this was closed. */
  async run(request: SingleRequest, signal: AbortSignal): Promise<SingleEnd> {
    if (this.#closed) throw new MwError("cancelled", "the server is ending");
    const { runtime, home } = this.#options;
    const { samples, harness: ours, deadlines } = this.#request;
    const worker = this.#worker(request.policy);
    worker.running++;
    try {
      const opened = await worker.opened;
      const harness = request.harness ?? ours;
      const facts = await opened.check(request.task, harness);
      const name = newId("grp", runtime);
      const deadlineMs = request.deadlineMs ?? (deadlines.rollout_s === null ? null : deadlines.rollout_s * 1000);
      const end = await opened.run({ groupId: name, task: request.task, dataset: null, member: 0, attempt: 0, seed: `${facts.name}/${name}`, harness, sampling: request.sampling, deadlineMs }, signal);
      const { builder, max_tokens: maxTokens } = samples;
      const directory = end.rollout === null || !isId("ro", end.rollout) ? null : rolloutDirectory(home, worker.run, end.rollout);
      const tokens = directory === null ? null : await rolloutTokens(directory, { builder, ...(maxTokens === null ? {} : { maxTokens }) }).catch(() => null);
      return { end, tokens };
    } finally {
      worker.running--;
    }
  }

  /** Ends what runs. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all([...this.#workers.values()].map((worker) => shut(worker)));
  }

  /** Nothing is awaited in here: two first requests of one policy find one worker. */
  #worker({ url, kind, model }: SingleRequest["policy"]): Worker {
    const key = JSON.stringify([url, kind, model]);
    const worker = this.#workers.get(key) ?? this.#open(url, kind, model);
    this.#workers.delete(key);
    this.#workers.set(key, worker);
    return worker;
  }

  #open(url: string, kind: SingleRequest["policy"]["kind"], model: string): Worker {
    const { runtime, openWorker, name } = this.#options;
    const run = newId("run", runtime);
    const room = this.#makeRoom();
    const opened = room.then(async () => {
      const worker = await openWorker({ run, name, epoch: 1, request: this.#request });
      await worker.setPolicy({ version: 0, state: "live", model, endpoints: [{ url, ...(kind === null ? {} : { kind }) }] });
      return worker;
    });
    // Who waits for it hears of its failure, and so does everybody after; a policy that cannot be opened is not kept.
    opened.catch(() => {
      for (const [key, worker] of this.#workers) if (worker.run === run) this.#workers.delete(key);
    });
    return { run, opened, running: 0 };
  }

  /** Throws `overloaded` when all policies that are open are in use. */
  #makeRoom(): Promise<void> {
    if (this.#workers.size < LIMITS.singlePolicies) return Promise.resolve();
    const idle = [...this.#workers].find(([, { running }]) => running === 0);
    if (idle === undefined) throw new MwError("overloaded", `rollouts of ${this.#workers.size} policies run already`, { fix: "wait until those of one have ended" });
    this.#workers.delete(idle[0]);
    return shut(idle[1]);
  }
}

async function shut({ opened }: Worker): Promise<void> {
  const worker = await opened.catch(() => null);
  await worker?.close(true);
}
