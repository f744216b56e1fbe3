/**
 * The image `host`: this machine's own programs, for trying things out without a download.
 *
 * Everything is hidden that is not on the lists below. One prepared layer holds a skeleton, a copy of /etc without secrets, and whiteouts; the big program
 * directories show through from the host, each as an overlay of its own: overlayfs refuses `/` itself as a layer next to layers that lie on it, and an ordinary
 * user may not stack a directory that has mounts below it. What appears on the host later outside the listed directories is never seen.
 */
import { createHash } from "node:crypto";
import { lstat, readdir, readFile, readlink, realpath, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { MwError } from "../core/errors.ts";
import { etcEvents } from "./host-etc.ts";
import { ownersMode } from "./owners.ts";
import { DEFAULT_PATH } from "./root-sources.ts";
import { EMPTY_CONFIG } from "./records.ts";
import { needed, type Source, type SourceContext } from "./source.ts";
import { directoryEntry, symlinkEntry, whiteoutEntry, type TreeEvent } from "./tree.ts";
import { scanHidden, treeFingerprint } from "./unpacker.ts";

/** Program directories; those that the host has as links are copied as links. */
const PROGRAMS = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store"];
/** Package databases, so that the package manager inside knows what is there. */
const DATABASES = ["/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman", "/lib/apk"];

/** Everything else of the root. */
const SKELETON: readonly (readonly [path: string, mode: number])[] = [
  ["boot", 0o755], ["dev", 0o755], ["home", 0o755], ["media", 0o755], ["mnt", 0o755], ["proc", 0o555], ["root", 0o700], ["run", 0o755], ["run/lock", 0o1777],
  ["srv", 0o755], ["sys", 0o555], ["tmp", 0o1777],
  ["var", 0o755], ["var/backups", 0o755], ["var/cache", 0o755], ["var/cache/apt", 0o755], ["var/cache/apt/archives", 0o755], ["var/cache/apt/archives/partial", 0o700],
  ["var/cache/debconf", 0o755], ["var/cache/ldconfig", 0o700], ["var/lib", 0o755], ["var/lib/apt", 0o755], ["var/lib/apt/lists", 0o755], ["var/lib/apt/lists/partial", 0o700],
  ["var/lib/misc", 0o755], ["var/lib/pam", 0o755], ["var/local", 0o755], ["var/log", 0o755], ["var/log/apt", 0o755], ["var/mail", 0o775], ["var/opt", 0o755],
  ["var/spool", 0o755], ["var/tmp", 0o1777],
];

export function hostSource(context: SourceContext | null): Source {
  return {
    name: "host",
    label: "host",
    fingerprint: async () => fingerprint(needed(context).home),
    load: async ({ progress, signal }) => {
      if (process.platform !== "linux") throw new MwError("unsupported", "the image host needs Linux", { fix: "use another image" });
      const { layers, home } = needed(context);
      progress("preparing the image host from this machine's programs");
      const parts = await hostParts(home);
      const layer = await layers.build(() => preparedLayer(parts, home), { name: "host", signal });
      const state = await systemState();
      return {
        layers: [layer],
        config: { ...EMPTY_CONFIG, env: { PATH: DEFAULT_PATH } },
        hostParts: parts,
        digest: (content) => `host:${createHash("sha256").update(`${content}\n${state}`).digest("hex")}`,
      };
    },
  };
}

/** The directories that show through; links to one another are not among them. */
async function hostParts(home: string): Promise<readonly string[]> {
  const found: string[] = [];
  for (const path of [...PROGRAMS, ...DATABASES]) {
    const real = await realpath(path).catch(() => null);
    if (real !== path || !(await stat(path)).isDirectory()) continue;
    if (!found.some((part) => path.startsWith(`${part}/`))) found.push(path);
  }
  const realHome = await realpath(home).catch(() => home);
  return (await Promise.all(found.map((part) => around(part, realHome)))).flat();
}

/** A directory that holds the data directory cannot be stacked with layers that lie in it: its other subdirectories show through instead. */
async function around(part: string, home: string): Promise<readonly string[]> {
  if (part === home) return [];
  if (!home.startsWith(`${part}/`)) return [part];
  const names = await readdir(part, { withFileTypes: true });
  const parts = await Promise.all(names.filter((entry) => entry.isDirectory()).map((entry) => around(join(part, entry.name), home)));
  return parts.flat().sort();
}

async function* preparedLayer(parts: readonly string[], home: string): AsyncGenerator<TreeEvent> {
  yield { type: "entry", entry: directoryEntry("", 0o755) };
  for (const [path, mode] of SKELETON) yield { type: "entry", entry: directoryEntry(path, mode) };
  yield { type: "entry", entry: symlinkEntry("var/run", "/run") };
  yield { type: "entry", entry: symlinkEntry("var/lock", "/run/lock") };
  for (const path of [...PROGRAMS, ...DATABASES]) {
    const target = await readlink(path).catch(() => null);
    if (target !== null) yield { type: "entry", entry: symlinkEntry(path.slice(1), target) };
  }
  yield* etcEvents("/etc");
  const made = new Set(["", ...SKELETON.map(([path]) => path)]);
  for (const part of parts) {
    yield* directoriesTo(part, made);
    if (ownersMode().kind !== "kept") yield* ownDirectories(part, made, part === "/usr" ? 3 : 1);
    for (const path of await hiddenBelow(part, home)) {
      yield* directoriesTo(dirname(path), made);
      yield { type: "entry", entry: whiteoutEntry(Buffer.from(path.slice(1))) };
    }
  }
}

/**
 * In an ordinary user's machine the host's files belong to nobody. The upper directories, and all of /usr/local, become root's there: installing something new works then, although
 * changing what is there does not.
 */
async function* ownDirectories(parent: string, made: Set<string>, depth: number): AsyncGenerator<TreeEvent> {
  for (const entry of await readdir(parent, { withFileTypes: true }).catch(() => [])) {
    const path = join(parent, entry.name);
    if (!entry.isDirectory() || made.has(path.slice(1))) continue;
    yield* directoriesTo(path, made);
    if (depth > 1 || path.startsWith("/usr/local")) yield* ownDirectories(path, made, depth - 1);
  }
}

/** What must not show through, sorted, as absolute paths. */
async function hiddenBelow(part: string, home: string): Promise<readonly string[]> {
  const hidden = new Set((await scanHidden(part)).map((entry) => join(part, entry.path.toString())));
  // The data directory holds other rollouts' files; home directories may lie anywhere.
  for (const place of [home, await realpath(home).catch(() => home), ...(await homeDirectories())]) if (place.startsWith(`${part}/`)) hidden.add(place);
  const paths = [...hidden].sort();
  return paths.filter((path) => !paths.some((other) => path !== other && path.startsWith(`${other}/`)));
}

/** Homes of people below a program directory (`/opt/alice`), as the password file has them. System users live in program directories with everybody's files. */
async function homeDirectories(): Promise<readonly string[]> {
  const passwd = await readFile("/etc/passwd", "utf8").catch(() => "");
  const homes = passwd.split("\n").map((line) => line.split(":")).filter((fields) => Number(fields[2]) >= 1000 && Number(fields[2]) < 65534).map((fields) => fields[5] ?? "");
  return homes.filter((home) => home.split("/").length > 2);
}

/** Directories on the way to `path` with the attributes of the host's: the topmost layer decides what a merged directory looks like. */
async function* directoriesTo(path: string, made: Set<string>): AsyncGenerator<TreeEvent> {
  const relative = path.slice(1);
  if (made.has(relative)) return;
  made.add(relative);
  if (relative.includes("/")) yield* directoriesTo(dirname(path), made);
  const { mode, uid, gid, mtimeNs } = await lstat(path, { bigint: true });
  yield { type: "entry", entry: directoryEntry(relative, Number(mode) & 0o7777, { uid: Number(uid), gid: Number(gid), mtimeNs }) };
}

/** What tells one state of the host's programs from another. */
async function systemState(): Promise<string> {
  const release = await readFile("/etc/os-release", "utf8").catch(() => "");
  const stamps = await Promise.all(["/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/lib/apk/db/installed"].map((path) => stat(path, { bigint: true }).then(({ mtimeNs }) => String(mtimeNs), () => "")));
  return [release, ...stamps].join("\n");
}

/** Beside the system's state: /etc, who has something installed by hand, and which entries are closed to others there. */
async function fingerprint(home: string): Promise<string> {
  const hash = createHash("sha256").update(`1\n${home}\n${await systemState()}\n${await treeFingerprint("/etc")}\n`);
  for (const path of [...PROGRAMS, ...DATABASES]) hash.update(`${path} ${await readlink(path).catch(() => "")} ${await mtimeOf(path)}\n`);
  for (const path of await readdir("/usr").catch(() => [])) hash.update(`/usr/${basename(path)} ${await mtimeOf(join("/usr", path))}\n`);
  for (const part of ["/opt", "/usr/local"]) {
    if ((await realpath(part).catch(() => null)) !== part) continue;
    for (const entry of await scanHidden(part)) hash.update(`${part}/${entry.path.toString("latin1")}\n`);
  }
  return hash.digest("hex");
}

async function mtimeOf(path: string): Promise<string> {
  return stat(path, { bigint: true }).then(({ mtimeNs }) => String(mtimeNs), () => "");
}
