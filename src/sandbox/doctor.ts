/** What this host offers for sandboxes, as a list of facts with their reasons and fixes: the sandbox part of `mw doctor`. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { release, userInfo } from "node:os";
import { delimiter, join } from "node:path";
import { MwError, toMwError } from "../core/errors.ts";
import { type NativeBackend, openNativeBackend } from "./backends/native/backend.ts";
import { findCriu } from "./backends/native/criu/program.ts";
import { missingPrograms } from "./backends/native/programs.ts";
import type { Capabilities } from "./sandbox.ts";

export interface Probe {
  readonly name: string;
  /** `absent`: sandboxes work, but not with this. `failed`: no sandbox can be made. */
  readonly state: "ok" | "absent" | "failed";
  readonly detail: string;
  readonly fix: string | null;
}

/** Looks at the host, then opens the backend on `home` (a directory that no controller holds; it is made when missing) and reports what it can enforce. */
export async function probeSandboxes(home: string): Promise<readonly Probe[]> {
  const probes: Probe[] = [platform()];
  if (probes.some((probe) => probe.state === "failed")) return probes;
  probes.push(programs(), kernel(), userNamespaces());
  if (probes.some((probe) => probe.state === "failed")) return probes;
  return [...probes, ...(await enforced(home))];
}

const ok = (name: string, detail: string): Probe => ({ name, state: "ok", detail, fix: null });

function platform(): Probe {
  if (process.platform === "linux" && (process.arch === "x64" || process.arch === "arm64")) return ok("platform", `Linux on ${process.arch}`);
  return { name: "platform", state: "failed", detail: `${process.platform} on ${process.arch} cannot run sandboxes`, fix: "Use Linux on x86-64 or 64-bit ARM; tasks can be checked and runs be read here." };
}

function programs(): Probe {
  const missing = missingPrograms();
  if (missing.length === 0) return ok("native programs", "built");
  return { name: "native programs", state: "failed", detail: `not built: ${missing.join(", ")}`, fix: "Run `npm run build`; it names what it needs." };
}

function kernel(): Probe {
  const [major = 0, minor = 0] = release().split(".").map(Number);
  const enough = major > 5 || (major === 5 && minor >= 12);
  if (enough) return ok("kernel", `Linux ${release()}`);
  return { name: "kernel", state: "failed", detail: `Linux ${release()} is too old`, fix: "Use Linux 5.12 or newer; 6.3 or newer gives each machine of root user ids of its own, ordinary users need 6.6." };
}

/** Settings that forbid user namespaces to ordinary users, each by its name. */
function userNamespaces(): Probe {
  const name = "user namespaces";
  const settings = [
    { path: "/proc/sys/kernel/unprivileged_userns_clone", forbids: "0", setting: "kernel.unprivileged_userns_clone", wanted: "1" },
    { path: "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", forbids: "1", setting: "kernel.apparmor_restrict_unprivileged_userns", wanted: "0" },
  ];
  if (readSetting("/proc/sys/user/max_user_namespaces") === "0") {
    return { name, state: isRoot() ? "absent" : "failed", detail: "user.max_user_namespaces is 0", fix: "sysctl -w user.max_user_namespaces=65536" };
  }
  if (isRoot()) return ok(name, "as root");
  const forbidding = settings.find(({ path, forbids }) => readSetting(path) === forbids);
  if (forbidding !== undefined) return { name, state: "failed", detail: `${forbidding.setting} is ${forbidding.forbids}`, fix: `sudo sysctl -w ${forbidding.setting}=${forbidding.wanted}` };
  return subordinateIds();
}

function subordinateIds(): Probe {
  const name = "user namespaces";
  const { username, uid } = userInfo();
  const has = (path: string): boolean => (readSetting(path) ?? "").split("\n").some((line) => line.startsWith(`${username}:`) || line.startsWith(`${uid}:`));
  const fix = `sudo apt-get install uidmap && sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ${username}`;
  if (!has("/etc/subuid") || !has("/etc/subgid")) return { name, state: "absent", detail: `allowed, but ${username} has no subordinate ids: only root exists inside`, fix };
  if (!onPath("newuidmap") || !onPath("newgidmap")) return { name, state: "absent", detail: "newuidmap and newgidmap are missing: only root exists inside", fix };
  return ok(name, "allowed, with subordinate ids");
}

