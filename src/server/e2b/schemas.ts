/**
 * Bodies of the control plane, both generations. What a field asks for is done or refused (400), and a field that is not here is refused too: a client never believes in something
 * that did not happen. Source: https://github.com/e2b-dev/E2B, spec/openapi.yml.
 */
import { z } from "zod";
import { LIMITS } from "../../core/limits.ts";

const seconds = z.int().min(0).max(LIMITS.leaseMaxMs / 1000);
const count = z.int().nonnegative();

/** Taken only with the value that asks for nothing. */
function only<T extends z.ZodType>(schema: T, why: string): z.ZodOptional<z.ZodNullable<T>> {
  return schema.refine(() => false, { message: `is not supported here: ${why}` }).nullable().optional();
}

const NO_RULES = "the way out is decided on by names alone (allowOut)";

export const networkSchema = z.strictObject({
  allowPublicTraffic: z.boolean().optional(),
  // What can be kept of them is in egress-rules.ts.
  allowOut: z.array(z.string()).max(LIMITS.allowedHosts).optional(),
  denyOut: z.array(z.string()).max(LIMITS.allowedHosts).optional(),
  maskRequestHost: only(z.string(), "the host name of a request is passed on as it is"),
  egressProxy: only(z.unknown(), NO_RULES),
  rules: only(z.unknown(), NO_RULES),
  httpsPorts: z.array(z.int()).max(0, "is not supported here: ports are reached over plain HTTP").optional(),
});

export const createSchema = z.strictObject({
  templateID: z.string().min(1).max(4096),
  timeout: seconds.optional(),
  autoPause: z.boolean().optional(),
  autoPauseMemory: z.boolean().optional(),
  autoResume: z.strictObject({ enabled: z.boolean() }).nullable().optional(),
  secure: z.literal(true, "is not supported here: every sandbox is secure").optional(),
  allow_internet_access: z.boolean().nullable().optional(),
  network: networkSchema.nullable().optional(),
  metadata: z.record(z.string(), z.string()).nullable().optional(),
  envVars: z.record(z.string(), z.string()).nullable().optional(),
  mcp: only(z.unknown(), "there is no MCP gateway"),
  iam: only(z.unknown(), "there are no identity tokens"),
  volumeMounts: z.array(z.unknown()).max(0, "is not supported here: there are no volumes").nullable().optional(),
});
export type CreateBody = z.output<typeof createSchema>;

export const connectSchema = z.strictObject({ timeout: seconds.optional(), memory: z.boolean().optional() });
export const resumeSchema = z.strictObject({ timeout: seconds.optional(), autoPause: z.boolean().nullable().optional(), memory: z.boolean().optional() });
export const timeoutSchema = z.strictObject({ timeout: seconds });
export const refreshSchema = z.strictObject({ duration: z.int().min(0).max(3600).optional() });
export const pauseSchema = z.strictObject({ memory: z.boolean().nullable().optional() });
export const forkSchema = z.strictObject({ timeout: seconds.optional(), count: z.int().min(1).max(LIMITS.forkChildren).optional() });
export const snapshotSchema = z.strictObject({ name: z.string().max(128).optional() });
export const networkUpdateSchema = networkSchema.omit({ allowPublicTraffic: true }).extend({ allow_internet_access: z.boolean().nullable().optional() });

export const pageQuery = z.strictObject({ limit: z.coerce.number().int().min(1).max(1000).default(100), nextToken: z.string().max(100).optional() });
export const listQuery = pageQuery.extend({
  metadata: z.string().max(LIMITS.metadataBytes * 9).optional(),
  state: z.union([z.string(), z.array(z.string())]).optional(),
  order: z.enum(["asc", "desc"]).default("desc"),
  startedAfter: z.string().optional(),
  template: z.string().optional(),
});
export const snapshotsQuery = pageQuery.extend({ sandboxID: z.string().optional(), name: z.string().max(256).optional() });
export const metricsQuery = z.strictObject({ start: z.coerce.number().optional(), end: z.coerce.number().optional() });
export const manyMetricsQuery = z.strictObject({ sandbox_ids: z.union([z.string(), z.array(z.string())]) });
export const logLevel = z.enum(["debug", "info", "warn", "error"]);
export type LogLevel = z.output<typeof logLevel>;
export const logsQuery = z.strictObject({ cursor: z.coerce.number().optional(), start: z.coerce.number().optional(), limit: z.coerce.number().int().min(0).max(1000).default(1000), direction: z.enum(["forward", "backward"]).default("forward"), level: logLevel.optional(), search: z.string().max(1000).optional() });
/** Whether an entry is at least as serious as was asked for. */
export function isAtLeast(level: LogLevel, least: LogLevel | undefined): boolean {
  return least === undefined || logLevel.options.indexOf(level) >= logLevel.options.indexOf(least);
}

export const templateRequestSchema = z.strictObject({
  name: z.string().max(256).optional(),
  alias: z.string().max(256).optional(),
  tags: z.array(z.string().max(128)).max(32).nullable().optional(),
  cpuCount: z.int().min(1).max(256).optional(),
  memoryMB: z.int().min(64).max(1 << 20).optional(),
  minFreeDiskMb: count.optional(),
  teamID: z.string().optional(),
});
export const buildSchema = z.strictObject({
  fromImage: z.string().min(1).max(4096).optional(),
  fromTemplate: z.string().min(1).max(4096).optional(),
  fromImageRegistry: only(z.unknown(), "images of private registries are pulled by the server's own credentials"),
  steps: z
    .array(
      z.strictObject({
        type: z.enum(["COPY", "ENV", "RUN", "WORKDIR", "USER"]),
        args: z.array(z.string()).default([]),
        filesHash: z.string().regex(/^[0-9a-f]{64}$/).optional(),
        force: z.boolean().optional(),
        forceUpload: z.boolean().optional(),
        resolveSymlinks: z.boolean().optional(),
        gzip: z.boolean().optional(),
      }),
    )
    .max(1000)
    .default([]),
  startCmd: z.string().max(LIMITS.agentCommandBytes).nullable().optional(),
  readyCmd: z.string().max(LIMITS.agentCommandBytes).nullable().optional(),
  force: z.boolean().optional(),
});
export type BuildBody = z.output<typeof buildSchema>;
export const tagsSchema = z.strictObject({ target: z.string(), tags: z.array(z.string().max(128)).min(1).max(32) });
export const untagSchema = z.strictObject({ name: z.string(), tags: z.array(z.string().max(128)).min(1).max(32) });

/**
 * The filter comes encoded three times (measured: `metadata=rollout%3Dr%2525201`): once as a query, and inside as a query of its own whose names and values are encoded again.
 */
export function metadataFilter(text: string | undefined): ReadonlyMap<string, string> {
  const wanted = new Map<string, string>();
  for (const [name, value] of new URLSearchParams(text ?? "")) wanted.set(decoded(name), decoded(value));
  return wanted;
}

/** What is no encoding is itself. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
