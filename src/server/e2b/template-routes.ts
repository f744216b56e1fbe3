/** The control plane for templates: building them, finding them, their tags. */
import type { FastifyInstance, FastifyRequest } from "fastify";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { newId } from "../../core/ids.ts";
import { checked } from "../endpoint.ts";
import type { Facade } from "./facade.ts";
import { pageOf } from "./page.ts";
import { buildSchema, isAtLeast, logLevel, pageQuery, tagsSchema, templateRequestSchema, untagSchema } from "./schemas.ts";
import type { Build, TemplateBuilds } from "./template-builds.ts";
import { isTemplateImage, splitReference, templateImage, type TemplateRecord } from "./template-store.ts";

const NAME = /^[a-z0-9][a-z0-9._/-]{0,127}$/i;
const TAG = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/;
const limit = z.coerce.number().int().min(0).max(1000).default(100);
const statusQuery = z.strictObject({ logsOffset: z.coerce.number().int().nonnegative().default(0), limit, level: logLevel.optional() });
const buildLogsQuery = z.strictObject({ cursor: z.coerce.number().optional(), limit, direction: z.enum(["forward", "backward"]).default("forward"), level: logLevel.optional(), source: z.enum(["temporary", "persistent"]).optional() });
const updateSchema = z.strictObject({ public: z.literal(false, "is not supported here: a template is its owner's alone").optional() });
const templatesQuery = pageQuery.extend({ teamID: z.string().optional() });

