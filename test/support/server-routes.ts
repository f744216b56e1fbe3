/** Every route that the server has, as its modules mount them: nobody has to remember to list a new one. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fastify from "fastify";
import { systemRuntime } from "../../src/core/runtime.ts";
import { MODULES } from "../../src/server/modules.ts";
import type { Owner, Services } from "../../src/server/services.ts";

export interface ServerRoute {
  readonly module: string;
  readonly method: string;
  /** With `:name` for parameters. */
  readonly url: string;
  /** Asked without a key. */
  readonly open: boolean;
}

export interface ServerRoutes {
  readonly routes: readonly ServerRoute[];
  /** Of WebSockets. */
  readonly upgrades: readonly RegExp[];
}

export async function serverRoutes(): Promise<ServerRoutes> {
  const home = mkdtempSync(join(tmpdir(), "mw-routes-"));
  const routes: ServerRoute[] = [];
  const upgrades: RegExp[] = [];
  try {
    for (const [module, mount] of Object.entries(MODULES)) {
      const app = fastify({ logger: false });
      app.decorateRequest("owner", null as unknown as Owner);
      app.addHook("onRoute", ({ method, url, config }) => {
        for (const each of [method].flat()) if (each !== "HEAD") routes.push({ module, method: each, url, open: config?.open === true });
      });
      await app.register(async (scope) => mount(scope, nothing(home, upgrades)));
      await app.ready();
      await app.close();
    }
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
  return { routes, upgrades };
}

/** Services that do nothing: routes are mounted, and never asked. */
function nothing(home: string, upgrades: RegExp[]): Services {
  const empty = { [Symbol.iterator]: [][Symbol.iterator].bind([]) };
  const stub: unknown = new Proxy(() => undefined, {
    get: (_, name) => (name === "then" ? undefined : name === Symbol.iterator ? empty[Symbol.iterator] : stub),
    // Some wait for what they asked for, some go through it.
    apply: () => Object.assign(Promise.resolve(stub), empty),
  });
  const parts = { home, version: "0", runtime: systemRuntime, env: {}, machines: stub, runs: stub, sandboxes: stub, draining: new AbortController().signal, upgrades: { add: (pattern: RegExp) => upgrades.push(pattern) }, addFront: () => undefined, log: () => undefined };
  // Mounting looks at nothing else.
  return parts as unknown as Services;
}
