// Builds what is stale: the native programs into dist-native/, the TypeScript into dist/, the dashboard's page into dist-dashboard/. `--force` builds everything, `--native` only the former.
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { ensurePrograms, ROOT, run, which } from "./toolchain.mjs";

const force = process.argv.includes("--force");
const nativeOnly = process.argv.includes("--native");

/** Programs and their sources: `native/<name>.c` with every `native/<name>-*.c`; `native/common-*.c` goes into all. */
function programs() {
  const sources = readdirSync(join(ROOT, "native")).filter((name) => name.endsWith(".c"));
  const common = sources.filter((name) => name.startsWith("common-"));
  return sources
    .filter((name) => !name.includes("-"))
    .map((main) => {
      const name = main.slice(0, -2);
      return { name, sources: [main, ...sources.filter((source) => source.startsWith(`${name}-`)), ...common] };
    });
}

function filesBelow(directory) {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
    .sort();
}

/** The digest of the inputs when the stamp beside the outputs says that they were made from others, else null. */
function staleDigest(stampPath, inputs, extra) {
  const hash = createHash("sha256").update(extra);
  for (const path of inputs) hash.update(`${path.slice(ROOT.length)}\0`).update(readFileSync(path));
  const digest = hash.digest("hex");
  const fresh = !force && existsSync(stampPath) && readFileSync(stampPath, "utf8") === digest;
  return fresh ? null : digest;
}

/**
 * Makes a directory anew beside the old one and puts it in its place: whoever runs meanwhile finds one of both whole, and several that build at once (jobs that start together on a
 * shared checkout) do not meet. Leftovers of a build that was killed go with the next.
 */
function replaceDirectory(out, stamp, make) {
  const [parent, name] = [dirname(out), basename(out)];
  for (const left of readdirSync(parent)) {
    const pid = left.startsWith(`${name}.`) ? Number(left.split(".").at(-1)) : 0;
    if (pid > 0 && !existsSync(`/proc/${pid}`)) rmSync(join(parent, left), { recursive: true, force: true });
  }
  const [fresh, old] = [`${out}.new.${process.pid}`, `${out}.old.${process.pid}`];
  make(fresh);
  writeFileSync(join(fresh, ".stamp"), stamp);
  try {
    if (existsSync(out)) renameSync(out, old);
    renameSync(fresh, out);
  } catch (error) {
    // Another was faster, and made the same.
    if (!["ENOENT", "ENOTEMPTY", "EEXIST"].includes(error.code)) throw error;
    rmSync(fresh, { recursive: true, force: true });
  }
  rmSync(old, { recursive: true, force: true });
}

function buildNative() {
  if (process.platform !== "linux") {
    process.stderr.write("mw: sandboxes need Linux; building without them.\n");
    return;
  }
  const out = join(ROOT, "dist-native");
  const digest = staleDigest(join(out, ".stamp"), filesBelow(join(ROOT, "native")), process.arch);
  if (digest === null) return;
  const compiler = findCompiler();
  replaceDirectory(out, digest, (fresh) => {
    mkdirSync(fresh);
    const flags = [
      "-std=gnu11", "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64",
      ...(compiler.endsWith("musl-gcc") ? kernelHeaderFlags(fresh) : []),
    ];
    for (const { name, sources } of programs()) run(compiler, [...flags, "-o", join(fresh, name), ...sources.map((source) => join("native", source))], { quiet: true });
    writeFileSync(join(fresh, "syscalls.json"), `${JSON.stringify(syscallNumbers())}\n`);
  });
}

/** A small libc makes machines start faster and weigh less; glibc works as well. */
function findCompiler() {
  const missing = ensurePrograms({ gcc: "gcc" }).concat(
    ensurePrograms({ "libc6-dev": "libc6-dev" }, { present: () => existsSync("/usr/include/stdio.h") }),
  );
  if (which("musl-gcc") === null && missing.length === 0) ensurePrograms({ "musl-gcc": "musl-tools" });
  const compiler = which("musl-gcc") ?? which("gcc") ?? which("cc");
  if (compiler !== null) return compiler;
  process.stderr.write("mw: no C compiler (see above).\n");
  process.exit(3);
}

/** musl-gcc sees only its own headers; the kernel's are linked into a directory of their own. */
function kernelHeaderFlags(out) {
  const include = join(out, "include");
  mkdirSync(include);
  const triplet = run("gcc", ["-print-multiarch"], { quiet: true }).stdout.trim();
  const asm = [`/usr/include/${triplet}/asm`, "/usr/include/asm"].find((path) => existsSync(path));
  for (const [name, target] of [["linux", "/usr/include/linux"], ["asm-generic", "/usr/include/asm-generic"], ["asm", asm]]) {
    if (target !== undefined && existsSync(target)) symlinkSync(target, join(include, name));
  }
  return ["-isystem", include];
}

/** Numbers of this architecture's system calls by name, as the compiler's headers define them. */
function syscallNumbers() {
  const { stdout } = run(which("gcc") ?? "cc", ["-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"], { quiet: true });
  const numbers = {};
  for (const [, name, number] of stdout.matchAll(/^#define __NR_(\w+) (\d+)$/gm)) numbers[name] = Number(number);
  if (numbers.read === undefined) {
    process.stderr.write("mw: the compiler's headers name no system calls (asm/unistd.h). Install them (Debian: apt-get install linux-libc-dev).\n");
    process.exit(3);
  }
  return numbers;
}

function buildTypeScript() {
  const out = join(ROOT, "dist");
  const source = join(ROOT, "src");
  const inputs = [...filesBelow(source).filter((path) => !path.endsWith(".test.ts")), join(ROOT, "tsconfig.json"), join(ROOT, "tsconfig.build.json")];
  const digest = staleDigest(join(out, ".stamp"), inputs, readFileSync(join(ROOT, "node_modules/typescript-native/package.json")));
  if (digest === null) return;
  replaceDirectory(out, digest, (fresh) => {
    run(process.execPath, [join(ROOT, "node_modules/typescript-native/bin/tsc"), "-p", "tsconfig.build.json", "--outDir", fresh], { stdoutToStderr: true });
    for (const path of inputs.filter((input) => input.startsWith(source) && !input.endsWith(".ts"))) {
      const target = join(fresh, path.slice(source.length + 1));
      mkdirSync(dirname(target), { recursive: true });
      writeFileSync(target, readFileSync(path), { mode: statSync(path).mode });
    }
  });
}

/** The page is a bundle of its own; of the server it takes types alone, which leave nothing behind. */
function buildDashboard() {
  const out = join(ROOT, "dist-dashboard");
  const digest = staleDigest(join(out, ".stamp"), filesBelow(join(ROOT, "dashboard")), readFileSync(join(ROOT, "node_modules/.package-lock.json")));
  if (digest === null) return;
  replaceDirectory(out, digest, (fresh) => {
    run(process.execPath, [join(ROOT, "node_modules/vite/bin/vite.js"), "build", "--config", "dashboard/vite.config.ts", "--logLevel", "warn", "--outDir", fresh, "--emptyOutDir"], { stdoutToStderr: true });
  });
}

try {
  buildNative();
  if (!nativeOnly) {
    buildTypeScript();
    buildDashboard();
  }
} catch (error) {
  if (!["EACCES", "EPERM", "EROFS"].includes(error.code)) throw error;
  process.stderr.write(`mw: this checkout was changed after it was built, and ${error.path} cannot be written by this user. Have its owner run ./mw once, or use a checkout of your own.\n`);
  process.exit(3);
}
