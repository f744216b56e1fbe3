/** The control plane for sandboxes, both generations of its routes. */
import type { FastifyInstance, FastifyRequest } from "fastify";
import type { z } from "zod";
import { MwError } from "../../core/errors.ts";
import type { SandboxEntry } from "../sandboxes/sandbox-entry.ts";
import { checked } from "../endpoint.ts";
import { aborted } from "../request-signal.ts";
import type { Services } from "../services.ts";
import { ALL_TRAFFIC, egressOf } from "./egress-rules.ts";
import type { Facade } from "./facade.ts";
import { e2bFailure } from "./failure.ts";
import { begin, DEFAULT_TIMEOUT_S, makeSandbox, tokens, ttl } from "./make-sandbox.ts";
import { pageOf } from "./page.ts";
import { detailDocument, listedDocument, sandboxDocument, type SandboxDocument } from "./sandbox-facts.ts";
import {
  connectSchema,
  createSchema,
  forkSchema,
  listQuery,
  logsQuery,
  manyMetricsQuery,
  metadataFilter,
  metricsQuery,
  networkUpdateSchema,
  snapshotsQuery,
  pauseSchema,
  refreshSchema,
  resumeSchema,
  snapshotSchema,
  timeoutSchema,
} from "./schemas.ts";
import { commandsOf, keptCommands } from "./template-start.ts";