export function mountTemplates(app: FastifyInstance, { services, templates }: Facade, builds: TemplateBuilds): void {
  const { store } = templates;
  const { runtime } = services;
  const paramsOf = (request: FastifyRequest): Readonly<Record<string, string>> => request.params as Readonly<Record<string, string>>;
  const own = (request: FastifyRequest, reference: string): TemplateRecord => {
    const record = store.find(request.owner.id, reference) ?? store.find(request.owner.id, splitReference(reference).name);
    if (record === null) throw new MwError("not_found", `there is no template ${JSON.stringify(reference.slice(0, 200))}`);
    return record;
  };

  for (const url of ["/v3/templates", "/v2/templates", "/templates"]) {
    app.post(url, async (request, reply) => {
      const body = checked(templateRequestSchema, request.body ?? {}, "the body");
      const { name, tag } = splitReference(body.name ?? body.alias ?? "");
      if (!NAME.test(name)) throw new MwError("invalid_input", `${JSON.stringify(name.slice(0, 200))} cannot be a template's name`);
      const tags = [...new Set([tag, ...(body.tags ?? [])])];
      if (body.tags !== undefined && body.tags !== null && body.tags.length > 0 && !(body.name ?? "").includes(":")) tags.splice(tags.indexOf("default"), 1);
      for (const each of tags) if (!TAG.test(each)) throw new MwError("invalid_input", `${JSON.stringify(each.slice(0, 200))} cannot be a tag`);
      const now = runtime.now();
      const known = store.find(request.owner.id, name);
      if (known === null && store.list(request.owner.id).length >= LIMITS.templatesOfOwner) throw new MwError("limit_exceeded", `there are ${LIMITS.templatesOfOwner} templates of yours already`, { fix: "remove some" });
      const record: TemplateRecord = known ?? { templateID: newId("tpl", runtime), owner: request.owner.id, name, cpuCount: null, memoryMB: null, createdAt: now, updatedAt: now, tags: {} };
      await templates.put({ ...record, updatedAt: now });
      const build = builds.begin(request.owner.id, { ...record, cpuCount: body.cpuCount ?? record.cpuCount, memoryMB: body.memoryMB ?? record.memoryMB }, tags);
      return reply.code(202).send({ templateID: record.templateID, buildID: build.buildID, public: false, names: [name], tags, aliases: [name] });
    });
  }
  app.get("/templates/:id/files/:hash", async (request, reply) => {
    const { id = "", hash = "" } = paramsOf(request);
    const { templateID } = own(request, id);
    const { present, token } = await builds.upload(request.owner.id, templateID, hash);
    return reply.code(201).send({ present, url: `http://${request.headers.host ?? "localhost"}/e2b-uploads/${token}` });
  });
  app.post("/v2/templates/:id/builds/:build", async (request, reply) => {
    const { id = "", build = "" } = paramsOf(request);
    const body = checked(buildSchema, request.body ?? {}, "the body");
    builds.start(builds.get(request.owner.id, own(request, id).templateID, build), body);
    return reply.code(202).send({});
  });
  app.get("/templates/:id/builds/:build/status", (request) => {
    const { id = "", build: buildID = "" } = paramsOf(request);
    const { logsOffset, limit, level } = checked(statusQuery, request.query, "the query");
    const build = builds.get(request.owner.id, own(request, id).templateID, buildID);
    const logEntries = build.logs.slice(logsOffset, logsOffset + limit).filter((entry) => isAtLeast(entry.level, level));
    return { templateID: build.templateID, buildID, status: build.status, logs: logEntries.map(({ message }) => message), logEntries, ...(build.reason === null ? {} : { reason: { ...build.reason, logEntries: [] } }) };
  });
  app.get("/templates/aliases/:alias", async (request) => {
    const { alias = "" } = paramsOf(request);
    const built = store.find(request.owner.id, splitReference(alias).name);
    if (built !== null) return { templateID: built.templateID, public: false };
    if ((await templates.image(request.owner.id, alias)) === null) throw new MwError("not_found", `there is no template ${JSON.stringify(alias.slice(0, 200))}`);
    return { templateID: alias, public: true };
  });
  const listedAll = async (owner: string): Promise<readonly (Readonly<Record<string, unknown>> & { readonly templateID: string })[]> => {
    const images = await services.machines.images.list();
    const named = images.flatMap(({ name, image }) => (name === null || isTemplateImage(name) ? [] : [{ ...LISTED, templateID: name, aliases: [name], names: [name], public: true, createdAt: new Date(image.createdAt).toISOString(), updatedAt: new Date(image.createdAt).toISOString() }]));
    const host = named.some(({ templateID }) => templateID === "host") ? [] : [{ ...LISTED, templateID: "host", aliases: ["host"], names: ["host"], public: true, createdAt: new Date(runtime.now()).toISOString(), updatedAt: new Date(runtime.now()).toISOString() }];
    return [...store.list(owner).map(listed), ...named, ...host];
  };
  app.get("/templates", (request) => listedAll(request.owner.id));
  app.get("/v2/templates", async (request, reply) => pageOf(reply, await listedAll(request.owner.id), ({ templateID }) => templateID, { ...checked(templatesQuery, request.query, "the query"), order: "asc" }));
  app.get("/templates/:id", (request, reply) => {
    const record = own(request, paramsOf(request)["id"] ?? "");
    const found = builds.list(request.owner.id, record.templateID);
    const page = pageOf(reply, found, ({ buildID }) => buildID, { ...checked(pageQuery, request.query, "the query"), order: "asc" });
    return { ...listed(record), builds: page.map(buildDocument) };
  });
  for (const url of ["/templates/:id", "/v2/templates/:id"]) {
    app.patch(url, (request) => {
      const { name } = own(request, paramsOf(request)["id"] ?? "");
      checked(updateSchema, request.body ?? {}, "the body");
      return { names: [name] };
    });
  }
  app.get("/templates/:id/builds/:build/logs", (request) => {
    const { id = "", build: buildID = "" } = paramsOf(request);
    const { logs } = builds.get(request.owner.id, own(request, id).templateID, buildID);
    const query = checked(buildLogsQuery, request.query, "the query");
    const backward = query.direction === "backward";
    const wanted = logs.filter(({ timestamp, level }) => isAtLeast(level, query.level) && (query.cursor === undefined || (backward ? Date.parse(timestamp) <= query.cursor : Date.parse(timestamp) >= query.cursor)));
    return { logs: (backward ? wanted.toReversed() : wanted).slice(0, query.limit) };
  });
  app.delete("/templates/:id", async (request, reply) => {
    const { id = "" } = paramsOf(request);
    const { name, tag } = splitReference(id);
    const record = store.find(request.owner.id, id);
    if (record !== null) {
      for (const each of Object.keys(record.tags)) await services.machines.images.remove(templateImage(record.templateID, each)).catch(() => undefined);
      await templates.delete(record);
    } else await services.sandboxes.removeSnapshot(request.owner.id, tag === "default" ? name : id);
    return reply.code(204).send();
  });
  app.post("/templates/tags", async (request, reply) => {
    const { target, tags } = checked(tagsSchema, request.body ?? {}, "the body");
    const record = own(request, target);
    const { tag } = record.templateID === target || record.name === target ? { tag: "default" } : splitReference(target);
    const from = record.tags[tag];
    if (from === undefined) throw new MwError("not_found", `the template ${record.name} has no tag ${tag}`);
    for (const each of tags) {
      if (!TAG.test(each)) throw new MwError("invalid_input", `${JSON.stringify(each.slice(0, 200))} cannot be a tag`);
      const image = await services.machines.images.find(from.digest);
      if (image !== null) await services.machines.images.tag(image, templateImage(record.templateID, each));
    }
    await templates.put({ ...record, updatedAt: runtime.now(), tags: { ...record.tags, ...Object.fromEntries(tags.map((each) => [each, { ...from, createdAt: runtime.now() }])) } });
    return reply.code(201).send({ buildID: from.buildID, tags });
  });
  app.delete("/templates/tags", async (request, reply) => {
    const { name, tags } = checked(untagSchema, request.body ?? {}, "the body");
    const record = own(request, name);
    const left = Object.fromEntries(Object.entries(record.tags).filter(([tag]) => !tags.includes(tag)));
    for (const each of tags) if (record.tags[each] !== undefined) await services.machines.images.remove(templateImage(record.templateID, each)).catch(() => undefined);
    await templates.put({ ...record, updatedAt: runtime.now(), tags: left });
    return reply.code(204).send();
  });
  app.get("/templates/:id/tags", (request) => Object.entries(own(request, paramsOf(request)["id"] ?? "").tags).map(([tag, { buildID, createdAt }]) => ({ tag, buildID, createdAt: new Date(createdAt).toISOString() })));
}

