/** Commands in sandboxes: run to the end in one request, or started, fed, read at offsets and signalled in requests of their own. */
import { constants } from "node:os";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { z } from "zod";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { ExecId } from "../../core/ids.ts";
import type { Exec, ExecOptions, Sandbox } from "../../sandbox/sandbox.ts";
import { endpoint, type AnyEndpoint } from "../endpoint.ts";
import { problemOf } from "../problem.ts";
import { aborted, send } from "../request-signal.ts";
import type { Services } from "../services.ts";
import type { ExecHandles } from "./exec-handles.ts";
import { execParams, execRequest, execStarted, exitDocument, killRequest, outputQuery, resizeRequest, runRequest, runResult, sandboxParams, stdinQuery } from "./wire.ts";

const DONE = { description: "Done" };
const STREAM_KEEPALIVE_MS = 15_000;

export function execRoutes({ sandboxes, draining, runtime }: Services, handles: ExecHandles): readonly AnyEndpoint[] {
  const machine = (request: FastifyRequest, id: string): Promise<Sandbox> => sandboxes.running(sandboxes.get(request.owner.id, id));
  return [
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/run",
      id: "run",
      summary: "Run a command to its end and get its output; it is killed when the client goes away",
      params: sandboxParams,
      body: runRequest,
      bodyLimit: LIMITS.execRequestBytes,
      responses: { 200: { description: "How it ended, whatever its exit code", schema: runResult } },
      handle: async ({ params, body, request, reply }) => {
        const sandbox = await machine(request, params.id);
        const { stdout, stderr, ...exit } = await sandbox.run({ ...optionsOf(body), signal: aborted(request.raw, reply.raw) });
        return { ...exitDocument(exit), stdout: Buffer.from(stdout).toString(body.encoding), stderr: Buffer.from(stderr).toString(body.encoding) };
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/execs",
      id: "startExec",
      summary: "Start a command; it goes on whatever becomes of the connection",
      params: sandboxParams,
      body: execRequest,
      bodyLimit: LIMITS.execRequestBytes,
      responses: { 201: { description: "It was started, or had been under this id", schema: execStarted } },
      handle: async ({ params, body, request, reply }) => {
        const exec = await handles.start(await machine(request, params.id), {
          ...optionsOf(body),
          maxOutputBytes: body.max_output_bytes ?? Number.MAX_SAFE_INTEGER,
          openStdin: body.open_stdin,
          ...(body.id === undefined ? {} : { id: body.id as ExecId }),
          ...(body.pty === undefined ? {} : { pty: body.pty }),
        });
        return reply.code(201).send({ id: exec.id, pid: exec.pid });
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/execs/{exec}/output",
      id: "readExec",
      summary: "Its output from these byte offsets on, until it ends: JSON lines {stream, offset, data} with data as base64, at last {exit}. As server-sent events where the client accepts those; Last-Event-ID then gives the offsets. At least the last 256 KiB can be asked for again. One reader at a time: the latest.",
      params: execParams,
      query: outputQuery,
      responses: { 200: { description: "A stream", contentTypes: ["application/x-ndjson", "text/event-stream"] } },
      handle: async ({ params, query, request, reply }) => {
        const sandbox = await machine(request, params.id);
        const offsets = { ...query, ...lastEvent(request) };
        const exec = await handles.read(sandbox, params.exec, offsets);
        await stream(reply, exec, offsets, { events: (request.headers.accept ?? "").includes("text/event-stream"), draining, keepalive: (signal) => runtime.sleep(STREAM_KEEPALIVE_MS, signal) });
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/execs/{exec}/kill",
      id: "signalExec",
      summary: "Send a signal to the command; SIGKILL reaches its whole tree",
      params: execParams,
      body: killRequest,
      responses: { 204: DONE },
      handle: async ({ params, body, request, reply }) => {
        if (!isSignal(body.signal)) throw new MwError("invalid_input", `there is no signal ${body.signal}`);
        await (await handles.get(await machine(request, params.id), params.exec)).kill(body.signal);
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/execs/{exec}/resize",
      id: "resizeExec",
      summary: "Give its terminal another size",
      params: execParams,
      body: resizeRequest,
      responses: { 204: DONE },
      handle: async ({ params, body, request, reply }) => {
        await (await handles.get(await machine(request, params.id), params.exec)).resize(body.columns, body.rows);
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "DELETE",
      path: "/v1/sandboxes/{id}/execs/{exec}",
      id: "forgetExec",
      summary: "Forget a command that has ended",
      params: execParams,
      responses: { 204: DONE },
      handle: async ({ params, request, reply }) => {
        await handles.forget(await machine(request, params.id), params.exec);
        return reply.code(204).send();
      },
    }),
  ];
}

/** Its body is bytes, so that it needs a parser of its own. */
export function stdinRoute({ sandboxes }: Services, handles: ExecHandles): AnyEndpoint {
  return endpoint({
    method: "POST",
    path: "/v1/sandboxes/{id}/execs/{exec}/stdin",
    id: "writeExec",
    summary: "Bytes for its input; answered when the command has room for more. close=true ends the input after them.",
    params: execParams,
    query: stdinQuery,
    rawBody: ["application/octet-stream"],
    responses: { 204: DONE },
    handle: async ({ params, query, request, reply }) => {
      const exec = await handles.get(await sandboxes.running(sandboxes.get(request.owner.id, params.id)), params.exec);
      // The parser of the plugin gives the body as a stream of bytes; there is none without a body.
      for await (const chunk of (request.body ?? []) as AsyncIterable<Uint8Array>) await exec.writeStdin(chunk);
      if (query.close) await exec.closeStdin();
      return reply.code(204).send();
    },
  });
}

function optionsOf(body: Pick<z.output<typeof runRequest>, "command" | "cwd" | "env" | "user" | "timeout_ms" | "max_output_bytes" | "stdin" | "stdin_base64">): ExecOptions {
  const { command, cwd, env, user, timeout_ms: timeoutMs, max_output_bytes: maxOutputBytes, stdin, stdin_base64: bytes } = body;
  if (stdin !== undefined && bytes !== undefined) throw new MwError("invalid_input", "stdin and stdin_base64 cannot both be given");
  const input = bytes === undefined ? stdin : Buffer.from(bytes, "base64");
  return {
    command,
    env,
    ...(cwd === undefined ? {} : { cwd }),
    ...(user === undefined ? {} : { user }),
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
    ...(maxOutputBytes === undefined ? {} : { maxOutputBytes }),
    ...(input === undefined ? {} : { stdin: input }),
  };
}

interface StreamOptions {
  readonly events: boolean;
  readonly draining: AbortSignal;
  readonly keepalive: (signal: AbortSignal) => Promise<void>;
}

/** The command goes on when the reader goes. */
async function stream(reply: FastifyReply, exec: Exec, from: { readonly stdout: number; readonly stderr: number }, { events, draining, keepalive }: StreamOptions): Promise<void> {
  reply.hijack();
  const { raw: response } = reply;
  response.writeHead(200, { ...reply.getHeaders() as Record<string, string>, "content-type": events ? "text/event-stream" : "application/x-ndjson", "cache-control": "no-store" });
  response.flushHeaders();
  const at = { ...from };
  const line = (name: string, document: unknown): string => {
    const json = JSON.stringify(document);
    return events ? `event: ${name}\nid: ${at.stdout},${at.stderr}\ndata: ${json}\n\n` : `${json}\n`;
  };
  const stop = new AbortController();
  const over = (): void => stop.abort("over");
  response.once("close", over);
  draining.addEventListener("abort", () => response.destroy(), { once: true, signal: stop.signal });
  if (events) void beat(response, keepalive, stop.signal);
  try {
    for await (const { stream: name, data } of exec.output) {
      const offset = at[name];
      at[name] += data.length;
      if (!(await send(response, line("output", { stream: name, offset, data: Buffer.from(data).toString("base64") })))) return;
    }
    response.end(line("exit", { exit: exitDocument(await exec.exit) }));
  } catch (error) {
    response.end(line("error", { error: problemOf(error).body }));
  } finally {
    over();
  }
}

/** So that whatever lies between knows that the stream lives. */
async function beat(response: FastifyReply["raw"], keepalive: StreamOptions["keepalive"], over: AbortSignal): Promise<void> {
  try {
    for (;;) {
      await keepalive(over);
      response.write(": \n\n");
    }
  } catch {
    // It is over.
  }
}

function lastEvent(request: FastifyRequest): { readonly stdout?: number; readonly stderr?: number } {
  const match = /^(\d{1,15}),(\d{1,15})$/.exec(String(request.headers["last-event-id"] ?? ""));
  return match === null ? {} : { stdout: Number(match[1]), stderr: Number(match[2]) };
}

function isSignal(name: string): name is NodeJS.Signals {
  return name in constants.signals;
}