export function mountControl(app: FastifyInstance, facade: Facade): void {
  const { services, secrets, observations, domain, hubOf, processRecords } = facade;
  const { sandboxes } = services;
  const entryOf = (request: FastifyRequest): SandboxEntry => sandboxes.get(request.owner.id, (request.params as { readonly id: string }).id);
  const describe = (entry: SandboxEntry): SandboxDocument => sandboxDocument(entry, secrets.of(entry), domain());
  // Older clients say `memory: true` by themselves, so that it means: where this host can. What is lost otherwise is told in the log.
  const memoryKept = (entry: SandboxEntry, asked: boolean | null | undefined): boolean => {
    const wanted = asked ?? entry.facts.request.pauseMemory;
    const kept = wanted && entry.facts.request.checkpointable === true;
    if (wanted && !kept) observations.log(entry, "warn", "paused without its processes: this host cannot keep the memory of sandboxes");
    return kept;
  };

  for (const [url, generation] of [["/sandboxes", "v1"], ["/v2/sandboxes", "v2"]] as const) {
    app.post(url, async (request, reply) => {
      const body = bodyOf(createSchema, request);
      const signal = aborted(request.raw, reply.raw);
      const entry = await makeSandbox(facade, request.owner.id, body, generation, signal);
      return reply.code(201).send(describe(entry));
    });
    app.post(`${url}/:id/connect`, async (request, reply) => {
      const body = bodyOf(connectSchema, request);
      const entry = entryOf(request);
      const paused = entry.state === "paused";
      withProcesses(entry, body.memory);
      await sandboxes.resume(entry, ttl(body.timeout ?? DEFAULT_TIMEOUT_S.v2));
      return reply.code(paused ? 201 : 200).send(describe(entry));
    });
  }
  for (const url of ["/sandboxes", "/v2/sandboxes"]) {
    app.get(url, async (request, reply) => {
      const query = checked(listQuery, request.query, "the query");
      const wanted = metadataFilter(query.metadata);
      const states = statesOf(query.state, url);
      const after = query.startedAfter === undefined ? Number.NEGATIVE_INFINITY : Date.parse(query.startedAfter);
      if (Number.isNaN(after)) throw new MwError("invalid_input", "startedAfter is no time");
      const all = sandboxes
        .list(request.owner.id)
        .filter((entry) => states.has(entry.state) && entry.startedAt >= after && (query.template === undefined || entry.facts.request.template === query.template) && [...wanted].every(([name, value]) => entry.facts.request.metadata[name] === value));
      return pageOf(reply, all, (entry) => entry.listKey, query).map(listedDocument);
    });
  }
  app.get("/sandboxes/:id", (request) => {
    const entry = entryOf(request);
    return detailDocument(entry, secrets.of(entry), domain());
  });
  app.delete("/sandboxes/:id", async (request, reply) => {
    await sandboxes.kill(entryOf(request));
    return reply.code(204).send();
  });
  app.post("/sandboxes/:id/timeout", async (request, reply) => {
    const entry = entryOf(request);
    await sandboxes.renew(entry, ttl(bodyOf(timeoutSchema, request).timeout));
    return reply.code(204).send();
  });
  app.post("/sandboxes/:id/refreshes", async (request, reply) => {
    const entry = entryOf(request);
    const wanted = ttl(bodyOf(refreshSchema, request).duration ?? DEFAULT_TIMEOUT_S.v1);
    // It only ever makes a life longer.
    if (services.runtime.now() + wanted > entry.endAt) await sandboxes.renew(entry, wanted);
    return reply.code(204).send();
  });
  app.put("/sandboxes/:id/network", async (request, reply) => {
    const entry = entryOf(request);
    await changeNetwork(sandboxes, entry, bodyOf(networkUpdateSchema, request));
    return reply.code(204).send();
  });
  app.post("/sandboxes/:id/pause", async (request, reply) => {
    const entry = entryOf(request);
    await sandboxes.pause(entry, memoryKept(entry, bodyOf(pauseSchema, request).memory));
    return reply.code(204).send();
  });
  app.post("/sandboxes/:id/resume", async (request, reply) => {
    const entry = entryOf(request);
    const body = bodyOf(resumeSchema, request);
    if (typeof body.autoPause === "boolean" && body.autoPause !== (entry.facts.request.onTimeout === "pause")) throw new MwError("unsupported", "what becomes of a sandbox at the end of its time is decided when it is made", { fix: "make it with autoPause" });
    withProcesses(entry, body.memory);
    if (entry.state === "running") throw new MwError("conflict", `the sandbox ${entry.id} is running already`);
    await sandboxes.resume(entry, ttl(body.timeout ?? DEFAULT_TIMEOUT_S.v1));
    return reply.code(201).send(describe(entry));
  });
  app.post("/sandboxes/:id/fork", async (request, reply) => {
    const entry = entryOf(request);
    const { timeout = DEFAULT_TIMEOUT_S.v2, count = 1 } = bodyOf(forkSchema, request);
    const memory = memoryKept(entry, undefined);
    const commands = commandsOf(entry.facts.request.extra);
    const inherited = memory ? await hubOf(await sandboxes.running(entry)).notes() : [];
    const forked = await sandboxes.fork(entry, count, { memory, ttlMs: ttl(timeout), extra: () => ({ ...tokens(secrets.of(entry).traffic !== null), ...keptCommands(commands) }) });
    // Where the processes are kept it runs already.
    if (memory) for (const child of forked) if ("entry" in child && child.entry.sandbox !== null) hubOf(child.entry.sandbox, inherited);
    const children = memory ? forked : await Promise.all(forked.map(async (child) => ("entry" in child ? begin(facade, child.entry, services.draining).then(() => child, (error: unknown) => ({ error })) : child)));
    return reply.code(201).send(children.map((child) => ("entry" in child ? { sandbox: describe(child.entry) } : { error: e2bFailure(child.error).body })));
  });
  app.post("/sandboxes/:id/snapshots", async (request, reply) => {
    const entry = entryOf(request);
    const { name } = bodyOf(snapshotSchema, request);
    const memory = memoryKept(entry, undefined);
    const processes = memory ? await hubOf(await sandboxes.running(entry)).notes() : [];
    const { snapshot } = await sandboxes.snapshot(entry, { memory, ...(name === undefined ? {} : { name: snapshotName(name) }) });
    if (processes.length > 0) await processRecords.write(snapshot.id, processes);
    return reply.code(201).send({ snapshotID: snapshot.id, names: snapshot.name === null ? [] : [`${snapshot.name}:default`] });
  });
  app.get("/snapshots", async (request, reply) => {
    const query = checked(snapshotsQuery, request.query, "the query");
    const { sandboxID: sandbox, name } = query;
    const all = (await sandboxes.snapshots(request.owner.id)).filter((snapshot) => (sandbox === undefined || snapshot.sandbox === sandbox) && (name === undefined || snapshot.id === name.replace(/:default$/, "") || snapshot.name === name.replace(/:default$/, "")));
    return pageOf(reply, all, (snapshot) => snapshot.id, { ...query, order: "asc" }).map((snapshot) => ({ snapshotID: snapshot.id, names: snapshot.name === null ? [] : [`${snapshot.name}:default`] }));
  });
  app.get("/sandboxes/:id/metrics", async (request) => {
    const entry = entryOf(request);
    const { start = 0, end = Number.POSITIVE_INFINITY } = checked(metricsQuery, request.query, "the query");
    return (await observations.metrics(entry)).filter(({ timestampUnix }) => timestampUnix >= start && timestampUnix <= end);
  });
  app.get("/sandboxes/metrics", async (request) => {
    const { sandbox_ids: named } = checked(manyMetricsQuery, request.query, "the query");
    const ids = [...new Set((typeof named === "string" ? [named] : named).flatMap((text) => text.split(",")))];
    if (ids.length > 100) throw new MwError("limit_exceeded", "metrics of at most 100 sandboxes are told at once");
    const found = await Promise.all(ids.map(async (id) => [id, (await observations.metrics(sandboxes.get(request.owner.id, id))).at(-1)] as const));
    return { sandboxes: Object.fromEntries(found.filter(([, sample]) => sample !== undefined)) };
  });
  app.get("/v2/sandboxes/:id/logs", (request) => ({ logs: observations.logs(entryOf(request), checked(logsQuery, request.query, "the query")) }));
  app.get("/sandboxes/:id/logs", (request) => {
    const entries = observations.logs(entryOf(request), checked(logsQuery, request.query, "the query"));
    return { logs: entries.map(({ timestamp, message }) => ({ timestamp, line: message })), logEntries: entries };
  });
  app.get("/teams", () => [{ teamID: "local", name: "local", apiKey: "", isDefault: true }]);
}

