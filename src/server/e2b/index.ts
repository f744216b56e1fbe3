/**
 * A server of the E2B protocol over our own sandboxes: unmodified clients work with `E2B_API_URL` and `E2B_SANDBOX_URL` pointing here. docs/e2b.md says what is offered, and what is
 * refused.
 */
import type { FastifyInstance } from "fastify";
import { messageOf, MwError } from "../../core/errors.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { Services } from "../services.ts";
import { mountControl } from "./control-routes.ts";
import type { Facade } from "./facade.ts";
import { Accounts } from "./envd/accounts.ts";
import { DataPlane } from "./envd/front.ts";
import { ProcessHub } from "./envd/process-hub.ts";
import { ProcessRecords } from "./envd/process-records.ts";
import { PortProxy } from "./envd/port-proxy.ts";
import { defaultNetwork } from "./egress-rules.ts";
import { answerE2bFailures } from "./failure.ts";
import { Observations } from "./observations.ts";
import { SandboxSecrets } from "./sandbox-facts.ts";
import { TemplateBuilds } from "./template-builds.ts";
import { mountTemplates, mountUploads } from "./template-routes.ts";
import { Templates } from "./templates.ts";

export async function e2bModule(app: FastifyInstance, services: Services): Promise<void> {
  const processes = await hubs(services);
  const templates = new Templates(services, processes.processRecords);
  const network = defaultNetwork(services.env);
  const builds = new TemplateBuilds(services, templates, processes.processRecords, network);
  await builds.sweep();
  const facade: Facade = {
    services,
    templates,
    secrets: new SandboxSecrets(),
    observations: new Observations(services.runtime),
    accounts: new Accounts(services.runtime),
    ...processes,
    domain: () => services.env["MW_E2B_DOMAIN"] ?? hostOf(app),
    network,
  };
  answerE2bFailures(app, services.log);
  mountControl(app, facade);
  mountTemplates(app, facade, builds);
  refuseTheRest(app);
  await app.register(async (scope) => mountUploads(scope, builds));
  services.addFront(new DataPlane(facade, new PortProxy()));
}

/** One for each sandbox, whoever starts commands in it. Those of a server that died, and of before a pause, go on being read from now on. */
async function hubs({ home, sandboxes, machines, keepsMachines, log }: Services): Promise<Pick<Facade, "hubOf" | "processRecords">> {
  const processRecords = new ProcessRecords(home);
  const known = new WeakMap<Sandbox, ProcessHub>();
  const hubOf: Facade["hubOf"] = (sandbox, inherited) => {
    const hub = known.get(sandbox) ?? new ProcessHub(sandbox, { records: processRecords, outlived: keepsMachines === true, inherited });
    known.set(sandbox, hub);
    return hub;
  };
  sandboxes.watcher = {
    // What is not written down is not listed afterwards; the pause is worth more.
    pausing: async (sandbox) => known.get(sandbox)?.writeDown().catch((error: unknown) => log(`commands of ${sandbox.id}: ${messageOf(error)}`)),
    resumed: (sandbox) => void hubOf(sandbox),
    gone: (id, sandbox) => (sandbox === null ? undefined : known.get(sandbox))?.forget() ?? processRecords.delete(id),
  };
  const all = [...sandboxes.all()];
  const kept = new Set<string>([...all.map(({ id }) => id), ...(await machines.backend.snapshots.list().catch(() => [])).map(({ id }) => id)]);
  await processRecords.sweep((of) => kept.has(of));
  for (const { sandbox } of all) if (sandbox?.state === "running") hubOf(sandbox);
  return { hubOf, processRecords };
}

/** What the protocol has beside this is said not to be here, in the protocol's own words. */
function refuseTheRest(app: FastifyInstance): void {
  for (const what of ["volumes", "secrets", "api-keys", "access-tokens", "nodes", "admin"]) {
    for (const url of [`/${what}`, `/${what}/*`]) {
      app.all(url, () => {
        throw new MwError("unsupported", `${what} are not offered here`, what.endsWith("keys") ? { fix: "keys are made with mw key add" } : {});
      });
    }
  }
}

/** Names below `localhost` are loopback everywhere (RFC 6761). */
function hostOf(app: FastifyInstance): string {
  const address = app.server.address();
  return typeof address === "object" && address !== null ? `localhost:${address.port}` : "localhost";
}