/** Its address is the right to write: clients send no key there. */
export function mountUploads(app: FastifyInstance, builds: TemplateBuilds): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request, payload, done) => done(null, payload));
  app.put("/e2b-uploads/:token", { config: { open: true } }, async (request, reply) => {
    await builds.receive((request.params as { readonly token: string }).token, request.raw);
    return reply.code(200).send();
  });
}

const LISTED = { buildID: "", cpuCount: 0, memoryMB: 0, diskSizeMB: 0, spawnCount: 0, lastSpawnedAt: null, buildCount: 0, buildStatus: "ready", envdVersion: "", createdBy: null } as const;

function buildDocument({ buildID, status, createdAt, endedAt, cpuCount, memoryMB, logs }: Build): Readonly<Record<string, unknown>> {
  const updatedAt = logs.at(-1)?.timestamp ?? new Date(createdAt).toISOString();
  return { buildID, status, createdAt: new Date(createdAt).toISOString(), updatedAt, ...(endedAt === null ? {} : { finishedAt: new Date(endedAt).toISOString() }), cpuCount: cpuCount ?? 0, memoryMB: memoryMB ?? 0 };
}

function listed({ templateID, name, cpuCount, memoryMB, createdAt, updatedAt, tags }: TemplateRecord): Readonly<Record<string, unknown>> & { readonly templateID: string } {
  return { ...LISTED, templateID, buildID: tags["default"]?.buildID ?? Object.values(tags)[0]?.buildID ?? "", cpuCount: cpuCount ?? 0, memoryMB: memoryMB ?? 0, public: false, aliases: [name], names: [name], createdAt: new Date(createdAt).toISOString(), updatedAt: new Date(updatedAt).toISOString(), buildStatus: Object.keys(tags).length === 0 ? "waiting" : "ready" };
}