function bodyOf<T extends z.ZodType>(schema: T, request: FastifyRequest): z.output<T> {
  return checked(schema, request.body ?? {}, "the body");
}

/** Processes that a pause has kept are not thrown away by a resume that wants none. */
function withProcesses(entry: SandboxEntry, memory: boolean | undefined): void {
  if (entry.state === "paused" && memory === false && entry.facts.request.pauseMemory) throw new MwError("unsupported", "a sandbox that was paused with its processes resumes with them");
}

function statesOf(asked: string | readonly string[] | undefined, url: string): ReadonlySet<string> {
  // The older list knows running ones only.
  if (asked === undefined) return new Set(url === "/sandboxes" ? ["running"] : ["running", "paused"]);
  const states = (typeof asked === "string" ? [asked] : asked).flatMap((text) => text.split(","));
  const unknown = states.find((state) => state !== "running" && state !== "paused");
  if (unknown !== undefined) throw new MwError("invalid_input", `there is no state ${JSON.stringify(unknown.slice(0, 50))}`);
  return new Set(states);
}

/** `name` or `name:tag`; snapshots have no further tags. */
function snapshotName(text: string): string {
  const [name = "", tag = "default", more] = text.split(":");
  if (!/^[A-Za-z0-9._-]{1,128}$/.test(name) || tag !== "default" || more !== undefined) throw new MwError("invalid_input", `${JSON.stringify(text.slice(0, 200))} cannot be a snapshot's name`, { fix: "use letters, digits, dots, underscores and dashes; the only tag is default" });
  return name;
}

/** Replaces the rules of a living sandbox, where its network can change so. */
async function changeNetwork(sandboxes: Services["sandboxes"], entry: SandboxEntry, body: z.output<typeof networkUpdateSchema>): Promise<void> {
  const { allow_internet_access: access, ...network } = body;
  const asked = egressOf({ allow_internet_access: access, network });
  const now = entry.facts.request.network ?? "none";
  if (now === "allowlist" && (asked?.network === "allowlist" || asked?.network === "none")) await sandboxes.allow(entry, asked.network === "allowlist" ? asked.allow : []);
  else if ((asked?.network ?? now) !== now) throw new MwError("unsupported", `the sandbox was made with the network "${now}", which does not become "${asked?.network}"`, { fix: "make it with the rules that it is to have; names can be changed in a sandbox that was made with allowOut" });
  else if (asked === null && now === "allowlist") throw new MwError("unsupported", 'a sandbox that was made with allowOut does not get everything', { fix: `give allowOut, and denyOut: [${JSON.stringify(ALL_TRAFFIC)}]` });
}
