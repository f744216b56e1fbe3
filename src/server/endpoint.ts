/** A route described by schemas: what comes in is checked with them, and the OpenAPI document is made from them. */
import type { FastifyInstance, FastifyReply, FastifyRequest, HTTPMethods } from "fastify";
import type { z } from "zod";
import { createDocument, type ZodOpenApiOperationObject, type ZodOpenApiPathsObject } from "zod-openapi";
import { MwError } from "../core/errors.ts";

type Schema = z.ZodType;

export interface EndpointResponse {
  readonly description: string;
  /** JSON; absent for no body, or for one of `contentTypes`. */
  readonly schema?: Schema;
  readonly contentTypes?: readonly string[];
}

export interface Endpoint<Params extends Schema, Query extends Schema, Body extends Schema> {
  readonly method: Extract<HTTPMethods, "GET" | "PUT" | "POST" | "PATCH" | "DELETE" | "HEAD">;
  /** With `{name}` for parameters, as in the document. */
  readonly path: string;
  readonly id: string;
  readonly summary: string;
  readonly params?: Params;
  readonly query?: Query;
  readonly body?: Body;
  /** Of a body that is no JSON: it reaches the handler as the plugin's parser gives it. */
  readonly rawBody?: readonly string[];
  readonly bodyLimit?: number;
  readonly responses: Readonly<Record<number, EndpointResponse>>;
  /** What it returns is sent as JSON; a reply that was taken over by `hijack` is left alone. */
  readonly handle: (input: { readonly params: z.output<Params>; readonly query: z.output<Query>; readonly body: z.output<Body>; readonly request: FastifyRequest; readonly reply: FastifyReply }) => unknown;
}

/** Any endpoint, for lists: what is in it was checked where it was defined. */
// oxlint-disable-next-line typescript/no-explicit-any -- the handler's input is the only place where the schemas differ, and it is contravariant
export type AnyEndpoint = Endpoint<any, any, any>;

export function endpoint<Params extends Schema, Query extends Schema, Body extends Schema>(definition: Endpoint<Params, Query, Body>): AnyEndpoint {
  return definition;
}

export function mountEndpoints(app: FastifyInstance, endpoints: readonly AnyEndpoint[]): void {
  for (const { method, path, params, query, body, bodyLimit, handle } of endpoints) {
    app.route({
      method,
      url: path.replaceAll(/\{(\w+)\}/g, ":$1"),
      ...(bodyLimit === undefined ? {} : { bodyLimit }),
      handler: (request, reply) =>
        handle({
          params: checked(params, request.params, "the path"),
          query: checked(query, request.query, "the query"),
          body: checked(body, request.body ?? {}, "the body"),
          request,
          reply,
        }),
    });
  }
}

/** Rejects `invalid_input` (422) with the path of every field that is wrong, at most ten of them. */
export function checked<T extends Schema>(schema: T | undefined, value: unknown, where: string): z.output<T> {
  // Without a schema nothing of it is looked at.
  if (schema === undefined) return undefined as z.output<T>;
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issues = result.error.issues.slice(0, 10).map(({ path, message }) => `${path.length === 0 ? where : path.join(".")}: ${message}`);
  throw new MwError("invalid_input", `${where} of the request: ${issues.join("; ")}`, { facts: { field: result.error.issues[0]?.path.join(".") ?? "" } });
}

/** The OpenAPI 3.1 document of a module. */
export function openApiOf(about: { readonly title: string; readonly version: string; readonly description: string }, endpoints: readonly AnyEndpoint[]): ReturnType<typeof createDocument> {
  const paths: Record<string, Record<string, ZodOpenApiOperationObject>> = {};
  for (const endpoint of endpoints) (paths[endpoint.path] ??= {})[endpoint.method.toLowerCase()] = operationOf(endpoint);
  return createDocument({
    openapi: "3.1.0",
    info: about,
    security: [{ bearer: [] }, { key: [] }],
    components: { securitySchemes: { bearer: { type: "http", scheme: "bearer" }, key: { type: "apiKey", in: "header", name: "X-API-Key" } } },
    // Methods are the ones of the document by the type of `method`.
    paths: paths as ZodOpenApiPathsObject,
  });
}

function operationOf({ id, summary, params, query, body, rawBody, responses }: AnyEndpoint): ZodOpenApiOperationObject {
  const content = rawBody === undefined ? (body === undefined ? null : { "application/json": { schema: body } }) : Object.fromEntries(rawBody.map((type) => [type, { schema: { type: "string" as const, format: "binary" } }]));
  return {
    operationId: id,
    summary,
    ...(params === undefined && query === undefined ? {} : { requestParams: { ...(params === undefined ? {} : { path: params }), ...(query === undefined ? {} : { query }) } }),
    ...(content === null ? {} : { requestBody: { content } }),
    responses: {
      ...Object.fromEntries(Object.entries(responses).map(([status, response]) => [status, responseOf(response)])),
      default: { description: "A problem document (RFC 9457)", content: { "application/problem+json": { schema: PROBLEM } } },
    },
  };
}

function responseOf({ description, schema, contentTypes }: EndpointResponse): { description: string; content?: Record<string, { schema: Schema | { type: "string"; format: string } }> } {
  if (contentTypes !== undefined) return { description, content: Object.fromEntries(contentTypes.map((type) => [type, { schema: { type: "string", format: "binary" } }])) };
  return schema === undefined ? { description } : { description, content: { "application/json": { schema } } };
}

const PROBLEM = {
  type: "object" as const,
  required: ["type", "title", "status", "detail", "code"],
  properties: { type: { type: "string" as const }, title: { type: "string" as const }, status: { type: "integer" as const }, detail: { type: "string" as const }, code: { type: "string" as const }, fix: { type: ["string" as const, "null" as const] } },
};
