import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { MwError } from "../core/errors.ts";
import { newId } from "../core/ids.ts";
import { DEFAULT_OUTCOME_RULES } from "../core/outcome.ts";
import { systemRuntime, type Runtime } from "../core/runtime.ts";
import type { Harness } from "../harness/harness.ts";
import type { Isolation, Sandbox, SandboxBackend, SandboxSpec } from "../sandbox/sandbox.ts";
import type { LogEvent } from "../store/event-log.ts";
import { FileLog } from "../store/file-log.ts";
import { runDirectory } from "../store/run-directory.ts";
import type { Task, Verdict } from "../task/task.ts";
import { RunController, type ControllerOptions } from "./controller.ts";
import { fromLogEvent, toLogEvent, type RunEvent } from "./events.ts";
import { planRun, type TaskInput } from "./plan.ts";
import { RunState } from "./run-state.ts";
import type { TaskImages } from "./task-images.ts";

let home = "";
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "mw-controller-"));
});
afterEach(() => rmSync(home, { recursive: true, force: true }));

const ISOLATION: Isolation = { backend: "memory", profile: "userns", privileged: true, enforced: { cpu: true, memory: true, pids: true, disk: true } };

/** Machines that do nothing, with failures on demand: the controller is what is tested here; real machines are in test/e2e. */
class MemoryBackend {
  alive = 0;
  most = 0;
  created = 0;
  fail: (n: number) => MwError | null = () => null;

  backend(): SandboxBackend {
    return { capabilities: { isolation: ISOLATION }, create: (spec: SandboxSpec) => this.#create(spec) } as unknown as SandboxBackend;
  }

  async #create(spec: SandboxSpec): Promise<Sandbox> {
    const failure = this.fail(this.created++);
    if (failure !== null) throw failure;
    this.most = Math.max(this.most, ++this.alive);
    let dead = false;
    return {
      id: newId("sbx", systemRuntime),
      spec,
      isolation: ISOLATION,
      files: { stat: () => Promise.resolve(null) },
      killProcesses: () => Promise.resolve(),
      metrics: () => Promise.resolve({ cpuMs: null, limits: { oom_killed: 0, pids: 0, disk_full: 0 } }),
      kill: () => {
        if (!dead) this.alive--;
        dead = true;
        return Promise.resolve();
      },
    } as unknown as Sandbox;
  }
}

const task = (name: string, agentMs: number): Task =>
  ({
    name,
    family: "f",
    digest: `sha256:${name}`,
    directory: `/${name}`,
    instruction: `do ${name}`,
    environment: { image: "host", dockerfile: "/x", context: "/nowhere", env: {}, cpus: null, memoryBytes: null, diskBytes: null, workdir: null, healthcheck: null, network: "none" },
    agent: { timeoutMs: agentMs, user: null, network: null },
    verifier: { timeoutMs: 100_000, mode: "fresh", network: null, collect: [] },
    solution: { directory: null, env: {} },
    artifacts: [],
    steps: [],
    multiStepReward: "mean",
  }) as unknown as Task;

const VERDICT = { status: "scored", reward: 1, rewards: { reward: 1 }, error: null, verifierDigest: "sha256:v" } as unknown as Verdict;

const END = { stopReason: "finished", detail: "", turns: 1, promptTokens: 0, completionTokens: 0, modelMs: 0, toolMs: 0 } as const;
const HARNESS: Harness = { name: "nop", version: "1", needsModel: false, settings: {}, run: () => Promise.resolve(END) };

interface Setup {
  readonly tasks?: number;
  readonly attempts?: number;
  readonly concurrency?: number;
  readonly epoch?: number;
  readonly machines?: MemoryBackend;
  readonly harness?: Harness;
  readonly verdict?: () => Verdict;
  readonly runtime?: Runtime;
  /** Time of the agents, long enough for everything that is not about it. */
  readonly agentMs?: number;
  /** Called before each append; throwing stands for the death of the controller. */
  readonly beforeAppend?: (event: LogEvent) => void;
  readonly options?: Partial<ControllerOptions>;
}

async function* inputs(count: number, agentMs: number): AsyncGenerator<TaskInput> {
  for (let n = 0; n < count; n++) yield { source: `t${n}`, directory: `/t${n}`, error: null, load: () => Promise.resolve(task(`t${n}`, agentMs)) };
}

const RUN = newId("run", systemRuntime);
/** Waiting takes no time; deadlines, all of which are longer here, keep theirs. */
const hasty: Runtime = { ...systemRuntime, sleep: (ms, signal) => systemRuntime.sleep(ms >= 500 && ms < 50_000 ? 1 : ms, signal) };

