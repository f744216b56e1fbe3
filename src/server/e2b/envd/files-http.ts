/** File contents over plain HTTP: `GET /files` and `POST /files`, as the guest agent offers them. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { posix } from "node:path";
import { Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import { Busboy, type BusboyFileStream, type BusboyHeaders } from "@fastify/busboy";
import { messageOf, MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import { send } from "../../request-signal.ts";
import { resolvePath, type Accounts } from "./accounts.ts";
import { ConnectFailure } from "./connect-protocol.ts";
import { followLink, metadataAttributes } from "./entry-info.ts";
import { basicUser, userOf, type Guest, type GuestUser } from "./guest.ts";

interface Written {
  readonly path: string;
  readonly name: string;
  readonly type: "file";
  readonly metadata?: Readonly<Record<string, string>>;
}

export async function filesHttp(accounts: Accounts, at: Guest, request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
  try {
    const user = await userOf(accounts, at.sandbox, url.searchParams.get("username") ?? basicUser(request));
    if (request.method === "GET" || request.method === "HEAD") await download(at, user, request, response, url);
    else if (request.method === "POST") answer(response, 200, await upload(at, user, request, url));
    else answer(response, 405, { code: 405, message: "files are read with GET and written with POST" });
  } catch (error) {
    request.resume();
    fail(response, error);
  }
}

async function download({ sandbox }: Guest, user: GuestUser, request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
  const path = resolvePath(url.searchParams.get("path") ?? "", user.workdir);
  const there = await sandbox.files.stat(path);
  const led = there?.type === "symlink" ? await followLink(sandbox, path, there) : there === null ? null : { path, stat: there };
  if (led === null) throw new MwError("not_found", `there is no file ${path}`);
  if (led.stat.type !== "file") throw new ConnectFailure("invalid_argument", `${path} is ${led.stat.type === "directory" ? "a directory" : "no regular file"}`);
  // Files that the kernel makes up say that they are empty: these are read before it is said how long they are.
  const small = led.stat.size === 0 ? await sandbox.files.read(path, { maxBytes: LIMITS.envdMessageBytes }) : null;
  const size = small?.length ?? led.stat.size;
  const pieces = (small === null ? sandbox.files.readStream(path) : once(small))[Symbol.asyncIterator]();
  try {
    let next = await pieces.next();
    response.writeHead(200, { "content-type": "application/octet-stream", "content-length": size, "content-disposition": `inline; filename*=UTF-8''${encodeURIComponent(posix.basename(path))}`, ...CORS });
    if (request.method === "HEAD") {
      response.end();
      return;
    }
    // A file that grows meanwhile is sent as far as was said; one that shrinks breaks the answer off.
    let left = size;
    for (; next.done !== true && left > 0; next = await pieces.next()) {
      const part = next.value.subarray(0, left);
      left -= part.length;
      if (!(await send(response, part))) return;
    }
    if (left > 0) response.destroy();
    else response.end();
  } finally {
    await pieces.return?.();
  }
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array, void, undefined> {
  yield bytes;
}

async function upload(at: Guest, user: GuestUser, request: IncomingMessage, url: URL): Promise<readonly Written[]> {
  const metadata = metadataOf(request);
  const named = url.searchParams.get("path");
  const encoding = request.headers["content-encoding"]?.toLowerCase() ?? "identity";
  if (encoding !== "identity" && encoding !== "gzip") throw new ConnectFailure("invalid_argument", `the content encoding ${JSON.stringify(encoding)} is not taken`);
  const type = (request.headers["content-type"] ?? "").split(";")[0]?.trim().toLowerCase() ?? "";
  const body = encoding === "gzip" ? unzipped(request) : request;
  if (type === "application/octet-stream") {
    if (named === null || named === "") throw new ConnectFailure("invalid_argument", "path says where the bytes go");
    return [await write(at, user, named, body, metadata)];
  }
  if (type !== "multipart/form-data") throw new ConnectFailure("invalid_argument", "files come as multipart/form-data or application/octet-stream");
  return parts(at, user, request, body, named, metadata);
}

/** Each part named `file` is one, in the order in which they come. */
function parts(at: Guest, user: GuestUser, request: IncomingMessage, body: Readable, named: string | null, metadata: Metadata): Promise<readonly Written[]> {
  return new Promise((resolve, reject) => {
    const writing: Promise<Written>[] = [];
    let form: Busboy;
    const fail = (error: unknown): void => {
      request.unpipe();
      reject(error instanceof Error ? error : new Error(String(error)));
    };
    try {
      // Its type wants what was checked before: there is a content type.
      // A part of this name is a file, also where its sender gave it no name.
      form = new Busboy({ isPartAFile: (field, contentType, filename) => field === "file" || contentType === "application/octet-stream" || filename !== undefined, headers: request.headers as BusboyHeaders, preservePath: true, limits: { files: LIMITS.filesPerUpload, fields: 16, fieldSize: 4096, parts: LIMITS.filesPerUpload + 16 } });
    } catch (error) {
      reject(new ConnectFailure("invalid_argument", messageOf(error)));
      return;
    }
    form.on("file", (field: string, stream: BusboyFileStream, filename: string | undefined) => {
      const target = named === null || named === "" ? (filename ?? "") : named;
      if (field !== "file" || target === "") {
        stream.resume();
        if (field === "file") fail(new ConnectFailure("invalid_argument", "a part has neither a file name nor a path"));
        return;
      }
      if (named !== null && named !== "" && writing.length > 0) {
        stream.resume();
        fail(new ConnectFailure("invalid_argument", "one path cannot take several files"));
        return;
      }
      const written = write(at, user, target, stream, metadata);
      writing.push(written);
      written.catch((error: unknown) => {
        stream.resume();
        fail(error);
      });
    });
    form.on("filesLimit", () => fail(new ConnectFailure("resource_exhausted", `an upload has at most ${LIMITS.filesPerUpload} files`)));
    form.on("error", (error) => fail(new ConnectFailure("invalid_argument", messageOf(error))));
    form.on("finish", () => {
      if (writing.length === 0) fail(new ConnectFailure("invalid_argument", "the form holds no file"));
      else Promise.all(writing).then(resolve, reject);
    });
    body.once("error", fail);
    request.once("close", () => {
      if (!request.complete) fail(new ConnectFailure("canceled", "the upload broke off"));
    });
    body.pipe(form);
  });
}

