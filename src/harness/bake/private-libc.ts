/**
 * Makes dynamically linked programs run in any image, also one with another C library or none: they get a C library of their own, copied from the baking host,
 * below `/.mw/lib`.
 *
 * - Programs name `/.mw/lib/ld.so` as their interpreter, written over the name that they had, so that nothing in the file moves (single-file programs carry data at
 *   fixed offsets and find themselves through /proc/self/exe, which running them through the loader as an argument would break).
 * - That loader is the host's with other names in it, of equal length: it searches `/.mw/lib` and never the image's library directories, cache or preload list, and
 *   does not know the variables (LD_LIBRARY_PATH and the like) with which images prepare their own programs. Where its code has another form than is known here, it
 *   does; then the file `hears` beside it says so, and whoever starts a program takes the variables away.
 * - No environment variable is involved, so that what such a program starts (the image's shell, the task's tools) is loaded as ever.
 */
import { execFile } from "node:child_process";
import { copyFile, lstat, mkdir, readFile, realpath, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { MwError } from "../../core/errors.ts";
import { readElf, setInterpreter, type ElfFile } from "./elf.ts";

/** Where the private library lies in a sandbox. */
export const PRIVATE_LIBRARIES = "/.mw/lib";
export const PRIVATE_LOADER = `${PRIVATE_LIBRARIES}/ld.so`;
/** There when the private loader obeys the variables of `LOADER_VARIABLES`. */
export const HEARING_MARK = `${PRIVATE_LIBRARIES}/hears`;
export const LOADER_VARIABLES = ["LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"] as const;

/** Names that the C library of most distributions goes by, of the machine that bakes. */
const LOADERS: Readonly<Record<string, string>> = { x64: "/lib64/ld-linux-x86-64.so.2", arm64: "/lib/ld-linux-aarch64.so.1" };
const MULTIARCH: Readonly<Record<string, string>> = { x64: "x86_64-linux-gnu", arm64: "aarch64-linux-gnu" };

export interface ProgramFile {
  /** Absolute host path, below the directory that is being baked. */
  readonly path: string;
  readonly elf: ElfFile;
}

/**
 * Redirects every program among `files` to the private loader, and fills `target` (a directory that stands for `/.mw/lib`) with what they and the libraries among
 * them need. `extra`: host directories that are searched first. Returns libraries that some optional part names and this host does not have.
 */
export async function addPrivateLibc(files: readonly ProgramFile[], target: string, extra: readonly string[] = []): Promise<readonly string[]> {
  const loader = hostLoader();
  const mine = await readElf(loader).catch(() => null);
  if (mine === null) {
    throw new MwError("environment", `baking needs the GNU C library of this host, and there is no loader at ${loader}`, { fix: "bake on a host with glibc, such as Debian, Ubuntu or Fedora" });
  }
  const bundled = new Set(files.map(({ path }) => path.slice(path.lastIndexOf("/") + 1)));
  const wanted = files.filter(({ elf }) => elf.machine === mine.machine && !elf.needed.some((name) => name.startsWith("libc.musl-")));
  await mkdir(target, { recursive: true });
  await writeFile(join(target, "ld.so"), redirectedLoader(await readFile(loader)), { mode: 0o755 });
  if (!(await isDeaf(join(target, "ld.so")))) await writeFile(join(target, "hears"), "");
  const missing = new Set<string>();
  const done = new Set<string>();
  const queue = wanted.flatMap(({ path, elf }) => elf.needed.map((name) => ({ name, of: path, required: elf.interpreter !== null })));
  for (let item = queue.shift(); item !== undefined; item = queue.shift()) {
    const { name, of, required } = item;
    if (done.has(name) || bundled.has(name) || isLoader(name)) continue;
    done.add(name);
    const found = await findLibrary(name, mine.machine, extra);
    if (found === null && required) throw new MwError("environment", `${of} needs the library ${name}, which this host does not have`, { fix: `install the package that holds ${name}, then bake again` });
    if (found === null) {
      missing.add(name);
      continue;
    }
    await copyFile(found.path, join(target, name));
    queue.push(...found.elf.needed.map((inner) => ({ name: inner, of: name, required })));
  }
  for (const { path, elf } of wanted) if (elf.interpreter !== null && elf.interpreter.path !== PRIVATE_LOADER) await setInterpreter(path, elf, PRIVATE_LOADER);
  return [...missing];
}

/** Comparisons with the names of variables (behind `LD_`) as compilers write them into x86-64 code; each gets a name that nobody has. */
const DEAFENED: readonly (readonly [RegExp, string])[] = [
  [/(H[\xb8-\xbf])LIBRARY_/g, "$1LIBRARX_"],
  [/(\x81[\x38-\x3f])PREL/g, "$1PREX"],
  [/(\x81[\x38-\x3f])AUDI/g, "$1AUDX"],
];

/** Asks the loader itself where it would search. */
function isDeaf(loader: string): Promise<boolean> {
  const nowhere = "/mw-library-path-of-an-image";
  return new Promise((resolve) => {
    execFile(loader, ["--help"], { env: { LD_LIBRARY_PATH: nowhere, LD_PRELOAD: `${nowhere}/x.so` }, timeout: 30_000 }, (error, stdout, stderr) => {
      resolve(error === null && stdout.includes("search path") && !`${stdout}${stderr}`.includes(nowhere));
    });
  });
}

/** Text that names the host's C library, for messages and records. */
export async function libcVersion(): Promise<string> {
  const found = await findLibrary("libc.so.6", (await readElf(hostLoader()))?.machine ?? 0, []);
  const text = found === null ? "" : (await readFile(found.path)).toString("latin1");
  return /GNU C Library [^\n]*version ([\d.]+)/.exec(text)?.[1] ?? "unknown";
}

function hostLoader(): string {
  const loader = LOADERS[process.arch];
  if (loader === undefined) throw new MwError("unsupported", `harnesses cannot be baked on ${process.arch}`, { fix: "bake on x86-64 or arm64" });
  return loader;
}

/** Programs list it among their libraries; it is there already, as what loads them. */
function isLoader(name: string): boolean {
  return /^ld-linux[\w-]*\.so\.\d+$/.test(name);
}

async function findLibrary(name: string, machine: number, extra: readonly string[]): Promise<{ readonly path: string; readonly elf: ElfFile } | null> {
  const multiarch = MULTIARCH[process.arch] ?? "";
  const directories = [...extra, `/lib/${multiarch}`, `/usr/lib/${multiarch}`, "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
  for (const directory of directories) {
    const path = join(directory, name);
    if ((await lstat(path).catch(() => null)) === null) continue;
    const elf = await readElf(path).catch(() => null);
    if (elf?.machine === machine) return { path: await realpath(path), elf };
  }
  return null;
}

/**
 * The loader with its own directories: `/usr/lib...` becomes `/.mw/lib...`, `/lib...` becomes `/.mw...`, `/etc/ld.so.*` becomes `/.mw/ld.so.*`. Each name keeps its
 * length. Exported for tests.
 */
export function redirectedLoader(bytes: Buffer): Buffer {
  // Latin-1 text and bytes are one to one.
  const text = bytes.toString("latin1");
  let directories = 0;
  // oxlint-disable-next-line no-control-regex -- names in a binary end with NUL
  let redirected = text.replaceAll(/(?<=\0)(\/usr)?\/lib((?:64|32|x32)?\/(?:[\w-]+\/)?)(?=\0)/g, (_all, usr: string | undefined, rest: string) => {
    directories++;
    return usr === undefined ? `/.mw${rest}` : `/.mw/lib${rest}`;
    // oxlint-disable-next-line no-control-regex -- as above
  }).replaceAll(/(?<=\0)\/etc\/(ld\.so\.(?:cache|preload))(?=\0)/g, "/.mw/$1");
  for (const [expression, replacement] of DEAFENED) redirected = redirected.replaceAll(expression, replacement);
  if (directories === 0 || redirected.length !== text.length) throw new MwError("unsupported", "the loader of this host's C library names its directories in a way that is not known", { fix: "bake on another distribution, such as Debian" });
  return Buffer.from(redirected, "latin1");
}
