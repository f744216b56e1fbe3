/**
 * From what an agent left to a verdict. The verifier sees the agent's work, never its hands: by default the machine ends, its files are kept without what would
 * speak for the verifier, and the tests run in a fresh machine on them.
 *
 * A verifier that fails is asked again on a pristine machine: if it works there, the agent broke it, and that is the agent's score, not an error of the task.
 */
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { messageOf, MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { RootFilesystem, Sandbox, SandboxBackend, SandboxSpec, Workspace, WorkspaceRef } from "../../sandbox/sandbox.ts";
import { treeDigest } from "../digest.ts";
import { expandPlaceholders } from "../placeholders.ts";
import { changeNetwork, networkSpec, type PhaseNetwork } from "../network.ts";
import type { Task, TaskEnvironment, TaskStep, TaskVerifier, Verdict } from "../task.ts";
import { agentCaused, agentCausedInPlace, brokenOutcome } from "./agent-caused.ts";
import { cleanWorkspace, type CleanJournal } from "./clean-workspace.ts";
import type { EditableInstall } from "./editable.ts";
import { imageUser, scriptRunner } from "./image-users.ts";
import { imageView, type ImageView } from "./image-view.ts";
import { hardenInPlace } from "./in-place.ts";
import { archiveWorkspace, endArchiving } from "./archive-workspace.ts";
import { DEFAULT_PATH } from "./protected-paths.ts";
import { runTests, type TestOutcome, type TestRun } from "./run-tests.ts";
import { copyArtifacts } from "./separate.ts";
import { readTestFiles, type TestFiles } from "./test-files.ts";
import { buildVerdict, noEvidence, type Evidence } from "./verdict.ts";

export interface VerifierOptions {
  readonly backend: SandboxBackend;
  readonly runtime: Runtime;
  /** What a machine of this environment starts from; builds or pulls it when needed. For separate verifiers. */
  readonly imageRoot: (environment: TaskEnvironment) => Promise<RootFilesystem>;
  /** Variables of the host for `${VAR}`. */
  readonly lookupEnv: (name: string) => string | undefined;
  /** What a verifier that the agent broke means: reward 0 (default), or a verifier_error. */
  readonly brokenByAgent?: "zero" | "error";
}

export interface VerifyRequest {
  readonly task: Task;
  /** Name of the step of a multi-step task. */
  readonly step: string | null;
  /** The agent's machine, alive, the agent ended. Over afterwards, whatever happens, except in `shared` mode. */
  readonly sandbox: Sandbox;
  /** What the agent left, where its machine died as a whole: `sandbox` is then another machine, which started from this. Released with the other's end. */
  readonly workspace?: Workspace;
  readonly root: RootFilesystem;
  /** Host directory of the rollout or step: `verifier/` is made in it. Null: nothing is kept. */
  readonly directory: string | null;
  /** Of the machine that the tests run in, and of the pristine one. Null: as the agent's machine is, for tests that run in that and declare nothing. */
  readonly network: PhaseNetwork | null;
  readonly timeoutMultiplier: number;
  readonly signal: AbortSignal;
  /** Verifies in another mode than the task's own, to compare them. */
  readonly mode?: TaskVerifier["mode"];
  /** Where the agent's files are kept as they are, before anything is cleaned: an archive that does not exist yet. Best effort, said in the verdict's notes. */
  readonly workspaceArchive?: string;
  /** In `fresh` mode. What an earlier one says was archived then, too. */
  readonly journal?: CleanJournal | undefined;
  /** Keeps the sealed workspace for the next step's machine; the caller releases it. */
  readonly keepWorkspace?: boolean;
}

export interface VerifyResult {
  readonly verdict: Verdict;
  /** With `keepWorkspace` in `fresh` mode: what the next step's machine starts from. */
  readonly workspace: Workspace | null;
}

export interface Verifier {
  /** Rejects for failures of the machinery only; what tests and agents do is in the verdict. */
  verify(request: VerifyRequest): Promise<VerifyResult>;
}

export function createVerifier(options: VerifierOptions): Verifier {
  const views = new Map<string, ImageView>();
  /** What the verifier does without an agent's work, by task and image: found once. */
  const pristine = new Map<string, Promise<TestOutcome>>();
  return {
    verify(request) {
      return new Verification(options, request, { views, pristine }).run();
    },
  };
}

interface Shared {
  readonly views: Map<string, ImageView>;
  readonly pristine: Map<string, Promise<TestOutcome>>;
}

interface MachineSetup {
  readonly workspace?: WorkspaceRef;
  readonly refreshLoaderCache?: boolean;
  readonly editable?: readonly EditableInstall[];
  readonly keepLogs?: boolean;
  /** Returns notes. */
  readonly prepare?: (machine: Sandbox) => Promise<readonly string[]>;
}

const CACHE_ENTRIES = 256;

class Verification {
  readonly #options: VerifierOptions;
  readonly #request: VerifyRequest;
  readonly #shared: Shared;
  readonly #step: TaskStep | null;
  readonly #settings: TaskVerifier;
  readonly #startedAt: number;

  constructor(options: VerifierOptions, request: VerifyRequest, shared: Shared) {
    const { task, step } = request;
    this.#options = options;
    this.#request = request;
    this.#shared = shared;
    this.#step = step === null ? null : (task.steps.find(({ name }) => name === step) ?? null);
    if (step !== null && this.#step === null) throw new MwError("internal", `The task ${task.name} has no step ${step}`);
    const settings = this.#step?.verifier ?? task.verifier;
    this.#settings = request.mode === undefined ? settings : { ...settings, mode: request.mode };
    this.#startedAt = options.runtime.monotonic();
  }

  run(): Promise<VerifyResult> {
    switch (this.#settings.mode) {
      case "fresh":
        return this.#fresh();
      case "shared":
        return this.#inPlace();
      case "separate":
        return this.#separate();
    }
  }

  async #fresh(): Promise<VerifyResult> {
    const { sandbox, root, task, keepWorkspace, journal, signal } = this.#request;
    const tests = await readTestFiles(task, this.#step);
    await (this.#request.workspace === undefined ? sandbox.killProcesses() : sandbox.kill());
    signal.throwIfAborted();
    const workspace = this.#request.workspace ?? (await sandbox.seal().catch(returned));
    if (workspace instanceof MwError) return { verdict: await this.#judge(root, tests, () => Promise.reject(workspace), await this.#testRun(root, task.environment, tests, false), noEvidence()), workspace: null };
    let kept = false;
    try {
      const notes = (journal?.earlier ?? null) === null ? await archiveWorkspace(workspace, this.#request.workspaceArchive, signal) : [];
      const facts = { task, root, image: this.#image(root), agentOwns: this.#settings.agentOwns, instruction: this.#instruction(), notes, journal };
      const clean = await cleanWorkspace(workspace, facts).catch(returned);
      if (clean instanceof MwError) {
        const verdict = await this.#judge(root, tests, () => Promise.reject(clean), await this.#testRun(root, task.environment, tests, false), { ...noEvidence(), notes });
        kept = keepWorkspace === true;
        return { verdict, workspace: kept ? workspace : null };
      }
      const run = await this.#testRun(root, task.environment, tests, clean.pytestConfigChanged);
      const evidence: Evidence = { restored: clean.restored, removed: clean.removed, notes: clean.notes };
      const attempt = (): Promise<TestOutcome> => this.#inMachine(root, task.environment, run, { workspace, refreshLoaderCache: clean.refreshLoaderCache, editable: clean.editable });
      const verdict = await this.#judge(root, tests, attempt, run, evidence);
      kept = keepWorkspace === true;
      return { verdict, workspace: kept ? workspace : null };
    } finally {
      if (!kept) await workspace.release();
    }
  }

  /** A machine of its own; only declared artifacts cross. */
  async #separate(): Promise<VerifyResult> {
    const { sandbox, task, root, signal } = this.#request;
    const environment = this.#settings.environment;
    if (environment === null) throw new MwError("internal", `The task ${task.name} is verified separately but has no environment for it`);
    const tests = this.#settings.bundledTests ? null : await readTestFiles(task, this.#step);
    const verifierRoot = await this.#options.imageRoot(environment);
    await sandbox.killProcesses();
    signal.throwIfAborted();
    const run = await this.#testRun(verifierRoot, environment, tests, false);
    const rules = [...task.artifacts, ...(this.#step?.artifacts ?? [])];
    const evidence = noEvidence();
    try {
      const attempt = (): Promise<TestOutcome> =>
        this.#inMachine(verifierRoot, environment, run, {
          prepare: async (machine) => copyArtifacts(sandbox, machine, rules, { from: task.environment.workdir ?? root.workdir, to: run.workdir }, signal),
        });
      return { verdict: await this.#judge(verifierRoot, tests, attempt, run, evidence), workspace: null };
    } finally {
      await endArchiving(sandbox, this.#request.workspaceArchive, signal);
    }
  }

  /** In the agent's machine, whose declared survivors live on. Weaker: the agent may have been root in it. */
  async #inPlace(): Promise<VerifyResult> {
    const { sandbox, root, task } = this.#request;
    const tests = await readTestFiles(task, this.#step);
    const image = this.#image(root);
    const facts = { image, workdir: this.#workdir(root, task.environment), survivors: this.#settings.survivors, agentOwns: this.#settings.agentOwns };
    const hardened = await hardenInPlace(sandbox, facts).catch(async (error: unknown) => {
      if (await agentCausedInPlace(error, sandbox)) return { failure: error, restored: [], removed: [], notes: [] };
      throw error;
    });
    const run = { ...(await this.#testRun(root, task.environment, tests, true)), services: [], killAfter: false };
    const { network } = this.#request;
    const changed = network === null || changeNetwork(sandbox, network);
    const notes = changed ? hardened.notes : [...hardened.notes, `the tests ran in the agent's machine with its network, ${networkOf(sandbox).mode}, although they declare ${network.mode}: it cannot change to that`];
    const evidence: Evidence = { ...noEvidence(), restored: hardened.restored, removed: hardened.removed, notes };
    const attempt = async (): Promise<TestOutcome> => {
      if ("failure" in hardened) throw hardened.failure;
      return this.#keepLogs(sandbox, await runTests(sandbox, run));
    };
    return { verdict: await this.#judge(root, tests, attempt, run, evidence), workspace: null };
  }

  /** Runs the tests, and when that gives no reward, finds out whose fault it is. */
  async #judge(root: RootFilesystem, tests: TestFiles | null, attempt: () => Promise<TestOutcome>, run: TestRun, evidence: Evidence): Promise<Verdict> {
    const judged = (): Promise<TestOutcome> => attempt().catch((error: unknown) => this.#failed(error));
    let outcome = await judged();
    let pristine: TestOutcome | null = null;
    const notes = [...evidence.notes];
    if (outcome.reading.kind === "error") {
      pristine = await this.#onPristine(root, run);
      // A failure that goes away by itself was no one's act. Waiting for the same deadline twice proves nothing.
      if (pristine.reading.kind === "rewards" && outcome.reading.error.kind !== "timeout" && this.#settings.mode !== "shared") {
        notes.push(`the verifier failed at first (${outcome.reading.error.kind}: ${outcome.reading.error.message}) and was run again`);
        outcome = await judged();
      }
    }
    const { runtime, brokenByAgent } = this.#options;
    return buildVerdict({
      outcome,
      pristine,
      brokenByAgent: brokenByAgent ?? "zero",
      mode: this.#settings.mode,
      isolation: this.#request.sandbox.isolation,
      verifierDigest: tests === null ? root.digest : await treeDigest(tests.directories),
      durationMs: Math.round(runtime.monotonic() - this.#startedAt),
      evidence: { ...evidence, notes },
    });
  }

  /** What the agent's work made impossible is a verifier that it broke; whatever else failed is the machinery's. */
  async #failed(error: unknown): Promise<TestOutcome> {
    const { sandbox, signal } = this.#request;
    signal.throwIfAborted();
    const caused = this.#settings.mode === "shared" ? await agentCausedInPlace(error, sandbox) : agentCaused(error);
    if (!caused) throw error;
    return brokenOutcome(error, this.#options.runtime.now());
  }

  #onPristine(root: RootFilesystem, run: TestRun): Promise<TestOutcome> {
    const { task, step, network } = this.#request;
    const key = JSON.stringify([task.digest, step, root.digest, network]);
    const { pristine } = this.#shared;
    let outcome = pristine.get(key);
    if (outcome === undefined) {
      const environment = this.#settings.mode === "separate" ? (this.#settings.environment ?? task.environment) : task.environment;
      // Services are the agent's work and do not exist here.
      outcome = this.#inMachine(root, environment, { ...run, services: [], killAfter: true }, { keepLogs: false, prepare: (machine) => uploadContext(machine, environment, run.workdir) });
      if (pristine.size >= CACHE_ENTRIES) pristine.clear();
      pristine.set(key, outcome);
      outcome.catch(() => pristine.delete(key));
    }
    return outcome;
  }

  async #inMachine(root: RootFilesystem, environment: TaskEnvironment, run: TestRun, setup: MachineSetup): Promise<TestOutcome> {
    const { signal } = this.#request;
    signal.throwIfAborted();
    const machine = await this.#options.backend.create(this.#spec(root, environment, setup.workspace));
    try {
      const notes = (await setup.prepare?.(machine)) ?? [];
      for (const { path, content } of setup.editable ?? []) await machine.files.write(path, content, { mode: 0o644, owner: "0:0" });
      if (setup.refreshLoaderCache === true) await refreshLoaderCache(machine, this.#image(root), signal);
      const outcome = await runTests(machine, run);
      const all = { ...outcome, notes: [...notes, ...outcome.notes, ...refusalNotes(machine)] };
      return setup.keepLogs === false ? all : await this.#keepLogs(machine, all);
    } finally {
      await machine.kill();
    }
  }

  #spec(root: RootFilesystem, environment: TaskEnvironment, workspace: WorkspaceRef | undefined): SandboxSpec {
    const { sandbox, network } = this.#request;
    return {
      root,
      ...(workspace === undefined ? {} : { workspace }),
      ...(environment.cpus === null ? {} : { cpus: environment.cpus }),
      ...(environment.memoryBytes === null ? {} : { memoryBytes: environment.memoryBytes }),
      ...(environment.diskBytes === null ? {} : { diskBytes: environment.diskBytes }),
      ...(sandbox.spec.pids === undefined ? {} : { pids: sandbox.spec.pids }),
      ...networkSpec(network ?? networkOf(sandbox)),
      env: expandPlaceholders(environment.env, this.#options.lookupEnv, "[environment.env]"),
      workdir: this.#workdir(root, environment),
      labels: { ...sandbox.spec.labels, role: "verifier" },
    };
  }

  async #testRun(root: RootFilesystem, environment: TaskEnvironment, tests: TestFiles | null, hardenPytest: boolean): Promise<TestRun> {
    const { timeoutMultiplier, signal } = this.#request;
    const image = this.#image(root);
    const declared = { ...expandPlaceholders(environment.env, this.#options.lookupEnv, "[environment.env]"), ...expandPlaceholders(this.#settings.env, this.#options.lookupEnv, "[verifier.env]") };
    const path = declared["PATH"] ?? root.env["PATH"] ?? DEFAULT_PATH;
    const user = await imageUser(image, this.#settings.user ?? root.user);
    const script = tests?.script ?? (await image.read("/tests/test.sh", 4096)) ?? new Uint8Array();
    // What pytest would read from the agent's files is replaced by nothing, where the agent changed it.
    const pytest = hardenPytest ? { PYTEST_ADDOPTS: `-c /dev/null --rootdir=/tests --confcutdir=/tests ${declared["PYTEST_ADDOPTS"] ?? ""}`.trim() } : {};
    return {
      tests,
      runner: await scriptRunner(image, script, path),
      user,
      workdir: this.#workdir(root, environment),
      env: { HOME: user.home, ...declared, ...pytest, PATH: path },
      timeoutMs: Math.round(this.#settings.timeoutMs * timeoutMultiplier),
      services: this.#settings.services,
      killAfter: true,
      runtime: this.#options.runtime,
      signal,
    };
  }

  /** What the verifier wrote goes to the host; that it cannot is noted and changes no reward. */
  async #keepLogs(machine: Sandbox, outcome: TestOutcome): Promise<TestOutcome> {
    const { directory, signal } = this.#request;
    if (directory === null) return outcome;
    const target = join(directory, "verifier");
    await rm(target, { recursive: true, force: true });
    const notes = [...outcome.notes];
    try {
      await mkdir(directory, { recursive: true });
      const report = await machine.files.download("/logs/verifier", target, { maxBytes: LIMITS.artifactBytes, maxEntries: LIMITS.artifactEntries, signal });
      for (const { path, reason } of report.refused.slice(0, 20)) notes.push(`verifier/${path} was not kept: ${reason}`);
    } catch (error) {
      signal.throwIfAborted();
      notes.push(`what the verifier wrote could not be kept: ${messageOf(error)}`);
    }
    await mkdir(target, { recursive: true });
    // The name may be taken by something that the tests made; ours is the one that counts.
    await rm(join(target, "test-stdout.txt"), { recursive: true, force: true });
    await writeFile(join(target, "test-stdout.txt"), outcome.output);
    return { ...outcome, notes };
  }

  #image(root: RootFilesystem): ImageView {
    const { views } = this.#shared;
    const key = `${root.digest} ${root.layers.join(":")}`;
    let view = views.get(key);
    if (view === undefined) {
      view = imageView(root);
      if (views.size >= CACHE_ENTRIES) views.clear();
      views.set(key, view);
    }
    return view;
  }

  #workdir(root: RootFilesystem, environment: TaskEnvironment): string {
    const workdir = environment.workdir ?? root.workdir;
    return workdir.startsWith("/") ? workdir : `/${workdir}`;
  }

  #instruction(): string {
    const { task } = this.#request;
    // Later steps build on what earlier instructions asked for.
    return task.steps.length === 0 ? task.instruction : task.steps.map(({ instruction }) => instruction).join("\n");
  }
}

/** As it is at this moment. */
function networkOf({ spec, egress }: Sandbox): PhaseNetwork {
  return { mode: spec.network ?? "none", allow: egress?.report().allow ?? [] };
}

/** Tests that were refused something fail for that reason, which their output may not say. */
function refusalNotes({ egress }: Sandbox): readonly string[] {
  return (egress?.report().refusals ?? []).slice(0, 20).map(({ message, count }) => `the network refused the verifier ${count} times: ${message}`);
}

/** What the agent caused is judged, everything else thrown on. */
function returned(error: unknown): MwError {
  if (agentCaused(error)) return error;
  throw error;
}

/**
 * Libraries that came with packages are found again; the program that makes the cache is the image's. It makes no links (`-X`): a library under a new name would
 * else be linked under the name that it gives itself, perhaps one of the image's.
 */
async function refreshLoaderCache(machine: Sandbox, image: ImageView, signal: AbortSignal): Promise<void> {
  for (const program of ["/sbin/ldconfig", "/usr/sbin/ldconfig"]) {
    if ((await image.real(program)) === null) continue;
    await machine.run({ command: [program, "-X"], user: "0:0", cwd: "/", timeoutMs: 60_000, signal });
    return;
  }
}

/** Files beside a ready image are part of the environment that the task declares. */
async function uploadContext(machine: Sandbox, environment: TaskEnvironment, workdir: string): Promise<readonly string[]> {
  if (environment.dockerfile !== null || environment.composeFile !== null) return [];
  await machine.files.upload(environment.context, workdir).catch((error: unknown) => {
    if (error instanceof MwError && error.code !== "not_found" && error.code !== "invalid_input") throw error;
  });
  return [];
}