/** Opens the log as a controller of this epoch does, and drives the run. */
async function control(setup: Setup): Promise<{ readonly state: RunState; readonly ended: Promise<string>; readonly controller: RunController; readonly close: () => Promise<void> }> {
  mkdirSync(runDirectory(home, RUN), { recursive: true });
  const state = new RunState();
  const log = await FileLog.open({ path: join(runDirectory(home, RUN), "events.jsonl"), epoch: setup.epoch ?? 1, durability: "process", runtime: systemRuntime, onEvent: ({ event, at }) => state.apply(fromLogEvent(event), Date.parse(at)) });
  const guarded = {
    get lastSeq() {
      return log.lastSeq;
    },
    append: async (events: readonly LogEvent[], options?: { readonly at?: number }) => {
      for (const event of events) setup.beforeAppend?.(event);
      return log.append(events, options);
    },
    read: (from?: number) => log.read(from),
    close: () => log.close(),
  };
  const start = async (event: RunEvent): Promise<void> => {
    await log.append([toLogEvent(event)]);
    state.apply(event, Date.now());
  };
  if (state.run === null) await start({ type: "run_created", run: RUN });
  await start({ type: "controller_started", pid: 1, version: "0" });
  const machines = setup.machines ?? new MemoryBackend();
  const harnesses = [{ name: "nop", version: "1", settings: {} }];
  const config = { attempts: setup.attempts ?? 2, seed: "s", harnesses, concurrency: setup.concurrency ?? 4, durability: "process", rules: DEFAULT_OUTCOME_RULES, branch: null } as unknown as ControllerOptions["config"];
  const agentMs = setup.agentMs ?? 200_000;
  const controller = new RunController({
    home,
    config,
    runtime: setup.runtime ?? hasty,
    log: guarded,
    state,
    plan: planRun(inputs(setup.tasks ?? 5, agentMs), { seed: "s", attempts: setup.attempts ?? 2, harnesses: ["nop"], skip: state.sources }),
    loadTask: (directory) => Promise.resolve(task(directory.slice(1), agentMs)),
    preflight: () => undefined,
    harness: () => setup.harness ?? HARNESS,
    services: () => ({
      layers: () => Promise.resolve([]),
      runtime: setup.runtime ?? hasty,
      backend: machines.backend(),
      images: { root: () => Promise.resolve({ digest: "host:1", workdir: "/" }) } as unknown as TaskImages,
      verifier: { verify: () => Promise.resolve({ verdict: setup.verdict?.() ?? VERDICT, workspace: null }) },
      model: null,
      budgets: { turns: 1, tokens: null, commandMs: 1000, outputBytes: 1000 },
      networkOverride: {},
      timeoutMultiplier: 1,
      pauseOnThink: false,
      checkpointEveryMs: null,
      takeOverSeconds: null,
      keepWorkspace: false,
      expandEnv: (env) => env,
    }),
    observer: { changed: () => undefined, note: () => undefined },
    hostRoom: () => Promise.resolve({ memoryBytes: null, diskBytes: null, pids: null }),
    ...setup.options,
  });
  const ended = controller.run();
  ended.catch(() => undefined);
  return { state, ended, controller, close: () => log.close() };
}

function logged(): RunEvent[] {
  const text = readFileSync(join(runDirectory(home, RUN), "events.jsonl"), "utf8");
  return text.trim().split("\n").map((line) => (JSON.parse(line) as { event: RunEvent }).event);
}

