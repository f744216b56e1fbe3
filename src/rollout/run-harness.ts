/** A run's harnesses by their names. */
import { isAgent, isAgentCli, makeHarness } from "../harness/index.ts";
import type { Harness } from "../harness/harness.ts";
import type { HarnessSettings } from "./run-services.ts";

/** A run may draw among several harnesses: each gets of the settings what is its own. */
export function makeRunHarness(name: string, { script, harnessCommand, harnessUser, agent }: HarnessSettings): Harness {
  return makeHarness(name, {
    ...(name === "script" && script !== null ? { script } : {}),
    ...(name === "generic" && harnessCommand !== null ? { command: harnessCommand } : {}),
    ...(isAgentCli(name) && harnessUser !== null ? { cli: { user: harnessUser } } : {}),
    ...(isAgent(name) ? { agent } : {}),
  });
}
