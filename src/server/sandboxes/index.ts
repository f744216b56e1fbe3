/** The native sandbox interface, `/v1/sandboxes` and `/v1/snapshots`. */
import type { FastifyInstance } from "fastify";
import { mountEndpoints, openApiOf, type AnyEndpoint } from "../endpoint.ts";
import type { Services } from "../services.ts";
import { ExecHandles } from "./exec-handles.ts";
import { execRoutes, stdinRoute } from "./exec-routes.ts";
import { byteRoutes, fileRoutes, sweepTransfers } from "./file-routes.ts";
import { lifecycleRoutes } from "./lifecycle-routes.ts";
import { networkRoutes } from "./network-routes.ts";
import { mountTerminals } from "./terminal.ts";

export async function sandboxesModule(app: FastifyInstance, services: Services): Promise<void> {
  await sweepTransfers(services.home);
  const handles = new ExecHandles();
  const { json, bytes } = routesOf(services, handles);
  mountEndpoints(app, json);
  await app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    // Bodies stream: their size is the sandbox's business.
    scope.addContentTypeParser("*", (_request, payload, done) => done(null, payload));
    mountEndpoints(scope, bytes);
  });
  mountTerminals(services, handles);
}

function routesOf(services: Services, handles: ExecHandles): { readonly json: readonly AnyEndpoint[]; readonly bytes: readonly AnyEndpoint[] } {
  return { json: [...lifecycleRoutes(services), ...networkRoutes(services), ...execRoutes(services, handles), ...fileRoutes(services)], bytes: [stdinRoute(services, handles), ...byteRoutes(services)] };
}

/** The OpenAPI document that is committed as `docs/openapi/sandboxes.json`. */
export function sandboxesDocument(): ReturnType<typeof openApiOf> {
  // Nothing of the services is used before a request comes.
  const { json, bytes } = routesOf({} as Services, new ExecHandles());
  return openApiOf({ title: "Manyworlds sandboxes", version: "1", description: "Machines over HTTP: see docs/server.md." }, [...json, ...bytes]);
}
