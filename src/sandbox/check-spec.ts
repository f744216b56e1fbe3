/** Refuses, before anything starts, what makes no sense (`invalid_input`) and what the backend cannot do (`unsupported`). Shared by all backends. */
import { isAbsolute } from "node:path";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { parseHostRules } from "./egress/host-rules.ts";
import { EGRESS_PORT } from "./exec-environment.ts";
import type { Capabilities, ExecOptions, SandboxSpec } from "./sandbox.ts";

const MiB = 1024 * 1024;

export function checkSpec(spec: SandboxSpec, capabilities: Capabilities): void {
  checkRoot(spec);
  checkNumber("cpus", spec.cpus, 0.01, 4096, false);
  checkNumber("memoryBytes", spec.memoryBytes, MiB, Number.MAX_SAFE_INTEGER, true);
  checkNumber("diskBytes", spec.diskBytes, 64 * 1024, Number.MAX_SAFE_INTEGER, true);
  checkNumber("pids", spec.pids, 8, 4_194_304, true);
  checkNumber("ttlMs", spec.ttlMs, LIMITS.leaseMinMs, LIMITS.leaseMaxMs, false);
  checkServices(spec);
  checkAllowed(spec);
  checkEnv(spec.env ?? {});
  const hostname = spec.hostname ?? "sandbox";
  if (!/^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$/.test(hostname)) {
    throw invalid(`The host name ${JSON.stringify(hostname)} is not one: letters, digits, dots and dashes, at most 64 of them`);
  }
  if (Object.keys(spec.labels ?? {}).length > LIMITS.labelsPerSandbox) throw invalid(`A sandbox takes at most ${LIMITS.labelsPerSandbox} labels`);
  for (const [what, text] of [["user", spec.user], ["workdir", spec.workdir]] as const) checkText(what, text);
  checkCapabilities(spec, capabilities);
}

function checkRoot({ root, layers = [] }: SandboxSpec): void {
  const all = [...layers.map((layer) => layer.path), ...root.layers, ...root.parts.flatMap((part) => part.layers)];
  if (root.layers.length === 0 && root.parts.length === 0) throw invalid("The image has no layers, there is nothing to start from");
  if (layers.length + root.layers.length > LIMITS.imageLayers) throw invalid(`The image and the layers over it are more than ${LIMITS.imageLayers} directories`);
  for (const path of all) {
    if (!isAbsolute(path) || path.includes("\0")) throw invalid(`The layer ${JSON.stringify(path)} is not an absolute path`);
  }
  for (const { target } of root.parts) {
    if (!/^(\/[^/\0]+)+$/.test(target) || target.split("/").some((part) => part === "." || part === "..")) throw invalid(`The mount target ${JSON.stringify(target)} is not a plain absolute path`);
  }
}

function checkServices({ services = [] }: SandboxSpec): void {
  if (services.length > LIMITS.servicesPerSandbox) throw invalid(`A sandbox takes at most ${LIMITS.servicesPerSandbox} services`);
  const ports = new Set<number>();
  for (const { port, target } of services) {
    if (!Number.isInteger(port) || port < 1 || port > 65_535) throw invalid(`The service port ${port} is not one: 1 to 65535`);
    if (ports.has(port)) throw invalid(`The service port ${port} is declared twice`);
    ports.add(port);
    // The kernel's limit for the address of a unix socket.
    if (!isAbsolute(target) || target.includes("\0") || Buffer.byteLength(target) > 107) throw invalid(`The target of service port ${port} is not an absolute path of at most 107 bytes: ${JSON.stringify(target)}`);
  }
}

function checkAllowed({ network, allow, services = [] }: SandboxSpec): void {
  if (network !== "allowlist") {
    if (allow !== undefined) throw invalid(`A list of allowed hosts belongs to the network "allowlist", not to ${JSON.stringify(network ?? "none")}`);
    return;
  }
  // Throws for entries that are none.
  parseHostRules(allow ?? []);
  if (services.some(({ port }) => port === EGRESS_PORT)) throw invalid(`The service port ${EGRESS_PORT} is taken by the proxy of the network "allowlist"`);
  if (services.length >= LIMITS.servicesPerSandbox) throw invalid(`A sandbox takes at most ${LIMITS.servicesPerSandbox} services, and the proxy of the network "allowlist" is one`);
}

