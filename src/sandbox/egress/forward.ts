/**
 * Plain HTTP, one request at a time: read by a strict parser, decided on by the host of its own line, and written anew. Of a kept connection each request is decided on by
 * itself. Nothing that frames the request goes on as it came, and each has a connection of its own to its server: nothing that a client sends can become a second request there.
 */
import { request as httpRequest, type IncomingMessage, type ServerResponse } from "node:http";
import { request as httpsRequest } from "node:https";
import type { Socket } from "node:net";
import { pipeline } from "node:stream/promises";
import { connect as tlsConnect } from "node:tls";
import { LIMITS } from "../../core/limits.ts";
import { answerBody, statusLine, type Answer } from "./answers.ts";
import { authority, parseAuthority, type Destination } from "./destination.ts";
import type { Flow } from "./machine-egress.ts";

export interface Target {
  readonly destination: Destination;
  readonly secure: boolean;
  /** As the client wrote it. */
  readonly path: string;
}

/** From `http://HOST/PATH`. With `https` the proxy is asked to speak TLS itself, as some small clients do; null for any other form. */
export function parseTarget(url: string): Target | null {
  const match = /^(http|https):\/\/([^/?#]*)([/?][^#]*)?(?:#.*)?$/i.exec(url);
  if (match === null) return null;
  const [, scheme = "", host = "", rest = "/"] = match;
  const secure = scheme.toLowerCase() === "https";
  const destination = parseAuthority(host, secure ? 443 : 80);
  return destination === null ? null : { destination, secure, path: rest.startsWith("/") ? rest : `/${rest}` };
}

/** Why a request cannot be passed on whatever its destination; null when it can. */
export function oddRequest(request: IncomingMessage): string | null {
  const { headers, method } = request;
  const encoding = headers["transfer-encoding"];
  if (encoding !== undefined && encoding.trim().toLowerCase() !== "chunked") return `the transfer encoding ${JSON.stringify(encoding)} is not passed on`;
  if (encoding !== undefined && headers["content-length"] !== undefined) return "a request has a length or chunks, not both";
  return method === "TRACE" ? "TRACE is not passed on" : null;
}

export async function forward(request: IncomingMessage, response: ServerResponse, { destination, secure, path }: Target, flow: Flow, socket: Socket): Promise<void> {
  const { host, address } = destination;
  const upstream = (secure ? httpsRequest : httpRequest)({
    method: request.method ?? "GET",
    path,
    headers: requestHeaders(request, authority(destination, secure ? 443 : 80)),
    // Without an agent, so that nothing but this makes a connection.
    createConnection: () => (secure ? tlsConnect({ socket, ...(address === null ? { servername: host } : {}), host }) : socket),
    maxHeaderSize: LIMITS.egressHeadBytes,
    setHost: false,
  });
  flow.onCut(() => {
    upstream.destroy();
    request.socket.destroy();
  });
  // Its client has gone, and nobody waits for the answer.
  response.once("close", () => upstream.destroy());
  upstream.setTimeout(LIMITS.egressIdleMs, () => upstream.destroy());
  const answered = new Promise<IncomingMessage>((resolve, reject) => {
    upstream.once("response", resolve).once("error", reject).once("close", () => reject(new Error("the connection ended before an answer")));
  });
  request.on("data", (chunk: Buffer) => flow.sent(chunk.length));
  // What breaks while the request is sent shows in the answer, which may have come before.
  pipeline(request, upstream).catch(() => undefined);
  let answer: IncomingMessage;
  try {
    answer = await answered;
  } catch (error) {
    refuse(response, { status: 502, reason: `${authority(destination)} gave no answer: ${error instanceof Error ? error.message : "it broke off"}` });
    return;
  }
  try {
    response.writeHead(answer.statusCode ?? 502, answer.statusMessage, responseHeaders(answer));
    answer.on("data", (chunk: Buffer) => flow.received(chunk.length));
    await pipeline(answer, response);
  } catch {
    // An answer that broke off must not look whole.
    request.socket.destroy();
  } finally {
    upstream.destroy();
  }
}

export function refuse(response: ServerResponse, answer: Answer): void {
  if (response.headersSent || response.destroyed) {
    response.destroy();
    return;
  }
  const body = answerBody(answer);
  response.writeHead(answer.status, statusLine(answer), { "content-type": "text/plain", "content-length": Buffer.byteLength(body), "x-manyworlds-egress": "refused" }).end(body);
}

/** What a connection is about concerns the two at its ends. */
const OF_THE_CONNECTION = new Set(["connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "expect", "http2-settings"]);

function requestHeaders(request: IncomingMessage, host: string): string[] {
  const chunked = request.headers["transfer-encoding"] !== undefined;
  // Whatever host the client has written: it is the one that was decided on.
  return ["Host", host, ...passedOn(request, new Set(["host"])), "Connection", "close", ...(chunked ? ["Transfer-Encoding", "chunked"] : [])];
}

function responseHeaders(answer: IncomingMessage): string[] {
  return passedOn(answer, new Set());
}

function passedOn({ rawHeaders, headers }: IncomingMessage, without: ReadonlySet<string>): string[] {
  const named = new Set((headers.connection ?? "").split(",").map((name) => name.trim().toLowerCase()));
  const kept: string[] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = (rawHeaders[at] ?? "").toLowerCase();
    if (OF_THE_CONNECTION.has(name) || without.has(name) || (named.has(name) && name !== "content-length")) continue;
    kept.push(rawHeaders[at] ?? "", rawHeaders[at + 1] ?? "");
  }
  return kept;
}
