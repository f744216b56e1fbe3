/**
 * What every module of the server is given, and what a module is: a function that mounts its routes on the app. Who asks is in `request.owner`; failures are thrown as
 * `MwError` and become problem documents; `config: { open: true }` on a route lets it be asked without a key.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import type { FastifyInstance } from "fastify";
import type { Runtime } from "../core/runtime.ts";
import type { CallBoard } from "../gateway/call-board.ts";
import type { Machines } from "../rollout/run.ts";
import type { RunHost } from "../rollout/run-host.ts";
import type { WarmCounts } from "../sandbox/pool/warm-backend.ts";
import type { SandboxManager } from "./sandboxes/manager.ts";
import type { Upgrades } from "./upgrades.ts";

export interface Services {
  /** Absolute path of the data directory. */
  readonly home: string;
  readonly version: string;
  readonly runtime: Runtime;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly machines: Machines;
  /** Of the sandboxes that are kept ready; absent where none are. */
  readonly warm?: Readonly<WarmCounts>;
  /** Machines outlive this process when it dies, and the next server takes them over. */
  readonly keepsMachines?: boolean;
  /** Rollouts on those machines, of any number of runs. Closed after the modules. */
  readonly runs: RunHost;
  /** Model calls of this process's rollouts while they are made; absent where others make them. */
  readonly board?: CallBoard | undefined;
  /** Sandboxes of the server's clients. Those of runs are not among them. */
  readonly sandboxes: SandboxManager;
  /** Aborted when the server begins to end: streams that have no end of their own end then. */
  readonly draining: AbortSignal;
  /** WebSocket routes. */
  readonly upgrades: Upgrades;
  /** For what is told apart by other things than its path, and has its own authentication. */
  readonly addFront: (front: Front) => void;
  /** One line for whoever watches the server. */
  readonly log: (line: string) => void;
}

/** Looks at every request before the routes do, and takes those that are its own. */
export interface Front {
  claims(request: IncomingMessage): boolean;
  handle(request: IncomingMessage, response: ServerResponse): void;
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void;
}

/** Mounted as a plugin of its own: hooks and parsers that it adds stay its own; `app.addHook("onClose", …)` is its end. */
export type ServerModule = (app: FastifyInstance, services: Services) => Promise<void> | void;

/** Who owns what: one of several, told apart by their keys. */
export interface Owner {
  /** `local` is who runs the server: the first key, and requests without one from the same user of the same host. */
  readonly id: string;
}

declare module "fastify" {
  interface FastifyRequest {
    /** Set before any handler of a route that is not open. */
    owner: Owner;
  }
  interface FastifyContextConfig {
    /** Asked without a key. */
    readonly open?: boolean;
  }
}
