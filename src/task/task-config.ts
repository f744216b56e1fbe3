/**
 * The shape of `task.toml`, schema 1.0 to 1.4, with the old spellings that are still around: `version`, `allow_internet`, `memory` and `storage` as text.
 *
 * Where an old and a new spelling meet, the new one wins. Unknown keys are kept out and reported as warnings with the nearest known key.
 */
import { z } from "zod";
import { LIMITS } from "../core/limits.ts";

export const SCHEMA_VERSIONS = ["1.0", "1.1", "1.2", "1.3", "1.4"] as const;

const text = z.string();
const nonEmpty = z.string().min(1, "must not be empty");
/** Users are names or numbers. */
const user = z.union([nonEmpty, z.int().nonnegative().transform(String)]);
const seconds = z
  .number()
  .positive("must be more than 0 seconds")
  .max(LIMITS.taskTimeoutMs / 1000, `must be at most ${LIMITS.taskTimeoutMs / 1000} seconds`);
const pause = z.number().nonnegative("must not be negative").max(LIMITS.taskTimeoutMs / 1000);
const count = z.int().nonnegative("must not be negative");
/** Numbers and booleans are taken as they read, as TOML authors expect. */
const env = z.record(z.string(), z.union([text, z.number().transform(String), z.boolean().transform(String)]));
const absolutePath = z.string().regex(/^\//, "must be an absolute path");

const networkMode = z.enum(["public", "no-network", "allowlist"]);
const allowedHosts = z.array(
  text.transform((host, context) => {
    const normal = host.trim().toLowerCase().replace(/\.$/, "");
    if (!isHostPattern(normal)) context.addIssue({ code: "custom", message: `${JSON.stringify(host)} is not a host name, *.suffix, IP address or CIDR range (no URLs, ports or paths)` });
    return normal;
  }),
);
const network = { network_mode: networkMode.optional(), allowed_hosts: allowedHosts.optional() };

const size = z
  .string()
  .regex(/^\s*\d+(?:\.\d+)?\s*[gmk](?:i?b)?\s*$/i, 'must be a size such as "2G" or "512M"; whole megabytes go in the _mb field')
  .transform((value) => {
    const amount = Number.parseFloat(value);
    const unit = /[gmk]/i.exec(value)?.[0]?.toLowerCase();
    return Math.floor(unit === "g" ? amount * 1024 : unit === "m" ? amount : amount / 1024);
  });

export const healthcheckSchema = z.object({
  command: nonEmpty,
  interval_sec: pause.default(5),
  timeout_sec: seconds.default(30),
  start_period_sec: pause.default(0),
  start_interval_sec: pause.default(5),
  retries: z.int().positive().max(10_000).default(3),
});

const mcpServerSchema = z
  .object({
    name: nonEmpty,
    transport: z.enum(["stdio", "sse", "streamable-http", "http"]).default("sse"),
    url: text.optional(),
    command: text.optional(),
    args: z.array(text).default([]),
    headers: z.record(z.string(), text).default({}),
  })
  .superRefine((server, context) => {
    if (server.transport === "stdio" && !server.command) context.addIssue({ code: "custom", path: ["command"], message: "is needed for transport \"stdio\"" });
    if (server.transport !== "stdio" && !server.url) context.addIssue({ code: "custom", path: ["url"], message: `is needed for transport "${server.transport}"` });
  });

export const environmentSchema = z.object({
  build_timeout_sec: seconds.default(600),
  docker_image: nonEmpty.optional(),
  os: z.preprocess((value) => (typeof value === "string" ? value.toLowerCase() : value), z.enum(["linux", "windows"]).default("linux")),
  cpus: z.number().positive("must be more than 0").optional(),
  memory_mb: z.int().positive("must be more than 0").optional(),
  storage_mb: z.int().positive("must be more than 0").optional(),
  memory: size.optional(),
  storage: size.optional(),
  gpus: count.optional(),
  gpu_types: z.array(text).optional(),
  tpu: z.object({ type: nonEmpty, topology: z.string().regex(/^\s*[1-9]\d*(?:x[1-9]\d*)+\s*$/, 'must read like "2x4"') }).optional(),
  mcp_servers: z.array(mcpServerSchema).default([]),
  env: env.default({}),
  skills_dir: nonEmpty.optional(),
  healthcheck: healthcheckSchema.optional(),
  workdir: nonEmpty.optional(),
  allow_internet: z.boolean().optional(),
  ...network,
});

const artifactSchema = z.union([
  nonEmpty,
  z.object({
    source: nonEmpty,
    destination: text.optional(),
    exclude: z.array(text).default([]),
    service: nonEmpty.optional(),
  }),
]);
const artifacts = z.array(artifactSchema).default([]);

const agentSchema = z.object({ timeout_sec: seconds.optional(), user: user.optional(), ...network });

const verifierSchema = z.object({
  timeout_sec: seconds.default(600),
  env: env.default({}),
  user: user.optional(),
  environment_mode: z.enum(["shared", "separate"]).optional(),
  environment: environmentSchema.optional(),
  collect: z.array(z.object({ command: nonEmpty, service: nonEmpty.default("main"), timeout_sec: seconds.default(60), user: user.optional() })).default([]),
  ...network,
});

const stepSchema = z.object({
  name: nonEmpty,
  agent: agentSchema.prefault({}),
  verifier: verifierSchema.prefault({}),
  min_reward: z.union([z.number(), z.record(z.string(), z.number())]).optional(),
  healthcheck: healthcheckSchema.optional(),
  artifacts,
});

/** `[metadata.manyworlds]`: our additions, validated strictly because nobody else writes them. */
export const manyworldsSchema = z.object({
  /** Group of tasks for reports. */
  family: nonEmpty.optional(),
  /** Paths of executables and configuration that are the agent's work: not restored from the image for the verifier. */
  agent_owns: z.array(absolutePath).default([]),
  /** Commands started again before the tests in the fresh sandbox. */
  services: z
    .array(
      z.object({
        command: nonEmpty,
        user: user.optional(),
        workdir: nonEmpty.optional(),
        ready_command: nonEmpty.optional(),
        ready_timeout_sec: seconds.default(30),
      }),
    )
    .default([]),
  /** Executables whose processes live on while the tests run, in the agent's machine. */
  survivors: z.array(absolutePath).default([]),
  /** The image, the work or the tests need users besides root: refused where sandboxes have none. */
  needs_users: z.boolean().default(false),
});

export const taskConfigSchema = z.object({
  schema_version: z.union([text, z.number().transform(versionText)]).default("1.4"),
  version: z.union([text, z.number().transform(versionText)]).optional(),
  source: text.optional(),
  task: z
    .object({
      name: nonEmpty,
      version: nonEmpty.optional(),
      description: text.default(""),
      authors: z.array(z.object({ name: text, email: text.optional() })).default([]),
      keywords: z.array(text).default([]),
    })
    .optional(),
  metadata: z.record(z.string(), z.unknown()).default({}),
  agent: agentSchema.prefault({}),
  verifier: verifierSchema.prefault({}),
  solution: z.object({ env: env.default({}) }).prefault({}),
  environment: environmentSchema.prefault({}),
  artifacts,
  steps: z.array(stepSchema).default([]),
  multi_step_reward_strategy: z.enum(["mean", "final"]).optional(),
});

export type TaskConfig = z.output<typeof taskConfigSchema>;
export type EnvironmentConfig = z.output<typeof environmentSchema>;
export type VerifierConfig = z.output<typeof verifierSchema>;
export type AgentConfig = z.output<typeof agentSchema>;
export type HealthcheckConfig = z.output<typeof healthcheckSchema>;
export type ManyworldsConfig = z.output<typeof manyworldsSchema>;
export type ArtifactConfig = z.output<typeof artifactSchema>;

/** TOML has one kind of number here: `version = 1.0` arrives as 1. */
function versionText(value: number): string {
  return Number.isInteger(value) ? `${value}.0` : String(value);
}

function isHostPattern(host: string): boolean {
  if (host === "") return false;
  if (/^[0-9a-f:.]+(?:\/\d{1,3})?$/.test(host) && (host.includes(":") || /^\d+\.\d+\.\d+\.\d+(?:\/\d+)?$/.test(host))) return true;
  const name = host.startsWith("*.") ? host.slice(2) : host;
  return name.split(".").every((label) => /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/.test(label));
}
