/** What the routes of runs and of rollouts share. */
import { Readable } from "node:stream";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { Runtime } from "../../core/runtime.ts";
import type { CallBoard } from "../../gateway/call-board.ts";
import type { SandboxBackend } from "../../sandbox/sandbox.ts";
import type { Annotations } from "./annotations.ts";
import type { EventStreams } from "./event-stream.ts";
import type { RecordStore } from "./rollout-record.ts";
import type { RunLibrary } from "./run-library.ts";

export interface RunRoutesOptions {
  /** Where this server's machines are. */
  readonly backend: Pick<SandboxBackend, "list" | "get">;
  /** Where model calls of this process are seen; absent in one that has none. */
  readonly board?: CallBoard | undefined;
  readonly home: string;
  readonly runtime: Runtime;
  /** Streams end when it is aborted. */
  readonly draining: AbortSignal;
}

export interface ReadContext extends RunRoutesOptions {
  readonly library: RunLibrary;
  readonly records: RecordStore;
  readonly annotations: Annotations;
  readonly streams: EventStreams;
}

/** Where a reader that was cut off had come to; null for a new one, or for one that says nothing sensible. */
export function lastEventId(request: FastifyRequest): number | null {
  const value = request.headers["last-event-id"] ?? (request.query as Readonly<Record<string, unknown>>)["lastEventId"];
  return typeof value === "string" && /^\d{1,15}$/.test(value) ? Number(value) : null;
}

/** Sends text as a file to be saved: nothing of it is ever shown by a browser as a page of ours. */
export function attachment(reply: FastifyReply, name: string, type: string, lines: Iterable<string> | AsyncIterable<string>): FastifyReply {
  return reply.type(type).header("content-disposition", `attachment; filename="${name}"`).header("cache-control", "no-store").send(Readable.from(lines, { objectMode: true }));
}

