/** Sends a reply over HTTP: well, or in one of the ways in which servers fail. */
import { once } from "node:events";
import type { ServerResponse } from "node:http";
import type { Reply } from "./script.ts";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

export function sendJson(response: ServerResponse, status: number, body: string, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(body), ...headers });
  response.end(body);
}

export async function sendWhole(reply: Reply, response: ServerResponse, body: () => unknown): Promise<void> {
  const text = reply.bytes !== undefined ? "x".repeat(reply.bytes) : (reply.raw ?? JSON.stringify(body()));
  if (reply.breakOff === undefined && reply.trickleMs === undefined) return sendJson(response, reply.status ?? 200, text, reply.headers);
  response.writeHead(reply.status ?? 200, { "content-type": "application/json", "content-length": Buffer.byteLength(text), ...reply.headers });
  if (reply.breakOff === "headers") {
    response.flushHeaders();
    setTimeout(() => response.destroy(), 20);
  } else if (reply.breakOff === "body" || reply.breakOff === "stall") {
    response.write(text.slice(0, Math.floor(text.length / 2)));
    if (reply.breakOff === "body") setTimeout(() => response.destroy(), 20);
  } else {
    for (const byte of Buffer.from(text)) {
      if (response.destroyed) return;
      response.write(Buffer.of(byte));
      await sleep(reply.trickleMs ?? 0);
    }
    response.end();
  }
}

/** Server-sent events. Resolves early, with false, when the client has gone or the generation was aborted. */
export async function sendEvents(reply: Reply, response: ServerResponse, events: Iterable<string>): Promise<boolean> {
  response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", ...reply.headers });
  const broken = reply.breakOff !== undefined || reply.streamError !== undefined;
  const all = broken ? [...events] : events;
  let left = broken ? Math.floor([...all].length / 2) : Number.POSITIVE_INFINITY;
  if (reply.breakOff === "headers") left = 0;
  response.flushHeaders();
  for (const event of all) {
    if (response.destroyed) return false;
    if (left-- <= 0) break;
    if (!response.write(`data: ${event}\n\n`)) await drained(response);
    if (reply.trickleMs !== undefined) await sleep(reply.trickleMs);
  }
  if (reply.breakOff === "stall") return true;
  if (reply.streamError !== undefined) response.write(`data: ${JSON.stringify(reply.streamError)}\n\ndata: [DONE]\n\n`);
  if (reply.breakOff === undefined) response.end();
  else setTimeout(() => response.destroy(), 20);
  return true;
}

async function drained(response: ServerResponse): Promise<void> {
  // The one that does not happen must not go on listening.
  const over = new AbortController();
  await Promise.race([once(response, "drain", { signal: over.signal }), once(response, "close", { signal: over.signal })]).finally(() => over.abort("over"));
}
