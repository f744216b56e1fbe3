/** A sandbox as the protocol asks for one: from what runs in its template, or from its files with what that starts. */
import { type ErrorCode, MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { SandboxEntry, SandboxRequest } from "../sandboxes/sandbox-entry.ts";
import { egressOf } from "./egress-rules.ts";
import { userOf } from "./envd/guest.ts";
import type { Facade } from "./facade.ts";
import { newToken } from "./sandbox-facts.ts";
import type { CreateBody } from "./schemas.ts";
import { commandsOf, keptCommands, startIn } from "./template-start.ts";
import type { FoundTemplate } from "./templates.ts";

/** Seconds, where a request does not say: of the older routes (as their clients' default), and of the newer. */
export const DEFAULT_TIMEOUT_S = { v1: 15, v2: 300 } as const;

const DEFAULT_MEMORY_MB = 1024;

/** From what runs in its template already, where that can go on here; else with its start command. */
export async function makeSandbox(facade: Facade, owner: string, body: CreateBody, generation: "v1" | "v2", signal: AbortSignal): Promise<SandboxEntry> {
  const { services, templates, hubOf, processRecords } = facade;
  const { sandboxes } = services;
  const template = await templates.find(owner, body.templateID);
  const request = requestOf(facade, template, body, generation);
  const from = async (start: FoundTemplate["start"]): Promise<SandboxEntry> => {
    const { entry } = await sandboxes.create(owner, { ...request, ...start }, { signal });
    if (entry.sandbox !== null) hubOf(entry.sandbox, start.snapshot === undefined ? [] : await processRecords.read(start.snapshot));
    return entry;
  };
  // What was kept goes on in the network in which it was.
  if (template.memory !== null && request.checkpointable === true && (request.network ?? "none") === (facade.network.network ?? "none")) {
    try {
      return await from({ snapshot: template.memory });
    } catch (error) {
      if (!(error instanceof MwError) || !CANNOT_GO_ON.has(error.code)) throw error;
      services.log(`what runs in the template ${body.templateID} is started anew: ${error.message}`);
    }
  }
  const entry = await from(template.start);
  await begin(facade, entry, signal);
  return entry;
}

/** Of a kernel, a CRIU or a network in which what was kept does not go on, or that is not there any more. */
const CANNOT_GO_ON: ReadonlySet<ErrorCode> = new Set(["not_found", "unsupported", "corrupt", "sandbox_failed"]);

function requestOf({ services, network }: Facade, template: FoundTemplate, body: CreateBody, generation: "v1" | "v2"): Omit<SandboxRequest, "image" | "snapshot"> {
  const { capabilities } = services.machines.backend;
  const onTimeout = body.autoPause === true ? "pause" : "kill";
  if (body.autoPauseMemory !== undefined && onTimeout !== "pause") throw new MwError("invalid_input", "autoPauseMemory goes with autoPause");
  if (body.autoPauseMemory === true && !capabilities.memorySnapshot) throw new MwError("unsupported", `the memory of a sandbox cannot be kept here: ${capabilities.missing["memorySnapshot"] ?? "it is not offered"}`);
  const autoResume = body.autoResume?.enabled ?? false;
  if (autoResume && onTimeout !== "pause") throw new MwError("invalid_input", "autoResume goes with autoPause");
  if (autoResume && body.autoPauseMemory === false) throw new MwError("invalid_input", "a sandbox that is paused without its processes is not resumed by whoever asks: autoResume goes with autoPauseMemory");
  const { memory } = capabilities.isolation.enforced;
  return {
    template: body.templateID,
    ...(template.cpuCount === null || !capabilities.isolation.enforced.cpu ? {} : { cpus: template.cpuCount }),
    ...(memory ? { memoryBytes: (template.memoryMB ?? DEFAULT_MEMORY_MB) * (1 << 20) } : {}),
    diskBytes: LIMITS.e2bDiskBytes,
    ...networkOf(body, generation, network, capabilities.networks.includes("public")),
    env: body.envVars ?? {},
    metadata: body.metadata ?? {},
    ttlMs: ttl(body.timeout ?? DEFAULT_TIMEOUT_S[generation]),
    onTimeout,
    // Clients of this protocol expect that a pause keeps processes: it does where that is possible.
    ...(capabilities.memorySnapshot ? { checkpointable: true } : {}),
    pauseMemory: body.autoPauseMemory ?? capabilities.memorySnapshot,
    autoResume,
    extra: { ...tokens(body.network?.allowPublicTraffic === false), ...keptCommands(template.commands) },
  };
}

export function ttl(timeout: number): number {
  return Math.max(LIMITS.leaseMinMs, timeout * 1000);
}

/** What its template starts in it; one in which that fails is ended. */
export async function begin({ services, accounts, hubOf, observations }: Facade, entry: SandboxEntry, signal: AbortSignal): Promise<void> {
  const commands = commandsOf(entry.facts.request.extra);
  if (commands === null) return;
  const { sandboxes, runtime } = services;
  try {
    const sandbox = await sandboxes.running(entry);
    const { workdir } = await userOf(accounts, sandbox, null);
    await startIn(sandbox, commands, { hub: hubOf(sandbox), workdir, runtime, signal, log: (line) => observations.log(entry, "info", line) });
  } catch (error) {
    await sandboxes.kill(entry);
    throw error;
  }
}

/** `traffic`: for ports that are not public. */
export function tokens(traffic: boolean): NonNullable<SandboxRequest["extra"]> {
  return { access: newToken(), ...(traffic ? { traffic: newToken() } : {}) };
}

/** Older clients ask for the internet by themselves, so that their wish is the server's default; newer ones say it only when their user does. */
function networkOf(body: CreateBody, generation: "v1" | "v2", fallback: Facade["network"], possible: boolean): Pick<SandboxRequest, "network" | "allow"> {
  const asked = egressOf(body);
  if (asked !== null && asked.network !== "public") return asked;
  if (asked === null || generation === "v1") return fallback;
  if (!possible) throw new MwError("unsupported", "sandboxes of this host have no internet access", { fix: "mw doctor says what the host lacks for it" });
  return asked;
}
