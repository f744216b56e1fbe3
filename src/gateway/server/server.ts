/**
 * The listeners: a unix socket that machines reach through their service port, each connection saying which machine it comes from, and, where wanted, loopback TCP.
 *
 * Both speak HTTP/1.1 with keep-alive. What a client may hold is bounded: headers, bodies, their time, connections, and how long it may leave an answer unread.
 */
import { createServer, type IncomingMessage, type Server as HttpServer } from "node:http";
import { chmod, unlink } from "node:fs/promises";
import { createServer as createSocketServer, type AddressInfo, type Server, type Socket } from "node:net";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { Handler, type HandlerOptions } from "./handler.ts";
import { readPreface } from "../../sandbox/service-preface.ts";

/** Connections that wait to be accepted; the kernel's own limit is the same on most hosts. */
const BACKLOG = 4096;

export interface ServerOptions {
  readonly sessionOf: HandlerOptions["sessionOf"];
  readonly socketPath: string;
  /** Loopback TCP: port, 0 for any; null for none. */
  readonly port: number | null;
  /** Time for a request's headers, and for all of it; defaults are the limits. */
  readonly headersMs?: number | undefined;
  readonly bodyMs?: number | undefined;
}

export interface GatewayServer {
  readonly url: string | null;
  close(): Promise<void>;
}

export async function startServer(options: ServerOptions): Promise<GatewayServer> {
  const machines = new WeakMap<Socket, string>();
  /** The last answer on a connection, until the client shows that it lives on. */
  const unconfirmed = new WeakMap<Socket, () => void>();
  const handler = new Handler({ sessionOf: options.sessionOf, onDelivered: (request, takeBack) => unconfirmed.set(request.socket, takeBack) });
  const { headersMs = LIMITS.gatewayHeadersMs, bodyMs = LIMITS.gatewayBodyMs } = options;
  const http = createHttpServer(headersMs, bodyMs);
  const sockets = new Set<Socket>();
  http.on("request", (request, response) => {
    unconfirmed.delete(request.socket);
    const refusal = machines.has(request.socket) ? null : refusalOfBrowser(request);
    if (refusal !== null) response.writeHead(403, { "content-type": "text/plain" }).end(refusal);
    else void handler.handle(request, response, machines.get(request.socket) ?? null);
  });
  // Clients that would rather have a WebSocket fall back to HTTP at once.
  http.on("upgrade", (_request, socket) => socket.end("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"));
  http.on("connect", (_request, socket) => socket.end("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"));
  http.on("clientError", (error: NodeJS.ErrnoException, socket: Socket) => {
    // A reset behind an answer: it may not have been read.
    unconfirmed.get(socket)?.();
    const status = error.code === "ERR_HTTP_REQUEST_TIMEOUT" ? "408 Request Timeout" : error.code === "HPE_HEADER_OVERFLOW" ? "431 Request Header Fields Too Large" : "400 Bad Request";
    if (socket.writable && error.code !== "ECONNRESET") socket.end(`HTTP/1.1 ${status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n`);
    else socket.destroy();
  });
  const track = (socket: Socket): boolean => {
    if (sockets.size >= LIMITS.gatewayConnections) {
      socket.destroy();
      return false;
    }
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
    return true;
  };
  http.on("connection", (socket: Socket) => {
    if (!sockets.has(socket)) track(socket);
  });
  const unix = createSocketServer({ allowHalfOpen: true, pauseOnConnect: false }, (socket) => {
    if (!track(socket)) return;
    void readPreface(socket, headersMs).then((sandbox) => {
      if (sandbox === null) return;
      machines.set(socket, sandbox);
      http.emit("connection", socket);
    });
  });
  await unlink(options.socketPath).catch(() => undefined);
  await listen(unix, { path: options.socketPath }, options.socketPath);
  await chmod(options.socketPath, 0o600);
  let url: string | null = null;
  if (options.port !== null) {
    await listen(http, { host: "127.0.0.1", port: options.port }, `port ${options.port}`).catch(async (error: unknown) => {
      unix.close();
      throw error;
    });
    url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
    // Node watches the times of requests from when a server listens; this one is handed its connections.
  } else http.emit("listening");
  return {
    url,
    close: async () => {
      const closed = [unix, http].map((server) => new Promise((resolve) => server.close(resolve)));
      for (const socket of sockets) socket.destroy();
      await Promise.all(closed);
      await unlink(options.socketPath).catch(() => undefined);
    },
  };
}

function createHttpServer(headersMs: number, bodyMs: number): HttpServer {
  return createServer({
    maxHeaderSize: LIMITS.gatewayHeaderBytes,
    headersTimeout: headersMs,
    requestTimeout: bodyMs,
    connectionsCheckingInterval: Math.min(30_000, headersMs),
    keepAliveTimeout: LIMITS.gatewayIdleMs,
    noDelay: true,
  });
}

function listen(server: Server, where: { readonly path: string } | { readonly host: string; readonly port: number }, what: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", (error: NodeJS.ErrnoException) => {
      reject(
        new MwError("environment", `the gateway cannot listen on ${what}: ${error.message}`, { fix: error.code === "EADDRINUSE" ? "name another port, or stop what listens there" : "give it a place where this user may listen", cause: error }),
      );
    });
    // Machines that start together connect together; what does not fit is refused at once.
    server.listen({ ...where, backlog: BACKLOG }, resolve);
  });
}

/** A web page must not reach the gateway through its visitor's browser. */
function refusalOfBrowser({ headers }: IncomingMessage): string | null {
  const hosts = [headers.host, originHost(headers.origin)];
  return hosts.every((host) => host === undefined || /^(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/i.test(host)) ? null : "This gateway answers programs on its own host only.\n";
}

function originHost(origin: string | undefined): string | undefined {
  return origin === undefined ? undefined : (/^https?:\/\/(.*)$/.exec(origin)?.[1] ?? origin);
}