type Metadata = Readonly<Record<string, string>>;

/** `X-Metadata-NAME: value`, which the file is to carry. */
function metadataOf({ headersDistinct }: IncomingMessage): Metadata {
  const metadata: Record<string, string> = {};
  for (const [header, [value = ""] = []] of Object.entries(headersDistinct)) {
    const name = /^x-metadata-(.*)$/.exec(header)?.[1];
    if (name === undefined) continue;
    if (name === "" || !/^[\x20-\x7e]*$/.test(value)) throw new ConnectFailure("invalid_argument", "metadata have a name, and printable ASCII characters as values");
    metadata[name] = value;
  }
  return metadata;
}

async function write({ sandbox }: Guest, user: GuestUser, path: string, data: AsyncIterable<Uint8Array>, metadata: Metadata): Promise<Written> {
  const target = resolvePath(path, user.workdir);
  const owner = `${user.uid}:${user.gid}`;
  // Directories on the way are made for root otherwise.
  if (user.uid !== 0) await sandbox.files.mkdir(posix.dirname(target), { owner });
  await sandbox.files.write(target, data, { owner, attributes: metadataAttributes(metadata) });
  return { path: target, name: posix.basename(target), type: "file", ...(Object.keys(metadata).length === 0 ? {} : { metadata }) };
}

function unzipped(request: IncomingMessage): Readable {
  const unzip = createGunzip();
  request.once("error", (error) => unzip.destroy(error));
  request.once("close", () => {
    if (!request.complete) unzip.destroy(new ConnectFailure("canceled", "the upload broke off"));
  });
  unzip.once("error", () => request.resume());
  return request.pipe(unzip);
}

const CORS = { "access-control-allow-origin": "*" } as const;
const STATUS: Readonly<Record<string, number>> = { not_found: 404, invalid_argument: 400, invalid_input: 400, usage: 400, conflict: 400, unauthenticated: 401, resource_exhausted: 429, limit_exceeded: 413, sandbox_gone: 502, sandbox_paused: 502, canceled: 499 };

function fail(response: ServerResponse, error: unknown): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const full = error instanceof MwError && (error.facts["errno"] === "ENOSPC" || error.facts["errno"] === "EDQUOT");
  const code = error instanceof MwError || error instanceof ConnectFailure ? error.code : zlibCode(error);
  const status = full ? 507 : (STATUS[code] ?? 500);
  answer(response, status, { code: status, message: messageOf(error) });
}

/** What does not unpack is the sender's fault. */
function zlibCode(error: unknown): string {
  return error instanceof Error && "code" in error && String(error.code).startsWith("Z_") ? "invalid_argument" : "internal";
}

function answer(response: ServerResponse, status: number, document: unknown): void {
  if (response.destroyed) return;
  const text = JSON.stringify(document);
  response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(text), ...CORS }).end(text);
}
