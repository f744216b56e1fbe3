/** The protected places of one image: `protected-paths.ts` with the image's own PATH and links applied. */
import { posix } from "node:path";
import type { ImageView } from "./image-view.ts";
import { DEFAULT_PATH, INJECTING_CONFIG, INJECTING_HOME_CONFIG, LIBRARY_TREES } from "./protected-paths.ts";

export interface Zones {
  /** Directories on the verifier's PATH, links resolved, in order. */
  readonly bins: readonly string[];
  /** Trees whose files are the image's. */
  readonly trees: readonly string[];
  readonly config: readonly string[];
  /** Directories and links on the way to all of these: replacing one replaces everything below. */
  readonly structure: ReadonlySet<string>;
}

export interface ZoneFacts {
  readonly image: ImageView;
  /** `PATH` of the image, in order. */
  readonly path: string;
  readonly workdir: string;
  readonly homes: readonly string[];
}

export async function protectedZones({ image, path, workdir, homes }: ZoneFacts): Promise<Zones> {
  const spelled = (path || DEFAULT_PATH).split(":").filter((directory) => directory.startsWith("/"));
  const bins: string[] = [];
  for (const directory of [...spelled, ...DEFAULT_PATH.split(":")]) {
    const real = (await image.real(directory)) ?? posix.normalize(directory);
    if (!bins.includes(real)) bins.push(real);
  }
  const trees = new Set<string>();
  for (const tree of LIBRARY_TREES) trees.add((await image.real(tree)) ?? tree);
  for (const directory of bins) {
    const prefix = await installation(image, directory, workdir, homes);
    if (prefix !== null) trees.add(prefix);
  }
  const config = [...INJECTING_CONFIG, ...homes.flatMap((home) => INJECTING_HOME_CONFIG.map((file) => posix.join(home, file)))];
  const structure = new Set<string>(["/logs"]);
  for (const place of [...spelled, ...DEFAULT_PATH.split(":"), ...LIBRARY_TREES, ...bins, ...trees, "/etc", "/etc/ld.so.conf.d", ...homes]) {
    for (let at = posix.normalize(place); at !== "/"; at = posix.dirname(at)) structure.add(at);
  }
  return { bins, trees: [...trees], config, structure };
}

/** A PATH entry such as /opt/venv/bin belongs to a whole installation; the project that the agent works on is none, except for a virtual environment in it. */
async function installation(image: ImageView, bin: string, workdir: string, homes: readonly string[]): Promise<string | null> {
  const prefix = posix.dirname(bin);
  if (!/\/s?bin$/.test(bin) || ["/", "/usr", "/usr/local", ...homes].includes(prefix)) return null;
  const inProject = workdir !== "/" && (prefix === workdir || prefix.startsWith(`${workdir}/`) || workdir.startsWith(`${prefix}/`));
  return inProject && (await image.entry(posix.join(prefix, "pyvenv.cfg"))) === null ? null : prefix;
}

export function inTrees(path: string, trees: readonly string[]): boolean {
  return trees.some((tree) => path.startsWith(`${tree}/`));
}

export function matches(patterns: readonly string[], path: string): boolean {
  return patterns.some((pattern) => (pattern.endsWith("/**") ? path.startsWith(pattern.slice(0, -2)) : path === pattern));
}

export function isCustomize(name: string): boolean {
  return /^(?:sitecustomize|usercustomize)(?:\.|$)/.test(name);
}