describe("RunController", () => {
  it("runs everything once, with no more machines alive than it may have", async () => {
    const machines = new MemoryBackend();
    const { state, ended, close } = await control({ tasks: 20, attempts: 3, concurrency: 4, machines });
    expect(await ended).toBe("finished");
    await close();
    expect(state.recorded).toBe(60);
    expect(Object.fromEntries(state.outcomes)).toEqual({ scored: 60 });
    expect(machines.alive).toBe(0);
    expect(machines.created).toBe(60);
    expect(machines.most).toBe(4);
    const [rollout] = state.rollouts.keys();
    expect(readdirSync(join(runDirectory(home, RUN), "rollouts", rollout ?? "")).sort()).toEqual(["instruction.md", "result.json", "verdict.json"]);
  });

  it("tries infrastructure failures again, then lets them stand with no reward", async () => {
    const machines = new MemoryBackend();
    machines.fail = () => new MwError("sandbox_failed", "no machine today");
    const { state, ended, close } = await control({ tasks: 1, attempts: 1, machines });
    expect(await ended).toBe("finished");
    await close();
    expect(machines.created).toBe(1 + DEFAULT_OUTCOME_RULES.sandbox_error.retries);
    expect([...state.rollouts.values()]).toMatchObject([{ outcome: "sandbox_error", reward: null, try: 3, error: { message: "no machine today" } }]);

    rmSync(runDirectory(home, RUN), { recursive: true, force: true });
    const recovering = new MemoryBackend();
    recovering.fail = (n) => (n === 0 ? new MwError("host_exhausted", "no room yet") : null);
    const again = await control({ tasks: 1, attempts: 1, machines: recovering });
    await again.ended;
    await again.close();
    expect([...again.state.rollouts.values()]).toMatchObject([{ outcome: "scored", reward: 1, try: 2, error: null }]);
  });

  it("does not repeat what the task or the verifier got wrong", async () => {
    const machines = new MemoryBackend();
    const verdict = { ...VERDICT, status: "verifier_error", reward: null, rewards: {}, error: { kind: "missing", message: "no reward file" } } as Verdict;
    const { state, ended, close } = await control({ tasks: 1, attempts: 1, machines, verdict: () => verdict });
    await ended;
    await close();
    expect(machines.created).toBe(1);
    expect([...state.rollouts.values()]).toMatchObject([{ outcome: "verifier_error", reward: null, try: 1 }]);
  });

  it.each([
    ["upstream_failed", "model_error", 3],
    ["internal", "harness_error", 2],
    ["sandbox_failed", "sandbox_error", 3],
  ] as const)("attributes %s of the agent phase to %s", async (code, outcome, tries) => {
    const harness: Harness = { ...HARNESS, run: () => Promise.reject(new MwError(code, "broken")) };
    const { state, ended, close } = await control({ tasks: 1, attempts: 1, harness });
    await ended;
    await close();
    expect([...state.rollouts.values()]).toMatchObject([{ outcome, reward: null, try: tries }]);
  });

  it("goes on after the death of the controller at any event: one record each, nothing recorded runs again", async () => {
    const whole = await control({ tasks: 3, attempts: 2, concurrency: 2 });
    await whole.ended;
    await whole.close();
    const total = logged().length;
    for (let at = 0; at <= total; at++) {
      rmSync(runDirectory(home, RUN), { recursive: true, force: true });
      let seen = 0;
      const die = (): void => {
        if (seen++ >= at) throw new MwError("host_exhausted", "killed");
      };
      const first = await control({ tasks: 3, attempts: 2, concurrency: 2, beforeAppend: die });
      await first.ended.catch(() => undefined);
      await first.close();
      const doneBefore = new Set(logged().flatMap((event) => (event.type === "rollout_recorded" ? [event.rollout] : [])));
      const second = await control({ tasks: 3, attempts: 2, concurrency: 2, epoch: 2 });
      expect(await second.ended).toBe("finished");
      await second.close();
      const events = logged();
      const records = events.flatMap((event) => (event.type === "rollout_recorded" ? [event.rollout] : []));
      expect(records.length).toBe(6);
      expect(new Set(records).size).toBe(6);
      const admittedLate = events.slice(events.findLastIndex((event) => event.type === "controller_started")).flatMap((event) => (event.type === "rollout_admitted" ? [event.rollout] : []));
      expect(admittedLate.filter((rollout) => doneBefore.has(rollout))).toEqual([]);
      expect(second.state.status).toBe("finished");
    }
  });

  it("records what was verified before the death of the controller, and does nothing of it again", async () => {
    const first = await control({
      tasks: 1,
      attempts: 1,
      beforeAppend: ({ type }) => {
        if (type === "rollout_recorded") throw new MwError("host_exhausted", "dead");
      },
    });
    await expect(first.ended).rejects.toMatchObject({ message: "dead" });
    await first.close();
    const machines = new MemoryBackend();
    const second = await control({ tasks: 1, attempts: 1, epoch: 2, machines });
    expect(await second.ended).toBe("finished");
    await second.close();
    expect(machines.created).toBe(0);
    expect([...second.state.rollouts.values()]).toMatchObject([{ outcome: "scored", reward: 1, stopReason: "finished", try: 1 }]);
  });

  it("drains: what runs finishes, nothing new starts, the rest is left to a later controller", async () => {
    const gate = new AbortController();
    const harness: Harness = { ...HARNESS, run: () => untilAborted(gate.signal, END) };
    const first = await control({ tasks: 5, attempts: 2, concurrency: 3, harness, runtime: systemRuntime });
    await until(() => first.controller.active === 3);
    first.controller.drain("interrupted", 1e6);
    gate.abort();
    expect(await first.ended).toBe("interrupted");
    await first.close();
    expect(first.state.recorded).toBe(3);
    expect(first.state.status).toBe("interrupted");
    const second = await control({ tasks: 5, attempts: 2, epoch: 2 });
    expect(await second.ended).toBe("finished");
    await second.close();
    expect(second.state.recorded).toBe(10);
  });

  it("stops at once: nothing half done is recorded, no machine is left, and no failure is counted", async () => {
    const machines = new MemoryBackend();
    const harness: Harness = { ...HARNESS, run: ({ signal }) => untilAborted(signal, { ...END, stopReason: "cancelled" }) };
    const first = await control({ tasks: 2, attempts: 2, concurrency: 3, harness, machines });
    await until(() => machines.alive === 3);
    first.controller.stop("interrupted");
    expect(await first.ended).toBe("interrupted");
    await first.close();
    expect(machines.alive).toBe(0);
    expect(first.state.recorded).toBe(0);
    expect([...first.state.rollouts.values()].filter((rollout) => rollout.lostTries === 1).length).toBe(3);
    const second = await control({ tasks: 2, attempts: 2, epoch: 2 });
    await second.ended;
    await second.close();
    expect(Object.fromEntries(second.state.outcomes)).toEqual({ scored: 4 });
  });

  it("grades an agent whose time is over", async () => {
    const harness: Harness = { ...HARNESS, run: ({ signal }) => untilAborted(signal, { ...END, stopReason: "agent_time" }) };
    const { state, ended, close } = await control({ tasks: 1, attempts: 1, harness, runtime: systemRuntime, agentMs: 1000 });
    await ended;
    await close();
    expect([...state.rollouts.values()]).toMatchObject([{ outcome: "scored", reward: 1, stopReason: "agent_time" }]);
  });

  it("waits while the host is short, and ends resumably when it stays so", async () => {
    let short = true;
    let now = 0;
    const runtime: Runtime = { ...hasty, monotonic: () => (now += 1000) };
    const hostRoom = () => Promise.resolve({ memoryBytes: short ? 1 : 1e12, diskBytes: null, pids: null });
    const first = await control({ tasks: 1, attempts: 1, runtime, options: { hostRoom } });
    await expect(first.ended).rejects.toMatchObject({ code: "host_exhausted" });
    await first.close();
    expect(first.state).toMatchObject({ status: "interrupted", recorded: 0 });
    short = false;
    const second = await control({ tasks: 1, attempts: 1, epoch: 2, options: { hostRoom } });
    expect(await second.ended).toBe("finished");
    await second.close();
  });

  it("begins again what a machine failed of, when asked to: with the same draw, beside the old record, and once", async () => {
    const machines = new MemoryBackend();
    let broken = true;
    machines.fail = (n) => (broken && n % 2 === 0 ? new MwError("sandbox_failed", "no machine") : null);
    const setup = { tasks: 2, attempts: 2, concurrency: 1, machines };
    const rules = { ...DEFAULT_OUTCOME_RULES, sandbox_error: { retries: 0, counts: false } };
    const config = { attempts: 2, seed: "s", harnesses: [{ name: "nop", version: "1", settings: {} }], concurrency: 1, durability: "process", rules, branch: null } as unknown as ControllerOptions["config"];
    const first = await control({ ...setup, options: { config } });
    expect(await first.ended).toBe("finished");
    await first.close();
    expect([...first.state.outcomes]).toEqual(expect.arrayContaining([["sandbox_error", 2], ["scored", 2]]));
    broken = false;
    const second = await control({ ...setup, epoch: 2, options: { config, errorsAgain: true } });
    expect(await second.ended).toBe("finished");
    await second.close();
    const places = [...second.state.rollouts.values()].map(({ attempt, seed, replacement, outcome }) => ({ attempt, seed, replacement, outcome }));
    expect(places.length).toBe(6);
    for (const { attempt, seed, outcome } of places.filter(({ replacement }) => replacement === 0)) {
      const again = places.filter((place) => place.replacement === 1 && place.attempt === attempt && place.seed === seed);
      expect(again.map((place) => place.outcome)).toEqual(outcome === "sandbox_error" ? ["scored"] : []);
    }
    const third = await control({ ...setup, epoch: 3, options: { config, errorsAgain: true } });
    expect(await third.ended).toBe("finished");
    await third.close();
    expect(third.state.rollouts.size).toBe(6);
  });

  it("stops when the log takes no more, without recording what it could not write", async () => {
    let left = 12;
    const first = await control({
      tasks: 5,
      beforeAppend: () => {
        if (left-- <= 0) throw new MwError("host_exhausted", "no space left on device");
      },
    });
    await expect(first.ended).rejects.toMatchObject({ code: "host_exhausted" });
    await first.close();
    const folded = new RunState();
    for (const event of logged()) folded.apply(event, 0);
    expect(folded.recorded).toBeLessThan(10);
    const second = await control({ tasks: 5, epoch: 2 });
    expect(await second.ended).toBe("finished");
    await second.close();
    expect(second.state.recorded).toBe(10);
  });
});

/** Also of a signal that was aborted before. */
async function untilAborted<T>(signal: AbortSignal, value: T): Promise<T> {
  if (!signal.aborted) await once(signal, "abort");
  return value;
}

async function until(condition: () => boolean): Promise<void> {
  const latest = performance.now() + 30_000;
  while (!condition() && performance.now() < latest) await systemRuntime.sleep(1);
  expect(condition()).toBe(true);
}
