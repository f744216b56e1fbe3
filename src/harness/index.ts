/** The harnesses by name. */
import { MwError } from "../core/errors.ts";
import { agent, AGENT_NAMES, type AgentName, type AgentOptions } from "./agent/agent.ts";
import { cliHarness, type CliHarnessOptions } from "./cli/cli-harness.ts";
import { CLI_DESCRIPTORS } from "./cli/descriptors/index.ts";
import { genericCli } from "./cli/generic.ts";
import type { Harness } from "./harness.ts";
import { nop } from "./nop.ts";
import { oracle } from "./oracle.ts";
import { script } from "./script.ts";

export interface HarnessOptions {
  /** Host path of the `script` harness's file. */
  readonly script?: string;
  /** For the white-box harnesses, `bash` among them. */
  readonly agent?: AgentOptions;
  /** For agent CLIs, `generic` among them. */
  readonly cli?: CliHarnessOptions;
  /** What the `generic` harness runs. */
  readonly command?: string;
}

const OWN_NAMES = ["nop", "oracle", "script", ...AGENT_NAMES, "generic"] as const;

export const HARNESS_NAMES: readonly string[] = [...OWN_NAMES, ...CLI_DESCRIPTORS.map(({ name }) => name)];

/** Rejects `usage` for an unknown name, a missing option, or an option that the harness does not have. */
export function makeHarness(name: string, options: HarnessOptions = {}): Harness {
  const descriptor = CLI_DESCRIPTORS.find((candidate) => candidate.name === name);
  if (!isOwnName(name) && descriptor === undefined) {
    const near = closest(name);
    throw new MwError("usage", `There is no harness ${JSON.stringify(name)}.`, {
      fix: `${near === null ? "" : `Did you mean ${near}? `}The harnesses are ${HARNESS_NAMES.join(", ")}.`,
    });
  }
  if (options.script !== undefined && name !== "script") {
    throw new MwError("usage", `The harness ${name} plays no script.`, { fix: "Use --harness script with --script FILE, or leave --script out." });
  }
  if (options.command !== undefined && name !== "generic") {
    throw new MwError("usage", `The harness ${name} runs no command of yours.`, { fix: "Use --harness generic with --harness-command COMMAND, or leave --harness-command out." });
  }
  if (options.cli?.user !== undefined && !isAgentCli(name)) {
    throw new MwError("usage", `The harness ${name} is no agent CLI, whose user could be chosen.`, { fix: "Leave --harness-user out." });
  }
  if (descriptor !== undefined) return cliHarness(descriptor, options.cli);
  switch (name as (typeof OWN_NAMES)[number]) {
    case "nop":
      return nop;
    case "oracle":
      return oracle;
    case "script":
      if (options.script === undefined) throw new MwError("usage", "The harness script needs a file to play.", { fix: "Add --script FILE." });
      return script(options.script);
    case "generic":
      if (options.command === undefined) throw new MwError("usage", "The harness generic needs a command to run.", { fix: "Add --harness-command COMMAND." });
      return cliHarness(genericCli(options.command), options.cli);
    default:
      return agent(name as AgentName, options.agent);
  }
}

/** Whether the harness is a white-box loop of ours, whose setup can be changed. */
export function isAgent(name: string): boolean {
  return (AGENT_NAMES as readonly string[]).includes(name);
}

/** Whether the harness is a program of others, run inside the sandbox. */
export function isAgentCli(name: string): boolean {
  return name === "generic" || CLI_DESCRIPTORS.some((descriptor) => descriptor.name === name);
}

function isOwnName(name: string): name is (typeof OWN_NAMES)[number] {
  return (OWN_NAMES as readonly string[]).includes(name);
}

function closest(name: string): string | null {
  const scored = HARNESS_NAMES.map((candidate) => ({ candidate, distance: editDistance(name.toLowerCase().slice(0, 64), candidate) }));
  scored.sort((a, b) => a.distance - b.distance);
  const best = scored[0];
  return best !== undefined && best.distance <= Math.max(1, Math.floor(best.candidate.length / 2)) ? best.candidate : null;
}

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next.push(Math.min((row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1, (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}
