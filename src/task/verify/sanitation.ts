/**
 * What must not reach the verifier although the agent left it in its workspace: changed programs, libraries and interpreter configuration of the image (restored),
 * and planted files that would be run or loaded in place of the image's (taken away). Everything else stays: installed packages, users, configuration under /etc.
 *
 * Pure over the list of changes and lookups in the image; the caller discards the resulting paths from the workspace.
 */
import { posix } from "node:path";
import type { WorkspaceChange } from "../../sandbox/sandbox.ts";
import { editableInstall, type EditableInstall } from "./editable.ts";
import { MentionedPaths } from "./mentioned-paths.ts";
import type { ImageView } from "./image-view.ts";
import { plantedRule, type PlantedFacts } from "./planted.ts";
import { LOADER_CACHE, NEVER_KEPT, NEVER_OWNED, PACKAGE_SCRIPTS, PYTEST_CONFIGS } from "./protected-paths.ts";
import { inTrees, isCustomize, matches, protectedZones, type Zones } from "./zones.ts";

export interface SanitationFacts {
  readonly image: ImageView;
  /** `PATH` of the image, in order. */
  readonly path: string;
  readonly workdir: string;
  /** Home directories whose configuration the verifier's shells read. */
  readonly homes: readonly string[];
  /** Declared by the task: absolute paths, `/**` at the end for trees. */
  readonly agentOwns: readonly string[];
  /** The instruction: what it names is the agent's to make or repair, unless it is an interpreter. */
  readonly instruction: string;
  /** One regular file of the workspace. */
  readonly read: (path: Uint8Array, maxBytes: number) => Promise<Uint8Array | null>;
}

export interface Sanitation {
  /** Paths to discard from the workspace, as bytes. */
  readonly discard: readonly Uint8Array[];
  /** For the verdict: changed or removed files of the image that the verifier sees as the image has them. */
  readonly restored: readonly string[];
  /** For the verdict: planted files. */
  readonly removed: readonly string[];
  /** The loader's cache must be made anew: libraries came with packages. */
  readonly refreshLoaderCache: boolean;
  /** The agent changed what pytest reads as its configuration. */
  readonly pytestConfigChanged: boolean;
  /** Taken away as code, put back as plain paths. */
  readonly editable: readonly EditableInstall[];
  readonly notes: readonly string[];
}

export async function planSanitation(changes: readonly WorkspaceChange[], facts: SanitationFacts): Promise<Sanitation> {
  const zones = await protectedZones(facts);
  const owned = new MentionedPaths(facts.agentOwns, facts.instruction);
  const planted = await plantedFacts(changes, facts, zones);
  const discard: Uint8Array[] = NEVER_KEPT.map((path) => Buffer.from(path));
  const restored: string[] = [];
  const removed: string[] = [];
  const bytecode = new Set<string>();
  const covered = new Set<string>();
  const editable: EditableInstall[] = [];
  let refreshLoaderCache = false;
  let pytestConfigChanged = false;

  for (const change of changes) {
    const path = Buffer.from(change.path).toString("utf8");
    if (isBelow(path, covered)) continue;
    if (NEVER_KEPT.some((tree) => path === tree || path.startsWith(`${tree}/`))) {
      if (/^\/(?:tests|solution|logs\/verifier)\/|^\/(?:tests|solution)$/.test(path)) removed.push(path);
      continue;
    }
    const cache = /^(.*\/__pycache__)(?:\/|$)/.exec(path)?.[1];
    if (cache !== undefined) {
      bytecode.add(cache);
      continue;
    }
    if (owned.declared(path)) continue;
    if (path === LOADER_CACHE) {
      discard.push(change.path);
      refreshLoaderCache = true;
      continue;
    }
    // Asked of the image itself: what an earlier step added is "changed" in a later one, and a root of several mounts may say "added" of what it had.
    const isNew = (await facts.image.entry(path)) === null;
    if (isNew && change.kind === "removed") continue;
    const verdict = isNew ? await plantedRule(change, path, planted) : await changedRule(change, path, facts, zones);
    if (verdict === "pytest-config") pytestConfigChanged = true;
    else if (verdict !== "keep" && !(await mentioned(owned, path, isNew, facts))) {
      discard.push(change.path);
      covered.add(path);
      (isNew ? removed : restored).push(path);
      const install = isNew && path.endsWith(".pth") && change.type === "file" ? await editableInstall(path, await facts.read(change.path, 64 * 1024), facts.read) : null;
      if (install !== null) editable.push(install);
    }
    if (/\.so(?:\.|$)|^\/etc\/ld/.test(path)) refreshLoaderCache = true;
  }
  for (const path of bytecode) discard.push(Buffer.from(path));
  const notes = bytecode.size > 0 ? [`${bytecode.size} directories of compiled Python were dropped; Python compiles again`] : [];
  return { discard, restored, removed, refreshLoaderCache, pytestConfigChanged, editable, notes };
}