async function enforced(home: string): Promise<readonly Probe[]> {
  try {
    const backend = await openNativeBackend({ home });
    const { capabilities } = backend;
    const processes = capabilities.memorySnapshot ? await keptProcesses(backend, home) : null;
    await backend.close();
    const probes = capabilityProbes(capabilities).map((probe) => (processes !== null && probe.name === processes.name ? processes : probe));
    return [ok("backend", `${capabilities.isolation.profile}, ${capabilities.isolation.privileged ? "as root" : "as an ordinary user"}`), ownIds(capabilities), ...probes];
  } catch (error) {
    const { code, message, fix } = toMwError(error);
    if (code === "busy") return [ok("backend", `in use: ${message}`)];
    return [{ name: "backend", state: "failed", detail: message, fix: fix ?? null }];
  }
}

/** CRIU depends on the kernel in many ways, so that only a machine that was kept and goes on says that it works. This one has init alone. */
async function keptProcesses(backend: NativeBackend, home: string): Promise<Probe> {
  const name = "memory snapshots";
  const criu = findCriu();
  if ("missing" in criu) return { name, state: "absent", detail: criu.missing, fix: null };
  const empty = mkdtempSync(join(home, "probe-"));
  try {
    const sandbox = await backend.create({ root: { digest: "probe", layers: [empty], parts: [], env: {}, user: "", workdir: "/", entrypoint: [], cmd: [] }, checkpointable: true });
    await sandbox.files.write("/probe", "kept");
    const [child] = await sandbox.fork(1, { memory: true });
    if (child?.ok !== true) throw child?.error ?? new Error("no child");
    const kept = Buffer.from(await child.sandbox.files.read("/probe")).toString();
    return kept === "kept" ? ok(name, `CRIU ${criu.version} kept and restored a machine`) : { name, state: "absent", detail: `CRIU ${criu.version} restored another machine than it kept`, fix: null };
  } catch (error) {
    const { message, fix } = toMwError(error);
    return { name, state: "absent", detail: `CRIU ${criu.version} (${criu.path}) does not work here: ${message}`, fix: fix ?? null };
  } finally {
    rmSync(empty, { recursive: true, force: true });
  }
}

/** Whether each machine has user ids that nobody else has; without them its root is the user who makes machines, held by the rest of the isolation alone. */
function ownIds({ isolation, missing }: Capabilities): Probe {
  const name = "own user ids";
  if (isolation.profile === "namespaces") {
    return { name, state: "absent", detail: `root inside a machine is root of this host, less its capabilities and system calls: ${missing["userns"] ?? "user namespaces do not work here"}`, fix: "Do what the reason names, or run hostile agents in a virtual machine; runs record the profile (namespaces)." };
  }
  return isolation.privileged ? ok(name, "each machine has 65536 of its own") : ok(name, "those of this user, shared by its machines");
}

function capabilityProbes(capabilities: Capabilities): readonly Probe[] {
  const { enforced: limits } = capabilities.isolation;
  const present: Readonly<Record<string, boolean>> = {
    "cpu limits": limits.cpu,
    "memory limits": limits.memory,
    "pids limits": limits.pids,
    "disk limits": limits.disk,
    freeze: capabilities.freeze,
    "sealed workspaces": capabilities.seal,
    "snapshots and forks": capabilities.snapshot,
    "snapshots beside running processes": capabilities.snapshot && capabilities.freeze,
    "memory snapshots": capabilities.memorySnapshot,
    "users besides root": capabilities.users,
    "network none": capabilities.networks.includes("none"),
    "network allowlist": capabilities.networks.includes("allowlist"),
    "network public": capabilities.networks.includes("public"),
  };
  const keys: Readonly<Record<string, string>> = { "sealed workspaces": "seal", "snapshots beside running processes": "freeze", "memory snapshots": "memorySnapshot", "users besides root": "users", "network public": "public", "network none": "none" };
  return Object.entries(present).map(([name, there]) => {
    if (there) return ok(name, name.endsWith(" limits") ? "enforced" : "available");
    const reason = capabilities.missing[keys[name] ?? name.replace(" limits", "")];
    return { name, state: "absent" as const, detail: reason ?? "this host cannot", fix: null };
  });
}

function isRoot(): boolean {
  return process.getuid?.() === 0;
}

function readSetting(path: string): string | null {
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    return null;
  }
}

function onPath(program: string): boolean {
  return [...(process.env["PATH"] ?? "").split(delimiter), "/usr/sbin", "/sbin"].some((directory) => existsSync(join(directory, program)));
}

/** Refuses with the failing probe's fix when no sandbox can be made here. */
export function requireSandboxes(probes: readonly Probe[]): void {
  const failed = probes.find((probe) => probe.state === "failed");
  if (failed === undefined) return;
  throw new MwError("environment", `No sandbox can be made here: ${failed.name}: ${failed.detail}`, failed.fix === null ? {} : { fix: failed.fix });
}
