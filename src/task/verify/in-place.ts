/**
 * Hardening of the agent's own machine, for tasks whose declared survivors (running programs) are the work. Weaker than a fresh machine: an agent that was root
 * may have changed what is not looked at here. What is done is listed in the verdict.
 */
import { posix } from "node:path";
import type { FileStat, Sandbox } from "../../sandbox/sandbox.ts";
import type { ImageView } from "./image-view.ts";
import { MentionedPaths } from "./mentioned-paths.ts";
import { INJECTING_CONFIG, INJECTING_HOME_CONFIG } from "./protected-paths.ts";

export interface InPlaceFacts {
  readonly image: ImageView;
  readonly workdir: string;
  /** Executables whose processes live on; `/**` at the end for trees. */
  readonly survivors: readonly string[];
  readonly agentOwns: readonly string[];
}

export interface Hardened {
  readonly restored: readonly string[];
  readonly removed: readonly string[];
  readonly notes: readonly string[];
}

/** Files of the image that the runner itself depends on, compared byte for byte. */
const RUNNER_FILES = ["/bin/sh", "/bin/bash", "/usr/bin/env", "/usr/bin/python3", "/usr/local/bin/python3", "/bin/kill", "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
const RUNNER_BYTES = 64 * 1024 * 1024;

export async function hardenInPlace(sandbox: Sandbox, facts: InPlaceFacts): Promise<Hardened> {
  const restored: string[] = [];
  const removed: string[] = [];
  const notes = ["verified in the agent's machine: what it changed in the system was not restored as a whole"];
  const owned = new MentionedPaths(facts.agentOwns, "");
  await restoreRunner(sandbox, facts, restored);
  notes.push(...(await endOthers(sandbox, facts.survivors)));
  for (const planted of ["/tests", "/solution", "/logs/verifier"]) {
    const inside = await children(sandbox, planted);
    await sandbox.files.remove(planted);
    for (const { path } of inside) removed.push(`${planted}/${posix.basename(Buffer.from(path).toString("utf8"))}`);
  }
  const config = [...INJECTING_CONFIG, ...INJECTING_HOME_CONFIG.map((file) => `/root/${file}`)].filter((path) => !owned.declared(path));
  for (const path of config) await restoreConfig(sandbox, facts.image, path, { restored, removed });
  for (const directory of new Set(["/", "/tmp", "/var/tmp", ...ancestors(facts.workdir)])) await removePlanted(sandbox, facts, directory, owned, removed);
  return { restored, removed, notes };
}

async function restoreRunner(sandbox: Sandbox, { image }: InPlaceFacts, restored: string[]): Promise<void> {
  for (const path of RUNNER_FILES) {
    const real = await image.real(path);
    const content = real === null ? null : await image.read(real, RUNNER_BYTES);
    const entry = real === null ? null : await image.entry(real);
    if (real === null || content === null || entry === null || content.length === RUNNER_BYTES) continue;
    const now = await sandbox.files.stat(real);
    if (now?.type === "file" && now.size === content.length) {
      const bytes = await sandbox.files.read(real, { maxBytes: RUNNER_BYTES }).catch(() => null);
      if (bytes !== null && Buffer.compare(bytes, content) === 0) continue;
    }
    await sandbox.files.remove(real);
    await sandbox.files.write(real, content, { mode: entry.mode, owner: "0:0" });
    restored.push(real);
  }
}

/** Kills everything but the survivors, by what each process runs. A process that will not end is noted. */
async function endOthers(sandbox: Sandbox, survivors: readonly string[]): Promise<readonly string[]> {
  const spared = new MentionedPaths(survivors, "");
  for (let round = 0; ; round++) {
    const others = (await processes(sandbox)).filter(({ executable }) => !spared.declared(executable));
    if (others.length === 0) return [];
    if (round === 5) return [`processes that would not end: ${others.map(({ pid, executable }) => `${pid} ${executable}`).slice(0, 20).join(", ")}`];
    await sandbox.run({ command: ["/bin/sh", "-c", 'kill -KILL "$@" 2>/dev/null; :', "sh", ...others.map(({ pid }) => pid)], user: "0:0", cwd: "/", timeoutMs: 10_000 });
  }
}

async function processes(sandbox: Sandbox): Promise<readonly { readonly pid: string; readonly executable: string }[]> {
  const found: { pid: string; executable: string }[] = [];
  for (const { path } of await children(sandbox, "/proc")) {
    const pid = posix.basename(Buffer.from(path).toString("utf8"));
    if (!/^\d+$/.test(pid) || pid === "1") continue;
    const link = await sandbox.files.stat(`/proc/${pid}/exe`).catch(() => null);
    // Helpers of ours run from outside of the machine's files and are gone by themselves.
    if (link?.target == null) continue;
    const executable = Buffer.from(link.target).toString("utf8").replace(/ \(deleted\)$/, "");
    if ((await sandbox.files.stat(executable).catch(() => null)) !== null || link.target.includes(0x20)) found.push({ pid, executable });
  }
  return found;
}

async function restoreConfig(sandbox: Sandbox, image: ImageView, pattern: string, record: { restored: string[]; removed: string[] }): Promise<void> {
  const tree = pattern.endsWith("/**");
  const path = tree ? pattern.slice(0, -3) : pattern;
  const entry = await image.entry(path);
  if (tree) {
    for (const child of await children(sandbox, path)) {
      const name = Buffer.from(child.path).toString("utf8");
      await restoreConfig(sandbox, image, posix.join(path, posix.basename(name)), record);
    }
    return;
  }
  const now = await sandbox.files.stat(path);
  if (entry === null) {
    if (now === null) return;
    await sandbox.files.remove(path);
    record.removed.push(path);
  } else if (entry.type === "file") {
    const content = await image.read(path, RUNNER_BYTES);
    const same = now?.type === "file" && content !== null && now.size === content.length && Buffer.compare(await sandbox.files.read(path, { maxBytes: RUNNER_BYTES }).catch(() => new Uint8Array([0])), content) === 0;
    if (same || content === null) return;
    await sandbox.files.remove(path);
    await sandbox.files.write(path, content, { mode: entry.mode, owner: "0:0" });
    record.restored.push(path);
  }
}

async function removePlanted(sandbox: Sandbox, { image, workdir }: InPlaceFacts, directory: string, owned: MentionedPaths, removed: string[]): Promise<void> {
  const temporary = directory === "/tmp" || directory === "/var/tmp";
  for (const { path } of await children(sandbox, directory)) {
    const name = posix.basename(Buffer.from(path).toString("utf8"));
    const full = posix.join(directory, name);
    const planted = /^(?:conftest|sitecustomize|usercustomize)\.py$|^(?:pytest\.ini|\.pytest\.ini|__pycache__)$/.test(name) || (temporary && name.endsWith(".py") && directory !== workdir);
    if (!planted || owned.declared(full) || (name !== "__pycache__" && (await image.entry(full)) !== null)) continue;
    await sandbox.files.remove(full);
    removed.push(full);
  }
}

async function children(sandbox: Sandbox, directory: string): Promise<readonly FileStat[]> {
  return sandbox.files.list(directory).catch(() => []);
}

function ancestors(path: string): string[] {
  const found: string[] = [];
  for (let at = posix.normalize(path); at !== "/"; at = posix.dirname(at)) found.push(at);
  return found;
}
