/** A port of a sandbox's loopback on the host's side: each connection there is one inside. Reached only where its address is; nobody is asked for a key. */
import { createServer, isIP, type AddressInfo, type Socket } from "node:net";
import { pipeline } from "node:stream/promises";
import { MwError, messageOf } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Sandbox } from "./sandbox.ts";

export interface PublishRule {
  /** Address of the host to listen at. */
  readonly address: string;
  /** 0: one that is free. */
  readonly hostPort: number;
  /** Of the sandbox. */
  readonly port: number;
}

export interface PublishedPort extends PublishRule {
  /** Ends its connections too. */
  close(): Promise<void>;
}

/** `PORT` (any free port of loopback), `HOSTPORT:PORT` or `ADDRESS:HOSTPORT:PORT`. Throws `usage`. */
export function parsePublish(text: string): PublishRule {
  const match = /^(?:(?:(\[[^\]]+\]|[^:\s]+):)?(\d{1,5}):)?(\d{1,5})$/.exec(text);
  const address = (match?.[1] ?? "127.0.0.1").replace(/^\[(.*)\]$/, "$1");
  const [hostPort, port] = [Number(match?.[2] ?? 0), Number(match?.[3] ?? 0)];
  if (match !== null && isIP(address) !== 0 && hostPort <= 65_535 && port >= 1 && port <= 65_535) return { address, hostPort, port };
  throw new MwError("usage", `the port to publish ${JSON.stringify(text)} is none`, { fix: "write PORT, HOSTPORT:PORT or ADDRESS:HOSTPORT:PORT, such as 8000, 8080:80 or [::1]:8080:80" });
}

/** Listens until it is closed or the sandbox ends. Rejects `conflict` when the host's port is taken. */
export async function publishPort(sandbox: Pick<Sandbox, "connect" | "ended">, rule: PublishRule): Promise<PublishedPort> {
  const sockets = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
    void carry(sandbox, rule.port, socket);
  });
  server.maxConnections = LIMITS.publishedConnections;
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error: NodeJS.ErrnoException) => reject(cannotListen(rule, error)));
    server.listen(rule.hostPort, rule.address, resolve);
  });
  let closing: Promise<void> | null = null;
  const close = (): Promise<void> => {
    closing ??= new Promise((resolve) => {
      for (const socket of sockets) socket.destroy();
      server.close(() => resolve());
    });
    return closing;
  };
  void sandbox.ended.then(close);
  // What listens on TCP has such an address.
  return { ...rule, hostPort: (server.address() as AddressInfo).port, close };
}

/** Nothing listens inside, or it is paused: the connection ends, as it would there. */
async function carry(sandbox: Pick<Sandbox, "connect">, port: number, socket: Socket): Promise<void> {
  socket.on("error", () => undefined);
  try {
    const inside = await sandbox.connect(port);
    if (socket.destroyed) inside.destroy();
    else await Promise.all([pipeline(socket, inside), pipeline(inside, socket)]);
  } catch {
    socket.resetAndDestroy();
  }
}

function cannotListen({ address, hostPort }: PublishRule, error: NodeJS.ErrnoException): MwError {
  const what = `cannot listen on ${address} port ${hostPort}: ${messageOf(error)}`;
  if (error.code === "EADDRINUSE") return new MwError("conflict", what, { cause: error, fix: "give another port of the host, or 0 for one that is free" });
  return new MwError("environment", what, { cause: error, fix: error.code === "EACCES" ? "ports below 1024 are root's: give a higher one" : "give an address of this host" });
}
