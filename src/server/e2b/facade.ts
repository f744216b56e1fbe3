/** What the routes of the protocol share. */
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { SandboxRequest } from "../sandboxes/sandbox-entry.ts";
import type { Services } from "../services.ts";
import type { Accounts } from "./envd/accounts.ts";
import type { ProcessHub } from "./envd/process-hub.ts";
import type { ProcessRecord, ProcessRecords } from "./envd/process-records.ts";
import type { Observations } from "./observations.ts";
import type { SandboxSecrets } from "./sandbox-facts.ts";
import type { Templates } from "./templates.ts";

export interface Facade {
  readonly services: Services;
  readonly templates: Templates;
  readonly secrets: SandboxSecrets;
  readonly observations: Observations;
  readonly accounts: Accounts;
  /** `inherited`: of one that comes from a snapshot or a parent with its processes, when it is first asked for. */
  readonly hubOf: (sandbox: Sandbox, inherited?: readonly ProcessRecord[]) => ProcessHub;
  readonly processRecords: ProcessRecords;
  /** Below which sandboxes have host names. */
  readonly domain: () => string;
  /** Network of sandboxes whose maker did not ask for one. */
  readonly network: Pick<SandboxRequest, "network" | "allow">;
}
