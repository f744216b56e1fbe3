/** HTTP to the sandbox's own ports: each request has a connection of its own into the sandbox, and passes as it is. WebSockets and other upgrades too. */
import { request as httpRequest, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { messageOf } from "../../../core/errors.ts";
import type { Sandbox } from "../../../sandbox/sandbox.ts";

/** What concerns one connection, and what the routing is made of. */
const OWN_HEADERS = new Set(["connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "e2b-sandbox-id", "e2b-sandbox-port", "e2b-traffic-access-token"]);

export class PortProxy {
  async forward(sandbox: Sandbox, port: number, request: IncomingMessage, response: ServerResponse): Promise<void> {
    let inner: Duplex;
    try {
      inner = await sandbox.connect(port);
    } catch (error) {
      closedPort(response, sandbox.id, port, messageOf(error));
      return;
    }
    const sent = httpRequest({ method: request.method, path: request.url, headers: passed(request.headers), setHost: request.headers.host === undefined, createConnection: () => inner });
    response.once("close", () => inner.destroy());
    request.pipe(sent);
    sent.once("error", (error) => {
      inner.destroy();
      if (response.headersSent) response.destroy();
      else closedPort(response, sandbox.id, port, error.message);
    });
    sent.once("response", (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.statusMessage, passed(answer.headers));
      answer.pipe(response);
      answer.once("error", () => response.destroy());
    });
  }

  async upgrade(sandbox: Sandbox, port: number, request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    socket.on("error", () => socket.destroy());
    try {
      const inner = await sandbox.connect(port);
      inner.on("error", () => socket.destroy());
      const lines = Object.entries(request.headers).filter(([name]) => !name.startsWith("e2b-")).flatMap(([name, value]) => (Array.isArray(value) ? value : [value ?? ""]).map((text) => `${name}: ${text}\r\n`));
      inner.write(`${request.method} ${request.url} HTTP/1.1\r\n${lines.join("")}\r\n`);
      inner.write(head);
      socket.pipe(inner).pipe(socket);
      socket.once("close", () => inner.destroy());
    } catch {
      socket.end("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
  }
}

function passed(headers: IncomingHttpHeaders): Record<string, string | string[]> {
  return Object.fromEntries(Object.entries(headers).flatMap(([name, value]) => (value === undefined || OWN_HEADERS.has(name) ? [] : [[name, value] as const])));
}

function closedPort(response: ServerResponse, sandboxId: string, port: number, message: string): void {
  const text = JSON.stringify({ sandboxId, port, message, code: 502 });
  response.writeHead(502, { "content-type": "application/json", "content-length": Buffer.byteLength(text) }).end(text);
}