function isBelow(path: string, trees: ReadonlySet<string>): boolean {
  if (trees.size === 0) return false;
  for (let at = posix.dirname(path); at !== "/"; at = posix.dirname(at)) if (trees.has(at)) return true;
  return false;
}

/** For what the image had: is it what the verifier runs on? */
async function changedRule(change: WorkspaceChange, path: string, facts: SanitationFacts, zones: Zones): Promise<"keep" | "discard" | "pytest-config"> {
  const before = await facts.image.entry(path);
  if (zones.structure.has(path)) {
    if (change.kind === "removed" || change.type !== "directory" || before?.type !== "directory") return "discard";
    return "keep";
  }
  // A directory that is still one differs in its mode, or was made anew; its content is judged file by file.
  if (change.kind !== "removed" && change.type === "directory" && before?.type === "directory") return "keep";
  if (matches(zones.config, path)) return "discard";
  const name = posix.basename(path);
  if (name === "conftest.py" || isCustomize(name)) return "discard";
  if (PACKAGE_SCRIPTS.test(path) || inBins(path, zones, facts.workdir) || inTrees(path, zones.trees)) return "discard";
  // Packages of the image's interpreters, wherever the image has them.
  if (/\/(?:site-packages|dist-packages)\//.test(path)) return "discard";
  return (await pytestConfigDiffers(path, change.path, facts)) ? "pytest-config" : "keep";
}

function inBins(path: string, zones: Zones, workdir: string): boolean {
  const directory = posix.dirname(path);
  if (!zones.bins.includes(directory)) return false;
  // A project's own bin directory on the PATH holds its work; interpreters in it are still the image's.
  const inProject = workdir !== "/" && (directory === workdir || directory.startsWith(`${workdir}/`));
  return !inProject || NEVER_OWNED.test(posix.basename(path));
}

/** What the instruction names is the agent's: files to make, scripts to repair. Never the interpreters and tools that verifiers use. */
async function mentioned(owned: MentionedPaths, path: string, isNew: boolean, facts: SanitationFacts): Promise<boolean> {
  if (NEVER_OWNED.test(posix.basename(path)) || !owned.named(path)) return false;
  if (isNew) return true;
  // A program in machine code is a tool, whoever names it; a script or a configuration file can be the work.
  const start = await facts.image.read(path, 4);
  return start !== null && Buffer.compare(start, Buffer.from("\x7fELF", "latin1")) !== 0;
}

async function plantedFacts(changes: readonly WorkspaceChange[], facts: SanitationFacts, zones: Zones): Promise<PlantedFacts> {
  const addedDirectories = new Set<string>();
  for (const change of changes) if (change.kind === "added" && change.type === "directory") addedDirectories.add(Buffer.from(change.path).toString("utf8"));
  const commands = new Map<string, number>();
  for (const [rank, directory] of zones.bins.entries()) for (const name of await facts.image.list(directory)) if (!commands.has(name)) commands.set(name, rank);
  return { ...facts, zones, addedDirectories, commands, pytestConfigDiffers: (path, bytes) => pytestConfigDiffers(path, bytes, facts) };
}

/** Whether the part of the file that pytest reads is not what the image has there. */
async function pytestConfigDiffers(path: string, bytes: Uint8Array, facts: SanitationFacts): Promise<boolean> {
  const part = PYTEST_CONFIGS.get(posix.basename(path));
  if (part === undefined || /\/(?:site-packages|dist-packages|node_modules)\//.test(path)) return false;
  // What is too large or no regular file cannot be compared; a removed file has no part that counts.
  const now = await facts.read(bytes, 1024 * 1024);
  const read = (content: Uint8Array | null): string => part.exec(content === null ? "" : Buffer.from(content).toString("utf8"))?.[0].trim() ?? "";
  return read(now) !== read(await facts.image.read(path, 1024 * 1024));
}
