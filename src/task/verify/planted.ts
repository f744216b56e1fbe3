/**
 * New files that would be run or loaded in place of what the image has, or before it. A new program with a new name is not one of them: solutions install things.
 */
import { posix } from "node:path";
import type { WorkspaceChange } from "../../sandbox/sandbox.ts";
import type { ImageView } from "./image-view.ts";
import { BOOTSTRAP_TOOLS, DISTRIBUTION_BINS, RUNNER_MODULES } from "./protected-paths.ts";
import { inTrees, isCustomize, matches, type Zones } from "./zones.ts";

export interface PlantedFacts {
  readonly image: ImageView;
  readonly workdir: string;
  readonly homes: readonly string[];
  readonly zones: Zones;
  /** Directories that the agent made: the image has no files beside what is in them. */
  readonly addedDirectories: ReadonlySet<string>;
  /** The image's programs: first place on the PATH that has each name. */
  readonly commands: ReadonlyMap<string, number>;
  readonly read: (path: Uint8Array, maxBytes: number) => Promise<Uint8Array | null>;
  readonly pytestConfigDiffers: (path: string, bytes: Uint8Array) => Promise<boolean>;
}

const PACKAGES = /\/(?:site-packages|dist-packages)(?:\/|$)/;

export async function plantedRule(change: WorkspaceChange, path: string, facts: PlantedFacts): Promise<"keep" | "discard" | "pytest-config"> {
  const name = posix.basename(path);
  const directory = posix.dirname(path);
  if (path === "/logs") return change.type === "directory" ? "keep" : "discard";
  if (matches(facts.zones.config, path) && change.type !== "directory") return "discard";
  if (isCustomize(name)) return "discard";
  if (change.type === "file" && /^\/(?:tmp|var\/tmp)$/.test(directory) && name.endsWith(".py") && directory !== facts.workdir) return "discard";
  const isPackage = PACKAGES.test(path);
  if (name === "conftest.py" && !isPackage && !/\/node_modules\//.test(path)) return "discard";
  if (shadowsProgram(change, name, directory, facts)) return "discard";
  if (await shadowsLibrary(change, name, directory, facts)) return "discard";
  if (await shadowsModule(change, path, name, directory, facts)) return "discard";
  return !isPackage && (await facts.pytestConfigDiffers(path, change.path)) ? "pytest-config" : "keep";
}

/** A program that its name finds before the image's, or in place of a tool that verifiers fetch. */
function shadowsProgram(change: WorkspaceChange, name: string, directory: string, { zones, commands, homes }: PlantedFacts): boolean {
  if (change.type !== "file" && change.type !== "symlink") return false;
  const rank = homes.some((home) => directory === posix.join(home, ".local/bin")) ? -1 : zones.bins.indexOf(directory);
  if (rank < 0 && !homes.some((home) => directory === posix.join(home, ".local/bin"))) return false;
  const own = commands.get(name);
  if (own !== undefined && rank < own) return true;
  return own === undefined && BOOTSTRAP_TOOLS.has(name) && !DISTRIBUTION_BINS.some((bin) => directory === bin);
}

/** Directories in which the loader looks, with its sub-directories for processor levels. */
const LOADER = /^(?:\/usr(?:\/local)?)?\/lib(?:32|64|x32)?(?:\/[a-z0-9_]+-linux-[a-z0-9]+)?(?:\/(?:glibc-hwcaps|tls|haswell|avx512_1|x86_64)(?:\/[\w.-]+)*)?$/;

/** A library that the loader finds before the image's of the same name. */
async function shadowsLibrary(change: WorkspaceChange, name: string, directory: string, facts: PlantedFacts): Promise<boolean> {
  if ((change.type !== "file" && change.type !== "symlink") || !/\.so(?:\.|$)/.test(name) || !LOADER.test(directory)) return false;
  for (const tree of facts.zones.trees) {
    if (!LOADER.test(tree)) continue;
    if ((await facts.image.entry(`${tree}/${name}`)) !== null) return true;
    for (const inner of await facts.image.list(tree)) {
      if (LOADER.test(`${tree}/${inner}`) && `${tree}/${inner}` !== directory && (await facts.image.entry(`${tree}/${inner}/${name}`)) !== null) return true;
    }
  }
  return false;
}

async function shadowsModule(change: WorkspaceChange, path: string, name: string, directory: string, facts: PlantedFacts): Promise<boolean> {
  // Beside the program that is tested, where Python looks first.
  if ((directory === facts.workdir || directory === "/") && RUNNER_MODULES.has(name.split(".")[0] ?? "") && (change.type === "directory" || /\.(?:py|pyc|so)$/.test(name))) return true;
  if (name === "pyvenv.cfg" && facts.zones.bins.some((bin) => directory === bin || directory === posix.dirname(bin))) return true;
  if (/^python\d+\.zip$/.test(name) && inTrees(path, facts.zones.trees)) return true;
  if (/\/python[\d.]+\//.test(path) && (await shadowsPython(change, path, name, directory, facts))) return true;
  if (/\.p[ml]$/.test(name) && (await shadowsPerl(path, facts))) return true;
  return name.endsWith(".rb") && /\/site_ruby\//.test(path) && (await shadowsRuby(path, name, facts));
}

/** Code that runs at start, and modules that are found before the image's of the same name. */
async function shadowsPython(change: WorkspaceChange, path: string, name: string, directory: string, facts: PlantedFacts): Promise<boolean> {
  const isPackage = PACKAGES.test(path);
  if (change.type === "file" && isPackage && name.endsWith(".pth")) return runsCode(await facts.read(change.path, 1024 * 1024));
  // Plugins of packages that the agent installed are not loaded into the tests.
  if (name === "entry_points.txt" && /\.(?:dist|egg)-info$/.test(directory)) return loadsPlugin(await facts.read(change.path, 1024 * 1024));
  const stem = name.split(".")[0] ?? "";
  if (!facts.addedDirectories.has(directory)) {
    const siblings = await facts.image.list(directory);
    // `re.cpython-312.so` or a directory `re` beside the image's `re.py`.
    if (siblings.some((sibling) => sibling !== name && !/\.(?:dist|egg)-info$|\.pth$/.test(sibling) && sibling.split(".")[0] === stem)) return true;
  }
  return isPackage && PACKAGES.test(`${directory}/`) && /(?:site|dist)-packages$/.test(directory) && RUNNER_MODULES.has(stem) && hasElsewhere(stem, directory, facts);
}

/** The image has this package in another directory of packages, and a new one may come first. */
async function hasElsewhere(stem: string, directory: string, { image }: PlantedFacts): Promise<boolean> {
  const places = ["/usr/lib/python3/dist-packages"];
  for (const base of ["/usr/local/lib", "/usr/lib", "/usr/lib64"]) {
    for (const version of await image.list(base)) if (version.startsWith("python3.")) places.push(`${base}/${version}/dist-packages`, `${base}/${version}/site-packages`);
  }
  for (const place of places) if (place !== directory && ((await image.entry(`${place}/${stem}`)) ?? (await image.entry(`${place}/${stem}.py`))) !== null) return true;
  return false;
}

/** A line of a .pth file that starts with `import` is executed at every start of Python. */
function runsCode(content: Uint8Array | null): boolean {
  return content === null || /^import[ \t]/m.test(Buffer.from(content).toString("utf8"));
}

function loadsPlugin(content: Uint8Array | null): boolean {
  return content === null || /^\s*\[\s*pytest11\s*\]/m.test(Buffer.from(content).toString("utf8"));
}

async function shadowsPerl(path: string, { image, zones }: PlantedFacts): Promise<boolean> {
  const local = /^(?:\/etc\/perl|\/usr\/local\/(?:share|lib)(?:\/[^/]+)?\/perl5?(?:\/(?:site_perl\/)?[\d.]+)?|\/usr\/local\/lib\/site_perl)\/(.+)$/.exec(path)?.[1];
  if (local === undefined) return false;
  for (const tree of zones.trees) {
    if (!/perl5?$/.test(tree)) continue;
    if ((await image.entry(`${tree}/${local}`)) !== null) return true;
    for (const version of await image.list(tree)) if ((await image.entry(`${tree}/${version}/${local}`)) !== null) return true;
  }
  for (const arch of await image.list("/usr/lib")) {
    for (const base of [`/usr/lib/${arch}/perl-base`, `/usr/lib/${arch}/perl5`]) if ((await image.entry(`${base}/${local}`)) !== null) return true;
  }
  return false;
}

async function shadowsRuby(path: string, name: string, { image }: PlantedFacts): Promise<boolean> {
  if (name === "operating_system.rb") return true;
  const local = /\/site_ruby\/(?:[\d.]+\/)?(.+)$/.exec(path)?.[1] ?? name;
  for (const base of ["/usr/lib/ruby", "/usr/local/lib/ruby"]) {
    for (const version of await image.list(base)) if ((await image.entry(`${base}/${version}/${local}`)) !== null) return true;
  }
  return false;
}
