/** Copies what a task declares as the agent's product out of its machine, with a manifest that says what came and what did not. */
import { lstat, mkdir } from "node:fs/promises";
import { dirname, isAbsolute, join, posix } from "node:path";
import { messageOf, MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import type { ArtifactRule } from "../task/task.ts";

export interface ArtifactEntry {
  readonly source: string;
  readonly destination: string;
  readonly status: "collected" | "missing" | "skipped" | "failed";
  readonly entries: number;
  readonly bytes: number;
  readonly refused: readonly { readonly path: string; readonly reason: string }[];
  readonly reason: string | null;
}

/** The directory that Harbor collects without being asked. */
const ALWAYS = "/logs/artifacts";

export async function collectArtifacts(sandbox: Sandbox, rules: readonly ArtifactRule[], workdir: string, directory: string, signal: AbortSignal): Promise<readonly ArtifactEntry[]> {
  const taken = new Set<string>();
  const entries: ArtifactEntry[] = [];
  const all = rules.some((rule) => rule.source === ALWAYS) ? rules : [...rules, { source: ALWAYS, destination: "", exclude: [], service: null }];
  for (const rule of all) {
    const source = isAbsolute(rule.source) ? rule.source : posix.join("/", workdir, rule.source);
    const stat = await sandbox.files.stat(source).catch((error: unknown) => {
      // What is in the way there is the agent's.
      if (error instanceof MwError && ["invalid_input", "conflict", "not_found"].includes(error.code)) return null;
      throw error;
    });
    // Nobody asked for the standard directory by name.
    if (stat === null && rule.source === ALWAYS && !rules.includes(rule)) continue;
    entries.push(stat === null ? missing(rule) : await collectOne(sandbox, rule, source, directory, taken, signal));
  }
  return entries;
}

async function collectOne(sandbox: Sandbox, rule: ArtifactRule, source: string, directory: string, taken: Set<string>, signal: AbortSignal): Promise<ArtifactEntry> {
  const destination = posix.normalize(rule.destination === "" ? posix.basename(source) : rule.destination);
  const base = { source: rule.source, destination, entries: 0, bytes: 0, refused: [] };
  if (destination.startsWith("..") || isAbsolute(destination)) return { ...base, status: "skipped", reason: "the destination leaves the artifacts directory" };
  const target = join(directory, "artifacts", destination);
  // The first rule that claims a place has it.
  if (taken.has(destination) || (await exists(target))) return { ...base, status: "skipped", reason: "the destination is taken" };
  taken.add(destination);
  try {
    await mkdir(dirname(target), { recursive: true });
    const report = await sandbox.files.download(source, target, { exclude: rule.exclude, maxBytes: LIMITS.artifactBytes, maxEntries: LIMITS.artifactEntries, signal });
    return { ...base, status: "collected", entries: report.entries, bytes: report.bytes, refused: report.refused, reason: null };
  } catch (error) {
    if (error instanceof MwError && ["sandbox_failed", "sandbox_gone", "host_exhausted", "cancelled"].includes(error.code)) throw error;
    const code = (error as NodeJS.ErrnoException).code;
    if (code === "ENOSPC" || code === "EDQUOT") throw new MwError("host_exhausted", `cannot store artifacts in ${target}: ${messageOf(error)}`, { cause: error, fix: "free space on the disk that holds the data directory" });
    // What the agent left there cannot be copied; that is recorded and changes no reward.
    return { ...base, status: "failed", reason: messageOf(error) };
  }
}

function missing(rule: ArtifactRule): ArtifactEntry {
  return { source: rule.source, destination: rule.destination, status: "missing", entries: 0, bytes: 0, refused: [], reason: "nothing is there" };
}

async function exists(path: string): Promise<boolean> {
  try {
    await lstat(path);
    return true;
  } catch {
    return false;
  }
}
