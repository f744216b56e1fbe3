/** WebSocket routes: the web framework leaves upgrades alone, so that they are told apart here, behind the same authentication. */
import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { WebSocketServer, type WebSocket } from "ws";
import { LIMITS } from "../core/limits.ts";
import { problemOf } from "./problem.ts";
import { MwError } from "../core/errors.ts";
import type { Owner } from "./services.ts";

export interface UpgradeRequest {
  readonly owner: Owner;
  readonly url: URL;
  /** Groups of the route's pattern. */
  readonly params: Readonly<Record<string, string>>;
  readonly request: IncomingMessage;
}

/** Checks first, so that a failure is an answer in HTTP; what it returns is given the open socket. */
export type UpgradeHandler = (request: UpgradeRequest) => Promise<(socket: WebSocket) => void>;

export class Upgrades {
  readonly #routes: { readonly pattern: RegExp; readonly handler: UpgradeHandler }[] = [];
  readonly #server = new WebSocketServer({ noServer: true, maxPayload: LIMITS.frameBytes, handleProtocols: (offered) => [...offered].find((name) => name === PROTOCOL) ?? false });
  readonly #authenticate: (request: IncomingMessage) => Owner;

  constructor(authenticate: (request: IncomingMessage) => Owner) {
    this.#authenticate = authenticate;
  }

  /** `pattern` is matched against the whole path; its named groups become `params`. */
  add(pattern: RegExp, handler: UpgradeHandler): void {
    this.#routes.push({ pattern, handler });
  }

  /** For the server's `upgrade` event. */
  async handle(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    socket.on("error", () => socket.destroy());
    try {
      const owner = this.#authenticate(request);
      const url = new URL(request.url ?? "/", "http://server");
      for (const { pattern, handler } of this.#routes) {
        const match = pattern.exec(url.pathname);
        if (match?.[0] !== url.pathname) continue;
        const accept = await handler({ owner, url, params: match.groups ?? {}, request });
        this.#server.handleUpgrade(request, socket, head, accept);
        return;
      }
      throw new MwError("not_found", "there is no WebSocket here");
    } catch (error) {
      refuseUpgrade(socket, error);
    }
  }

  /** Ends all sockets. */
  close(): void {
    for (const client of this.#server.clients) client.close(1001, "the server ends");
  }
}

/** A browser cannot set headers of a WebSocket: it offers this protocol, and beside it `mw.key.` with its key. */
const PROTOCOL = "mw.v1";

export function refuseUpgrade(socket: Duplex, error: unknown): void {
  const { status, headers, body } = problemOf(error);
  const text = JSON.stringify(body);
  const head = Object.entries({ ...headers, "content-length": String(Buffer.byteLength(text)), connection: "close" }).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.end(`HTTP/1.1 ${status} Refused\r\n${head.join("")}\r\n${text}`);
}
