/** Reads a Harbor task directory. Whatever is wrong with it is one `MwError` of code `invalid_task` that names file, line and field. */
import { constants } from "node:fs";
import { access, lstat, readFile, realpath, stat } from "node:fs/promises";
import { basename, dirname, join, resolve, sep } from "node:path";
import { messageOf, MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { taskDigest } from "./digest.ts";
import { taskFileFilter } from "./file-filter.ts";
import { readConfig, type ReadConfig } from "./read-config.ts";
import type { AgentConfig, ArtifactConfig, EnvironmentConfig, HealthcheckConfig, TaskConfig, VerifierConfig } from "./task-config.ts";
import type { ArtifactRule, HealthCheck, Task, TaskEnvironment, TaskStep, TaskVerifier } from "./task.ts";
import { decodeText } from "./toml.ts";
import { hasEmbeddedPlaceholder } from "./placeholders.ts";

const MIB = 1024 * 1024;

/** `directory` may be relative, end in a slash or be `.`. */
export async function loadTask(directory: string): Promise<Task> {
  const root = resolve(directory);
  const configPath = join(root, "task.toml");
  const bytes = await readFile(configPath).catch((error: unknown) => {
    throw new MwError("invalid_task", `Cannot read the task ${root}: ${readFault(error, "task.toml")}`, {
      fix: "Give a directory that holds task.toml, instruction.md and tests/test.sh.",
      cause: error,
      facts: { directory: root },
    });
  });
  try {
    return await assemble(root, readConfig(bytes, configPath));
  } catch (error) {
    if (error instanceof MwError) throw error;
    throw new MwError("invalid_task", `Cannot read the task ${root}: ${messageOf(error)}`, { cause: error, facts: { directory: root } });
  }
}

async function assemble(root: string, { config, manyworlds, warnings }: ReadConfig): Promise<Task> {
  await refuseEscapes(root);
  const environment = await taskEnvironment(config.environment, join(root, "environment"));
  if (environment.image === null && environment.dockerfile === null && environment.composeFile === null) {
    throw new MwError("invalid_task", `The task ${root} has no environment: neither [environment] docker_image nor environment/Dockerfile`, {
      fix: "Name a ready image in [environment] docker_image, or add environment/Dockerfile.",
      facts: { directory: root, field: "environment.docker_image" },
    });
  }
  const verifier = await taskVerifier(root, config, config.verifier, null, manyworlds);
  const steps: TaskStep[] = [];
  for (const [index, step] of config.steps.entries()) {
    const directory = join(root, "steps", step.name);
    steps.push({
      name: step.name,
      instruction: await readInstruction(join(directory, "instruction.md")),
      agentTimeoutMs: optionalMs(step.agent.timeout_sec ?? config.agent.timeout_sec),
      agentUser: step.agent.user ?? config.agent.user ?? null,
      agentNetwork: networkOf(step.agent) ?? networkOf(config.agent),
      agentAllowedHosts: (networkOf(step.agent) === null ? config.agent : step.agent).allowed_hosts ?? [],
      verifierTimeoutMs: ms(step.verifier.timeout_sec),
      verifier: await taskVerifier(root, config, step.verifier, index, manyworlds),
      minReward: typeof step.min_reward === "number" ? { reward: step.min_reward } : (step.min_reward ?? null),
      healthcheck: healthCheck(step.healthcheck),
      artifacts: artifactRules(step.artifacts),
      workdir: await directoryOrNull(join(directory, "workdir")),
      tests: await directoryOrNull(join(directory, "tests")),
      solution: await directoryOrNull(join(directory, "solution")),
    });
  }
  const tests = await directoryOrNull(join(root, "tests"));
  await requireTests(root, tests, verifier, steps, environment.os);
  const trajectory = join(root, "trajectory.json");
  return {
    name: config.task?.name ?? basename(root),
    family: manyworlds.family ?? category(config.metadata) ?? basename(dirname(root)),
    digest: await taskDigest(root),
    directory: root,
    schemaVersion: config.version ?? config.schema_version,
    instruction: steps.length > 0 ? "" : await readInstruction(join(root, "instruction.md")),
    environment,
    agent: { timeoutMs: optionalMs(config.agent.timeout_sec), user: config.agent.user ?? null, network: networkOf(config.agent), allowedHosts: config.agent.allowed_hosts ?? [] },
    verifier,
    solution: { directory: await directoryOrNull(join(root, "solution")), env: config.solution.env },
    tests,
    artifacts: artifactRules(config.artifacts),
    steps,
    multiStepReward: config.multi_step_reward_strategy ?? "mean",
    needsUsers: manyworlds.needs_users,
    metadata: config.metadata,
    warnings: [...warnings, ...placeholderWarnings(root, config)],
    trajectory: (await exists(trajectory)) ? trajectory : null,
  };
}

async function taskEnvironment(config: EnvironmentConfig, context: string): Promise<TaskEnvironment> {
  const dockerfile = join(context, "Dockerfile");
  const compose = await firstExisting(["docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"].map((name) => join(context, name)));
  return {
    image: config.docker_image ?? null,
    dockerfile: (await exists(dockerfile)) ? dockerfile : null,
    context,
    buildTimeoutMs: ms(config.build_timeout_sec),
    cpus: config.cpus ?? null,
    memoryBytes: bytesOf(config.memory_mb ?? config.memory),
    diskBytes: bytesOf(config.storage_mb ?? config.storage),
    env: config.env,
    workdir: config.workdir ?? null,
    healthcheck: healthCheck(config.healthcheck),
    network: networkOf(config) ?? (config.allow_internet === false ? "none" : "public"),
    allowedHosts: config.allowed_hosts ?? [],
    os: config.os,
    gpus: config.gpus ?? 0,
    gpuTypes: config.gpu_types ?? [],
    tpu: config.tpu === undefined ? null : { type: config.tpu.type, topology: config.tpu.topology.trim() },
    mcpServers: config.mcp_servers.map((server) => ({
      name: server.name,
      transport: server.transport === "http" ? "streamable-http" : server.transport,
      url: server.url ?? null,
      command: server.command ?? null,
      args: server.args,
      headers: server.headers,
    })),
    skillsDir: config.skills_dir ?? null,
    composeFile: compose,
  };
}

/** `own` is the task's own table or a step's; what a step leaves open comes from the task. */
async function taskVerifier(root: string, config: TaskConfig, own: VerifierConfig, step: number | null, manyworlds: ReadConfig["manyworlds"]): Promise<TaskVerifier> {
  const outer = config.verifier;
  const declaredMode = modeOf(own) ?? (step === null ? null : modeOf(outer));
  const separate = declaredMode === "separate" ? await separateEnvironment(root, config, own, step) : null;
  return {
    timeoutMs: ms(own.timeout_sec),
    env: { ...outer.env, ...own.env },
    user: own.user ?? outer.user ?? null,
    declaredMode,
    mode: separate !== null ? "separate" : manyworlds.survivors.length > 0 ? "shared" : "fresh",
    environment: separate?.environment ?? null,
    bundledTests: separate?.bundledTests ?? false,
    network: networkOf(own) ?? (step === null ? null : networkOf(outer)),
    allowedHosts: (networkOf(own) === null ? outer : own).allowed_hosts ?? [],
    collect: [...(step === null ? [] : outer.collect), ...own.collect].map((hook) => ({
      command: hook.command,
      timeoutMs: ms(hook.timeout_sec),
      user: hook.user ?? null,
      service: hook.service === "main" ? null : hook.service,
    })),
    agentOwns: manyworlds.agent_owns,
    services: manyworlds.services.map((service) => ({
      command: service.command,
      user: service.user ?? null,
      workdir: service.workdir ?? null,
      readyCommand: service.ready_command ?? null,
      readyTimeoutMs: ms(service.ready_timeout_sec),
    })),
    survivors: manyworlds.survivors,
  };
}

/**
 * Where the separate verifier's machine comes from, in Harbor's order: an image named in the (step's, then the task's) `[verifier.environment]` or a Dockerfile in
 * tests/ brings its own /tests; else it is a fresh copy of the agent's environment, to which the tests are uploaded.
 */
async function separateEnvironment(root: string, config: TaskConfig, own: VerifierConfig, step: number | null): Promise<{ environment: TaskEnvironment; bundledTests: boolean }> {
  const settings = own.environment ?? config.verifier.environment ?? config.environment;
  const stepName = step === null ? undefined : config.steps[step]?.name;
  const candidates = [
    ...(stepName === undefined ? [] : [{ image: own.environment?.docker_image, directory: join(root, "steps", stepName, "tests") }]),
    { image: (step === null ? own : config.verifier).environment?.docker_image, directory: join(root, "tests") },
  ];
  for (const { image, directory } of candidates) {
    const environment = await taskEnvironment({ ...settings, docker_image: image }, directory);
    if (image !== undefined) return { environment: { ...environment, dockerfile: null, composeFile: null }, bundledTests: true };
    if (environment.dockerfile !== null || environment.composeFile !== null) return { environment, bundledTests: true };
  }
  return { environment: await taskEnvironment({ ...settings, docker_image: config.environment.docker_image }, join(root, "environment")), bundledTests: false };
}

function modeOf(verifier: VerifierConfig): "shared" | "separate" | null {
  return verifier.environment_mode ?? (verifier.environment === undefined ? null : "separate");
}

function networkOf(entry: Pick<AgentConfig, "network_mode">): "none" | "public" | "allowlist" | null {
  return entry.network_mode === undefined ? null : entry.network_mode === "no-network" ? "none" : entry.network_mode;
}

function healthCheck(config: HealthcheckConfig | undefined): HealthCheck | null {
  if (config === undefined) return null;
  return {
    command: config.command,
    intervalMs: ms(config.interval_sec),
    timeoutMs: ms(config.timeout_sec),
    startPeriodMs: ms(config.start_period_sec),
    startIntervalMs: ms(config.start_interval_sec),
    retries: config.retries,
  };
}

function artifactRules(entries: readonly ArtifactConfig[]): ArtifactRule[] {
  return entries.map((entry) => {
    const rule = typeof entry === "string" ? { source: entry, destination: undefined, exclude: [], service: undefined } : entry;
    const service = rule.service === undefined || rule.service === "main" ? null : rule.service;
    return { source: rule.source, destination: rule.destination || rule.source.split("/").filter((part) => part !== "" && part !== ".").join("/"), exclude: rule.exclude, service };
  });
}

async function readInstruction(path: string): Promise<string> {
  const bytes = await readFile(path).catch((error: unknown) => {
    throw new MwError("invalid_task", `Cannot read the instruction ${path}: ${readFault(error, basename(path))}`, { fix: `Write the task's prompt to ${path}.`, cause: error, facts: { file: path } });
  });
  if (bytes.length > LIMITS.instructionBytes) throw new MwError("invalid_task", `${path} has ${bytes.length} bytes, more than ${LIMITS.instructionBytes}`, { facts: { file: path } });
  // The text goes to the model as it is; only what no harness can pass on is refused.
  if (bytes.includes(0)) throw new MwError("invalid_task", `${path} contains a NUL byte at offset ${bytes.indexOf(0)}`, { fix: "Remove the NUL byte: no command line or request can carry it.", facts: { file: path } });
  return decodeText(bytes, path);
}

async function requireTests(root: string, tests: string | null, verifier: TaskVerifier, steps: readonly TaskStep[], os: string): Promise<void> {
  // A Windows task has a test.bat; that it cannot run here is said elsewhere, by name.
  const names = os === "windows" ? ["test.bat", "test.sh"] : ["test.sh"];
  const filter = taskFileFilter(await realpath(root));
  const has = async (directory: string | null): Promise<boolean> => {
    for (const name of directory === null ? [] : names) {
      const path = join(directory ?? "", name);
      if ((await stat(path).catch(() => null))?.isFile() && !(await filter.excludes(await realpath(path), false))) return true;
    }
    return false;
  };
  const missing = (path: string): MwError =>
    new MwError("invalid_task", `The task ${root} has no ${path}`, { fix: `Add ${path}: it runs after the agent and writes /logs/verifier/reward.txt.`, facts: { directory: root, file: path } });
  if (steps.length === 0) {
    if (!verifier.bundledTests && !(await has(tests))) throw missing(`tests/${names[0]}`);
    return;
  }
  const shared = await has(tests);
  for (const step of steps) if (!step.verifier.bundledTests && !shared && !(await has(step.tests))) throw missing(`steps/${step.name}/tests/${names[0]}`);
}

/** The task's own top-level entries may be links, but not out of the task: what is uploaded or shown must be part of what the digest covers. */
async function refuseEscapes(root: string): Promise<void> {
  const real = await realpath(root);
  for (const name of ["instruction.md", "environment", "tests", "solution", "steps"]) {
    const path = join(root, name);
    if (!(await lstat(path).catch(() => null))?.isSymbolicLink()) continue;
    const target = await realpath(path).catch(() => null);
    if (target === null || (target !== real && !target.startsWith(`${real}${sep}`))) {
      throw new MwError("invalid_task", `${path} is a link ${target === null ? "to nothing" : `out of the task, to ${target}`}`, { fix: "Copy the files into the task directory.", facts: { file: path } });
    }
  }
}

function placeholderWarnings(root: string, config: TaskConfig): string[] {
  const tables: [string, Readonly<Record<string, string>>][] = [
    ["environment.env", config.environment.env],
    ["verifier.env", config.verifier.env],
    ["solution.env", config.solution.env],
  ];
  return tables.flatMap(([table, env]) =>
    Object.entries(env)
      .filter(([, value]) => hasEmbeddedPlaceholder(value))
      .map(([key]) => `${join(root, "task.toml")}: ${table}.${key} has a placeholder inside other text, which stays as it is: only a whole value "\${VAR}" is replaced`),
  );
}

function category(metadata: Readonly<Record<string, unknown>>): string | null {
  const value = metadata["category"];
  return typeof value === "string" && value.trim() !== "" ? value : null;
}

function readFault(error: unknown, name: string): string {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "ENOENT") return `there is no ${name}`;
  if (code === "ENOTDIR") return "it is not a directory";
  if (code === "EACCES") return `${name} may not be read`;
  if (code === "EISDIR") return `${name} is a directory`;
  return messageOf(error);
}

async function exists(path: string): Promise<boolean> {
  return access(path, constants.F_OK).then(
    () => true,
    () => false,
  );
}

async function firstExisting(paths: readonly string[]): Promise<string | null> {
  for (const path of paths) if (await exists(path)) return path;
  return null;
}

async function directoryOrNull(path: string): Promise<string | null> {
  return (await stat(path).catch(() => null))?.isDirectory() ? path : null;
}

function ms(seconds: number): number {
  return Math.round(seconds * 1000);
}

function optionalMs(seconds: number | undefined): number | null {
  return seconds === undefined ? null : ms(seconds);
}

function bytesOf(mebibytes: number | undefined): number | null {
  return mebibytes === undefined ? null : mebibytes * MIB;
}