function checkCapabilities(spec: SandboxSpec, capabilities: Capabilities): void {
  const { enforced } = capabilities.isolation;
  const need = (name: string, wanted: boolean, present: boolean, what: string): void => {
    if (!wanted || present) return;
    throw new MwError("unsupported", `The sandbox asks for ${what}, which this sandbox backend cannot give: ${capabilities.missing[name] ?? "it has no such thing"}`, {
      fix: "Drop the request, or use another backend; `mw doctor` says what each can do.",
      facts: { capability: name },
    });
  };
  need("cpu", spec.cpus !== undefined, enforced.cpu, "a cpu limit");
  need("memory", spec.memoryBytes !== undefined, enforced.memory, "a memory limit");
  need("pids", spec.pids !== undefined, enforced.pids, "a pids limit");
  need("disk", spec.diskBytes !== undefined, enforced.disk, "a disk limit");
  const network = spec.network ?? "none";
  need(network, true, capabilities.networks.includes(network), `the network "${network}"`);
  need("snapshot", spec.snapshot !== undefined, capabilities.snapshot, "to start from a snapshot");
  need("memorySnapshot", spec.checkpointable === true, capabilities.memorySnapshot, "a machine whose memory can be kept");
  need("services", (spec.services ?? []).length > 0, capabilities.services, "services of its controller");
  need("layers", (spec.layers ?? []).length > 0, capabilities.layers, "layers over its image");
  need("hostname", spec.hostname !== undefined, capabilities.hostname, "a host name of its own");
  need("seal", spec.workspace !== undefined, capabilities.seal, "a sealed workspace");
  const user = spec.user ?? spec.root.user;
  need("users", !isRootUser(user), capabilities.users, `the user "${user}"`);
}

/** True for the ways to name root, the only user where a backend has no others. */
export function isRootUser(user: string): boolean {
  return user === "" || /^(root|0)(:(root|0))?$/.test(user);
}

export function checkExecOptions(options: ExecOptions, capabilities: Capabilities): void {
  const { command, cwd, user, timeoutMs, maxOutputBytes, pty } = options;
  const words = typeof command === "string" ? [command] : command;
  if (words.length === 0 || (typeof command !== "string" && words[0] === "")) throw invalid("The command is empty");
  for (const word of words) {
    if (word.includes("\0")) throw invalid("An argument of the command contains a NUL character, which no program can receive");
  }
  checkText("cwd", cwd);
  checkText("user", user);
  checkEnv(options.env ?? {});
  checkNumber("timeoutMs", timeoutMs, 1, LIMITS.leaseMaxMs * 30, false);
  checkNumber("maxOutputBytes", maxOutputBytes, 0, Number.MAX_SAFE_INTEGER, true);
  if (pty !== undefined) {
    checkNumber("pty.columns", pty.columns, 1, 65_535, true);
    checkNumber("pty.rows", pty.rows, 1, 65_535, true);
  }
  if (user !== undefined) checkUser(user, capabilities);
}

/** Where only root exists inside, every other user is refused. */
export function checkUser(user: string, capabilities: Capabilities): void {
  checkText("user", user);
  if (capabilities.users || isRootUser(user)) return;
  throw new MwError("unsupported", `The user "${user}" cannot exist here: ${capabilities.missing["users"] ?? "this backend knows root only"}`, { facts: { capability: "users" } });
}

function checkEnv(env: Readonly<Record<string, string>>): void {
  const entries = Object.entries(env);
  if (entries.length > LIMITS.envEntries) throw invalid(`The environment has more than ${LIMITS.envEntries} entries`);
  for (const [name, value] of entries) {
    if (name === "" || name.includes("=") || name.includes("\0") || value.includes("\0")) throw invalid(`The environment variable ${JSON.stringify(name)} has a name or value that no program can receive`);
  }
}

function checkText(what: string, text: string | undefined): void {
  if (text?.includes("\0") === true) throw invalid(`The ${what} contains a NUL character`);
}

function checkNumber(what: string, value: number | undefined, minimum: number, maximum: number, integer: boolean): void {
  if (value === undefined) return;
  if (Number.isFinite(value) && value >= minimum && value <= maximum && (!integer || Number.isSafeInteger(value))) return;
  throw invalid(`${what} is ${value}; it has to be ${integer ? "a whole number" : "a number"} from ${minimum} to ${maximum}`);
}

function invalid(message: string): MwError {
  return new MwError("invalid_input", message);
}
