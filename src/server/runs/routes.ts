/**
 * The read API over run directories, for the dashboard and whoever likes: it needs nothing but the data directory, and follows runs that other processes write. Answers are the documents
 * of `contract/`. Nothing here starts, stops or changes a run; the only thing that is written are marks and notes.
 */
import type { FastifyInstance } from "fastify";
import { mountEndpoints, openApiOf, type AnyEndpoint } from "../endpoint.ts";
import { Annotations } from "./annotations.ts";
import { callEndpoints } from "./endpoints/calls.ts";
import { eventsEndpoint } from "./endpoints/events.ts";
import { listEndpoints } from "./endpoints/lists.ts";
import { machineEndpoint } from "./endpoints/machines.ts";
import { rolloutEndpoints } from "./endpoints/rollout.ts";
import { rolloutListEndpoints } from "./endpoints/rollouts.ts";
import { runEndpoints } from "./endpoints/run.ts";
import { EventStreams } from "./event-stream.ts";
import type { ReadContext, RunRoutesOptions } from "./http.ts";
import { RecordStore } from "./rollout-record.ts";
import { RunLibrary } from "./run-library.ts";

export function runRoutes(app: FastifyInstance, options: RunRoutesOptions): void {
  const context: ReadContext = { ...options, library: new RunLibrary(options.home), records: new RecordStore(), annotations: new Annotations(), streams: new EventStreams(options.runtime) };
  options.draining.addEventListener("abort", () => context.streams.close());
  mountEndpoints(app, endpointsOf(context));
}

function endpointsOf(context: ReadContext): readonly AnyEndpoint[] {
  return [...listEndpoints(context), machineEndpoint(context), ...runEndpoints(context), eventsEndpoint(context), ...rolloutListEndpoints(context), ...rolloutEndpoints(context), ...callEndpoints(context)];
}

/** The OpenAPI document that is committed as `docs/openapi/runs.json`. */
export function runsDocument(): ReturnType<typeof openApiOf> {
  // Nothing of the context is used before a request comes.
  return openApiOf({ title: "Manyworlds runs", version: "1", description: "What run directories hold, for reading: see docs/dashboard.md." }, endpointsOf({} as ReadContext));
}
