/** Files of sandboxes: contents as bytes, trees as tar archives. */
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import type { FastifyRequest } from "fastify";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { TarEncoder } from "../../image/tar-write.ts";
import { readTar } from "../../image/tar-read.ts";
import { readTree, TreeWriter } from "../../image/unpacker.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { endpoint, type AnyEndpoint } from "../endpoint.ts";
import { send } from "../request-signal.ts";
import type { Services } from "../services.ts";
import { fileDocument, fileList, fileSchema, mkdirRequest, moveRequest, pathQuery, readQuery, sandboxParams, treeQuery, treeReport, writeQuery } from "./wire.ts";

const DONE = { description: "Done" };
const BYTES = ["application/octet-stream"];
const TAR = ["application/x-tar"];

export function fileRoutes({ sandboxes }: Services): readonly AnyEndpoint[] {
  const machine = (request: FastifyRequest, id: string): Promise<Sandbox> => sandboxes.running(sandboxes.get(request.owner.id, id));
  return [
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/files",
      id: "readFile",
      summary: "The content of a file, with links followed inside the sandbox",
      params: sandboxParams,
      query: readQuery,
      responses: { 200: { description: "Its bytes", contentTypes: BYTES } },
      handle: async ({ params, query, request, reply }) => {
        const pieces = (await machine(request, params.id)).files.readStream(query.path, query.user === undefined ? {} : { user: query.user })[Symbol.asyncIterator]();
        // What cannot be read is found out before the answer begins.
        let next = await pieces.next();
        reply.hijack();
        const { raw: response } = reply;
        response.writeHead(200, { ...(reply.getHeaders() as Record<string, string>), "content-type": "application/octet-stream" });
        try {
          for (; next.done !== true; next = await pieces.next()) {
            if (!(await send(response, next.value))) return;
          }
          response.end();
        } catch {
          // Cut off: what came is not whole.
          response.destroy();
        } finally {
          await pieces.return?.();
        }
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/files/stat",
      id: "statFile",
      summary: "What is at a path; a link at its end is not followed",
      params: sandboxParams,
      query: pathQuery,
      responses: { 200: { description: "It", schema: fileSchema } },
      handle: async ({ params, query, request }) => {
        const stat = await (await machine(request, params.id)).files.stat(query.path);
        if (stat === null) throw new MwError("not_found", `there is nothing at ${JSON.stringify(query.path)} in the sandbox`);
        return fileDocument(stat);
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/files/list",
      id: "listFiles",
      summary: "What is in a directory",
      params: sandboxParams,
      query: pathQuery,
      responses: { 200: { description: "Its entries", schema: fileList } },
      handle: async ({ params, query, request }) => ({ entries: (await (await machine(request, params.id)).files.list(query.path)).map(fileDocument) }),
    }),
    endpoint({
      method: "DELETE",
      path: "/v1/sandboxes/{id}/files",
      id: "removeFile",
      summary: "Remove a file or a whole tree; nothing there is no error",
      params: sandboxParams,
      query: pathQuery,
      responses: { 204: DONE },
      handle: async ({ params, query, request, reply }) => {
        await (await machine(request, params.id)).files.remove(query.path);
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/files/move",
      id: "moveFile",
      summary: "Move a file or tree",
      params: sandboxParams,
      body: moveRequest,
      responses: { 204: DONE },
      handle: async ({ params, body, request, reply }) => {
        await (await machine(request, params.id)).files.move(body.from, body.to);
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "POST",
      path: "/v1/sandboxes/{id}/files/mkdir",
      id: "makeDirectory",
      summary: "Make a directory and those above it; one that is there is left as it is",
      params: sandboxParams,
      body: mkdirRequest,
      responses: { 204: DONE },
      handle: async ({ params, body, request, reply }) => {
        await (await machine(request, params.id)).files.mkdir(body.path, { ...modeOf(body), ...(body.owner === undefined ? {} : { owner: body.owner }) });
        return reply.code(204).send();
      },
    }),
  ];
}

/** Those whose body is bytes: they need a parser of their own. */
export function byteRoutes(services: Services): readonly AnyEndpoint[] {
  const { sandboxes, home } = services;
  const machine = (request: FastifyRequest, id: string): Promise<Sandbox> => sandboxes.running(sandboxes.get(request.owner.id, id));
  return [
    endpoint({
      method: "PUT",
      path: "/v1/sandboxes/{id}/files",
      id: "writeFile",
      summary: "Write a file, making directories above it; it appears whole or not at all",
      params: sandboxParams,
      query: writeQuery,
      rawBody: BYTES,
      responses: { 204: DONE },
      handle: async ({ params, query, request, reply }) => {
        await (await machine(request, params.id)).files.write(query.path, bodyOf(request), { ...modeOf(query), ...(query.owner === undefined ? {} : { owner: query.owner }) });
        return reply.code(204).send();
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/sandboxes/{id}/tree",
      id: "downloadTree",
      summary: "A directory as a tar archive: modes, links, times. What cannot be in it (devices, links that lead out) is left out and counted in X-Refused.",
      params: sandboxParams,
      query: pathQuery,
      responses: { 200: { description: "The archive", contentTypes: TAR } },
      handle: async ({ params, query, request, reply }) => {
        const sandbox = await machine(request, params.id);
        await withTemporary(home, async (directory) => {
          const target = join(directory, "tree");
          const { refused } = await sandbox.files.download(query.path, target);
          reply.hijack();
          const { raw: response } = reply;
          response.writeHead(200, { ...(reply.getHeaders() as Record<string, string>), "content-type": "application/x-tar", "x-refused": String(refused.length) });
          const encoder = new TarEncoder();
          try {
            for await (const event of readTree(target)) for (const part of encoder.encode(event)) if (!(await send(response, part))) return;
            for (const part of encoder.end()) if (!(await send(response, part))) return;
            response.end();
          } catch {
            response.destroy();
          }
        });
      },
    }),
    endpoint({
      method: "PUT",
      path: "/v1/sandboxes/{id}/tree",
      id: "uploadTree",
      summary: "Lay the content of a tar archive over a directory; everything belongs to owner (default root)",
      params: sandboxParams,
      query: treeQuery,
      rawBody: TAR,
      responses: { 200: { description: "What was written, and what was refused", schema: treeReport } },
      handle: async ({ params, query, request }) => {
        const sandbox = await machine(request, params.id);
        return withTemporary(home, async (directory) => {
          const refused: { path: string; reason: string }[] = [];
          const source = join(directory, "tree");
          await mkdir(source);
          const writer = new TreeWriter(source);
          try {
            for await (const event of readTar(bodyOf(request), { name: "the archive", whiteouts: false, onRefused: ({ path, reason }) => void (refused.length < LIMITS.refusalsListed && refused.push({ path, reason })) })) await writer.push(event);
          } catch (error) {
            await writer.abort();
            throw error;
          }
          const written = await writer.finish();
          for (const { path, reason } of written.refused.slice(0, LIMITS.refusalsListed)) refused.push({ path, reason });
          const report = await sandbox.files.upload(source, query.path, query.owner === undefined ? {} : { owner: query.owner });
          return { entries: report.entries, bytes: report.bytes, refused: [...refused, ...report.refused] };
        });
      },
    }),
  ];
}

/** As the plugin's parser gives it; absent without a body. */
async function* bodyOf(request: FastifyRequest): AsyncGenerator<Uint8Array> {
  if (request.body !== undefined && request.body !== null) yield* request.body as AsyncIterable<Uint8Array>;
}

function modeOf({ mode }: { readonly mode?: string }): { readonly mode?: number } {
  return mode === undefined ? {} : { mode: Number.parseInt(mode, 8) };
}

async function withTemporary<T>(home: string, work: (directory: string) => Promise<T>): Promise<T> {
  const parent = join(home, "transfers");
  await mkdir(parent, { recursive: true, mode: 0o700 });
  const directory = await mkdtemp(join(parent, "t-"));
  try {
    return await work(directory);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

/** What a killed server left of transfers. */
export async function sweepTransfers(home: string): Promise<void> {
  await rm(join(home, "transfers"), { recursive: true, force: true });
}
