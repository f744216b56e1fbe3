/** Delivery over HTTP: a thin skin over `Delivery`, whose schemas are those of the contract. */
import { setMaxListeners } from "node:events";
import { Readable } from "node:stream";
import type { FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import {
  ackRequestSchema,
  cancelRequestSchema,
  checkpointSchema,
  leaseRequestSchema,
  nameSchema,
  policyUpdateSchema,
  runRequestSchema,
  statusSchema,
  submitRequestSchema,
  terminalRecordSchema,
} from "../../delivery/contract.ts";
import { encodingFor, LEASE_TYPES } from "../../delivery/encodings/index.ts";
import type { DeliveryRegistry } from "../../delivery/registry.ts";
import type { DeliveryService } from "../../delivery/service.ts";
import { endpoint, type AnyEndpoint } from "../endpoint.ts";
import { ProblemError } from "../problem.ts";

export interface DeliveryRoutes {
  /** Runs of whoever asks. */
  readonly registryOf: (request: FastifyRequest) => Promise<DeliveryRegistry>;
  /** Aborted when the server ends: nobody waits on. */
  readonly draining: AbortSignal;
}

const ofRun = z.strictObject({ name: nameSchema });
const ofLease = z.strictObject({ id: z.string().max(256) });
const creditsSchema = z.strictObject({ groups: z.int(), bytes: z.int() });
const cursor = z.coerce.number().int().nonnegative();

export function deliveryEndpoints({ registryOf, draining }: DeliveryRoutes): readonly AnyEndpoint[] {
  // As many leases may wait as ask.
  setMaxListeners(0, draining);
  const run = async (request: FastifyRequest, name: string): Promise<DeliveryService> => (await registryOf(request)).get(name);
  return [
    endpoint({
      method: "GET",
      path: "/v1/delivery",
      id: "listDeliveries",
      summary: "Status of every run that delivers to a trainer",
      responses: { 200: { description: "The runs", schema: z.strictObject({ runs: z.array(statusSchema) }) } },
      handle: async ({ request }) => {
        const registry = await registryOf(request);
        return { runs: await Promise.all(registry.names.map(async (name) => (await registry.get(name)).status())) };
      },
    }),
    endpoint({
      method: "PUT",
      path: "/v1/runs/{name}",
      id: "putRun",
      summary: "Make a run, or find the one that was made of the same request; another request under its name is a conflict",
      params: ofRun,
      body: runRequestSchema,
      responses: { 200: { description: "Its status", schema: statusSchema } },
      handle: async ({ params, body, request }) => (await (await registryOf(request)).put(params.name, body)).status(),
    }),
    endpoint({
      method: "DELETE",
      path: "/v1/runs/{name}",
      id: "deleteRun",
      summary: "End a run, cancel what it has, and give its name free",
      params: ofRun,
      responses: { 204: { description: "It is over" } },
      handle: async ({ params, request, reply }) => {
        await (await registryOf(request)).delete(params.name);
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "PUT",
      path: "/v1/runs/{name}/policy",
      id: "putPolicy",
      summary: "Say which version of the policy there is, where, and whether it is being updated",
      params: ofRun,
      body: policyUpdateSchema,
      responses: { 200: { description: "The policy as it is now", schema: statusSchema.shape.policy } },
      handle: async ({ params, body, request }) => (await run(request, params.name)).setPolicy(body),
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{name}/groups",
      id: "submitGroups",
      summary: "Submit groups: all of them or, where one cannot be accepted, none",
      params: ofRun,
      body: submitRequestSchema,
      bodyLimit: LIMITS.submitBodyBytes,
      responses: {
        200: { description: "Which were new, and what is free now", schema: z.strictObject({ groups: z.array(z.strictObject({ group_id: nameSchema, status: z.enum(["accepted", "known"]) })), credits: creditsSchema }) },
        429: { description: "No room: the problem document has `credits`" },
      },
      handle: async ({ params, body, request }) => {
        const service = await run(request, params.name);
        try {
          return await service.submit(body.groups);
        } catch (error) {
          throw withCredits(error, service);
        }
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{name}/lease",
      id: "lease",
      summary: "Take finished groups, waiting for them at most `wait_ms`",
      params: ofRun,
      body: leaseRequestSchema,
      responses: { 200: { description: "Groups with their samples, in the accepted form; without groups it says how the run is", contentTypes: LEASE_TYPES } },
      handle: async ({ params, body, request, reply }) => {
        const encode = encodingFor(request.headers.accept);
        const service = await run(request, params.name);
        const gone = whileOpen(reply, draining);
        try {
          const lease = await service.lease(body, gone.signal);
          return sendLease(service, lease.head.lease_id, encode(lease), reply);
        } finally {
          gone.release();
        }
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/leases/{id}/ack",
      id: "ackLease",
      summary: "Say which groups of a lease were consumed and which were rejected; again is as once",
      params: ofLease,
      body: ackRequestSchema,
      bodyLimit: LIMITS.submitBodyBytes,
      responses: { 200: { description: "What is free now", schema: creditsSchema } },
      handle: async ({ params, body, request }) => (await (await registryOf(request)).ofLease(params.id)).ack(params.id, body),
    }),
    endpoint({
      method: "POST",
      path: "/v1/leases/{id}/extend",
      id: "extendLease",
      summary: "Keep a lease for another `lease_s`",
      params: ofLease,
      responses: { 200: { description: "Its new end", schema: z.strictObject({ expires_at: z.number() }) } },
      handle: async ({ params, request }) => (await (await registryOf(request)).ofLease(params.id)).extend(params.id),
    }),
    endpoint({
      method: "POST",
      path: "/v1/leases/{id}/release",
      id: "releaseLease",
      summary: "Give back what is left of a lease: it is delivered again, with the same bytes",
      params: ofLease,
      responses: { 204: { description: "It is back" } },
      handle: async ({ params, request, reply }) => {
        (await (await registryOf(request)).ofLease(params.id)).release(params.id);
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{name}/cancel",
      id: "cancelGroups",
      summary: "Cancel groups that are not leased: by name, those begun below a version, or all",
      params: ofRun,
      body: cancelRequestSchema,
      bodyLimit: LIMITS.submitBodyBytes,
      responses: { 200: { description: "Those that were cancelled", schema: z.strictObject({ cancelled: z.array(nameSchema) }) } },
      handle: async ({ params, body, request }) => (await run(request, params.name)).cancel(body),
    }),
    endpoint({
      method: "GET",
      path: "/v1/runs/{name}/terminal",
      id: "terminalLog",
      summary: "Lines of the terminal log after a line: how every accepted group ended",
      params: ofRun,
      query: z.strictObject({ after: cursor.default(0), limit: cursor.min(1).max(LIMITS.terminalRecords).default(100) }),
      responses: { 200: { description: "The next lines; fewer than `limit` when there are no more yet", schema: z.strictObject({ records: z.array(terminalRecordSchema), next: z.int() }) } },
      handle: async ({ params, query, request }) => {
        const records = await (await run(request, params.name)).terminal(query.after, query.limit);
        return { records, next: records.at(-1)?.seq ?? query.after };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/runs/{name}/status",
      id: "runStatus",
      summary: "How a run is: for watchdogs",
      params: ofRun,
      responses: { 200: { description: "Its status", schema: statusSchema } },
      handle: async ({ params, request }) => (await run(request, params.name)).status(),
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{name}/checkpoint",
      id: "checkpoint",
      summary: "Where delivery stands, to be kept with the trainer's checkpoint",
      params: ofRun,
      responses: { 200: { description: "The checkpoint", schema: checkpointSchema } },
      handle: async ({ params, request }) => (await run(request, params.name)).checkpoint(),
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{name}/restore",
      id: "restore",
      summary: "Go back to a checkpoint: what was consumed after it can be leased again, with the same bytes",
      params: ofRun,
      body: checkpointSchema,
      responses: { 200: { description: "The run's status", schema: statusSchema } },
      handle: async ({ params, body, request }) => (await run(request, params.name)).restore(body),
    }),
    endpoint({
      method: "POST",
      path: "/v1/runs/{name}/finish",
      id: "finishRun",
      summary: "Begin nothing more; the run is finished when what runs has ended and all was consumed. Answers at once",
      params: ofRun,
      responses: { 200: { description: "The run's status", schema: statusSchema } },
      handle: async ({ params, request }) => (await run(request, params.name)).drain(),
    }),
  ];
}

/** How often it is looked, at least, whether the body of a lease moves. */
const UNREAD_LEASE_MS = 10_000;

/** So much of a body at a time: what is given to the socket counts as moved, and a column of tokens may have many megabytes. */
const PIECE_BYTES = 256 << 10;

function* inPieces(chunks: Iterable<Uint8Array>): Generator<Uint8Array> {
  for (const chunk of chunks) for (let at = 0; at < chunk.length; at += PIECE_BYTES) yield chunk.subarray(at, at + PIECE_BYTES);
}

/** Aborted when the client has gone or the server ends. */
function whileOpen(reply: FastifyReply, draining: AbortSignal): { readonly signal: AbortSignal; release(): void } {
  const gone = new AbortController();
  const onClose = (): void => gone.abort(new MwError("cancelled", "the client has gone"));
  const onDraining = (): void => gone.abort(draining.reason);
  reply.raw.once("close", onClose);
  draining.addEventListener("abort", onDraining, { once: true });
  if (draining.aborted) onDraining();
  return {
    signal: gone.signal,
    release: () => {
      reply.raw.off("close", onClose);
      draining.removeEventListener("abort", onDraining);
    },
  };
}

/**
 * A body that does not arrive whole was of no use: its groups need not wait for the end of the lease. The lease lasts while the body moves, however slowly; one that stands still until
 * the end of the lease is broken off: a client that asks again and again and never reads would hold every one of them in memory.
 */
function sendLease(service: DeliveryService, lease: string | null, { contentType, bytes, chunks }: ReturnType<ReturnType<typeof encodingFor>>, reply: FastifyReply): FastifyReply {
  if (lease !== null) {
    const { raw } = reply;
    let written = 0;
    const watch = setInterval(() => {
      const moved = (raw.socket?.bytesWritten ?? 0) > written;
      written = raw.socket?.bytesWritten ?? 0;
      if (!service.holds(lease)) raw.destroy();
      else if (moved) service.extend(lease).catch(() => undefined);
    }, Math.min(service.request.lease_s * 333, UNREAD_LEASE_MS));
    watch.unref();
    raw.once("close", () => {
      clearInterval(watch);
      if (!raw.writableFinished) service.release(lease);
    });
  }
  void reply.header("content-type", contentType);
  if (bytes !== null) void reply.header("content-length", bytes);
  return reply.send(Readable.from(inPieces(chunks), { objectMode: false, highWaterMark: 1 << 20 }));
}

function withCredits(error: unknown, service: DeliveryService): unknown {
  if (!(error instanceof MwError) || error.code !== "overloaded") return error;
  return new ProblemError("overloaded", error.message, { ...(error.fix === undefined ? {} : { fix: error.fix }), cause: error, extensions: { credits: service.status().credits } });
}
