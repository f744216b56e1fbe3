/**
 * A training as a trainer and `mw serve` make it: three versions of a policy that gets better, groups with and without a gradient, and groups that are consumed at once, late, rejected, too
 * old or without a task.
 */
import { join } from "node:path";
import { startEngine, type EngineRequest, type Reply } from "../engine/index.ts";
import { decode, MODEL_DIRECTORY } from "../engine/tokenizer.ts";
import { writeTask } from "../tasks.ts";

export interface Training {
  readonly name: string;
  /** The run of its rollouts. */
  readonly run: string;
  /** Of this task each version solves more. */
  readonly learnt: string;
}

const VERSIONS = [1, 2, 3] as const;
const ATTEMPTS = 3;

/** `url`: of `mw serve` on this host. What is left at the end: a lease that is not acknowledged. */
export async function train(url: string, place: string, name = "lesson"): Promise<Training> {
  const tasks = { easy: "", middle: "", hard: "" };
  for (const kind of ["easy", "middle", "hard"] as const) tasks[kind] = writeTask(join(place, kind), { name: `lesson/${kind}`, instruction: `A task that is ${kind}: write hello to /work/out.\n` });
  const engine = await startEngine(policyOf(() => Number(engine.version)), { flavour: "sglang" });
  const ask = asker(url);
  try {
    await ask("PUT", `/v1/runs/${name}`, { tokenizer: { directory: MODEL_DIRECTORY }, group_size: ATTEMPTS, max_staleness: 2, admission: "at_lease", fail_after_dead_groups: null, concurrency: 4, credits: { groups: 12 } });
    const leases: { readonly lease_id: string; readonly groups: readonly { readonly group_id: string }[] }[] = [];
    for (const version of VERSIONS) {
      engine.version = String(version);
      await ask("PUT", `/v1/runs/${name}/policy`, { version, model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" }] });
      const groups = (["easy", "middle", "hard"] as const).map((kind) => ({ group_id: `${kind}-${version}`, task: tasks[kind] }));
      await ask("POST", `/v1/runs/${name}/groups`, { groups });
      leases.push(await ask("POST", `/v1/runs/${name}/lease`, { min_groups: 3, max_groups: 3, wait_ms: 60_000 }));
    }
    const [first, second, third] = leases;
    if (first === undefined || second === undefined || third === undefined) throw new Error("three versions give three leases");
    const consume = (lease: typeof first, step: number): Promise<unknown> => ask("POST", `/v1/leases/${lease.lease_id}/ack`, { consumed: lease.groups.map(({ group_id: id }) => id).filter((id) => !id.startsWith("hard")), rejected: [{ group_id: `hard-${step}`, reason: "filtered" }], trained_version: 3, step });
    await consume(first, 1);
    await consume(second, 2);
    await ask("POST", `/v1/runs/${name}/groups`, { groups: [{ group_id: "nothing", task: join(place, "no-task-at-all") }] }).catch(() => undefined);
    const status = await ask<{ readonly run: string }>("GET", `/v1/runs/${name}/status`);
    return { name, run: status.run, learnt: tasks.middle };
  } finally {
    await engine.close();
  }
}

/** The easy task is solved always, the hard one never, and the middle one by as many of three attempts as the version says. */
function policyOf(version: () => number): (request: EngineRequest) => Reply {
  const tried = new Map<number, number>();
  return ({ turn, promptIds }) => {
    if (turn > 0) return { content: "done" };
    const kind = /that is (easy|middle|hard)/.exec(decode(promptIds))?.[1];
    const nth = tried.get(version()) ?? 0;
    if (kind === "middle") tried.set(version(), nth + 1);
    const solves = kind === "easy" || (kind === "middle" && nth % ATTEMPTS < version());
    return { content: "I write it.", calls: [{ command: `mkdir -p /work; echo ${solves ? "hello" : "bye"} > /work/out` }] };
  };
}

function asker(url: string): <T>(method: string, path: string, body?: unknown) => Promise<T> {
  return async <T>(method: string, path: string, body?: unknown): Promise<T> => {
    const response = await fetch(`${url}${path}`, { method, headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }) }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as T;
  };
}
