// Builds CRIU (https://criu.org), which keeps and restores the processes of machines, from Debian's source: one static program without the parts that machines never need.
// `node scripts/build-criu.mjs [--source FILE.tar.xz] [--force]` prints the program's path. Distributions' own are used where they are new enough (`mw doctor` says).
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { isAbsolute, join, resolve } from "node:path";
import { ensurePrograms, ROOT, run } from "./toolchain.mjs";

/** Linux 6.13 divided a mapping that older ones do not know in two. */
const OLDEST = [4, 2];
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";
const DEFAULT_MIRROR = "http://deb.debian.org/debian";

const force = process.argv.includes("--force");
const given = process.argv.includes("--source") ? resolve(process.argv[process.argv.indexOf("--source") + 1] ?? "") : null;

function fail(message) {
  process.stderr.write(`build-criu: ${message}\n`);
  process.exit(3);
}

/** The same as in src/sandbox/backends/native/criu/program.ts. */
function targetDirectory() {
  const xdg = process.env.XDG_CACHE_HOME;
  return join(xdg !== undefined && isAbsolute(xdg) ? xdg : join(homedir(), ".cache"), "manyworlds", `criu-${process.arch}`);
}

function ensureTools() {
  const file = (path) => () => existsSync(path);
  const header = (name) => ({ present: file(`/usr/include/${name}`) });
  const wanted = [
    [{ gcc: "gcc", make: "make", xz: "xz-utils", "pkg-config": "pkg-config", protoc: "protobuf-compiler", "protoc-c": "protobuf-c-compiler" }],
    [{ "libc6-dev": "libc6-dev" }, header("stdio.h")],
    [{ "libprotobuf-dev": "libprotobuf-dev" }, header("google/protobuf/descriptor.proto")],
    [{ "libprotobuf-c-dev": "libprotobuf-c-dev" }, header("protobuf-c/protobuf-c.h")],
    [{ "libnl-3-dev": "libnl-3-dev" }, header("libnl3/netlink/netlink.h")],
    [{ "libnet1-dev": "libnet1-dev" }, header("libnet.h")],
    [{ "libcap-dev": "libcap-dev" }, header("sys/capability.h")],
    [{ "libbsd-dev": "libbsd-dev" }, header("bsd/string.h")],
    [{ "uuid-dev": "uuid-dev" }, header("uuid/uuid.h")],
  ];
  const missing = wanted.flatMap(([programs, options]) => ensurePrograms(programs, options));
  if (missing.length > 0) fail(`these are needed: ${missing.join(", ")}`);
}

/** The mirror that this host's apt uses, so that a proxy or a local copy is used as well. */
function mirror() {
  const { stdout } = run("apt-get", ["indextargets", "--format", "$(ORIGIN)|$(REPO_URI)", "Created-By: Packages"], { quiet: true, check: false });
  const own = stdout.split("\n").find((line) => line.startsWith("Debian|") && !line.includes("security"));
  return own?.slice("Debian|".length).replace(/\/$/, "") ?? DEFAULT_MIRROR;
}

/** The newest source of Debian, asked for with an apt configuration of its own: nothing of the host's is changed. */
function download(directory) {
  if (!existsSync(KEYRING)) fail(`there is no ${KEYRING}: install debian-archive-keyring, or name CRIU's source with --source`);
  for (const name of ["lists/partial", "cache/archives/partial", "state"]) mkdirSync(join(directory, name), { recursive: true });
  writeFileSync(join(directory, "sources.list"), `deb-src [signed-by=${KEYRING}] ${mirror()} sid main\n`);
  const settings = { "Dir::Etc::SourceList": "sources.list", "Dir::State::Lists": "lists", "Dir::Cache": "cache", "Dir::State::Status": "state/status" };
  const lines = Object.entries(settings).map(([name, path]) => `${name} "${join(directory, path)}";`);
  writeFileSync(join(directory, "state/status"), "");
  writeFileSync(join(directory, "apt.conf"), [...lines, 'Dir::Etc::SourceParts "-";', process.getuid?.() === 0 ? 'APT::Sandbox::User "root";' : "", ""].join("\n"));
  const env = { APT_CONFIG: join(directory, "apt.conf") };
  run("apt-get", ["update", "-q"], { quiet: true, env });
  run("apt-get", ["source", "-q", "--tar-only", "criu"], { quiet: true, env, cwd: directory });
  const name = readdirSync(directory).find((file) => /^criu_.*\.orig\.tar\.\w+$/.test(file));
  if (name === undefined) fail("apt-get source brought no criu_*.orig.tar.*");
  return join(directory, name);
}

/** Libraries of parts that are left out: they seem absent, whatever this host has. */
function pkgConfigWithout(directory) {
  const bin = join(directory, "bin");
  mkdirSync(bin);
  const real = run("sh", ["-c", "command -v pkg-config"], { quiet: true }).stdout.trim();
  const script = `#!/bin/sh\nfor a; do case $a in *nftables*|*libdrm*|*libbpf*|*libselinux*|*gnutls*) exit 1;; esac; done\nexec ${real} "$@"\n`;
  writeFileSync(join(bin, "pkg-config"), script, { mode: 0o755 });
  return bin;
}

function compile(tree, bin) {
  const env = { PATH: `${bin}:${process.env.PATH ?? ""}` };
  run("make", [`-j${Number(process.env.MW_JOBS ?? 2)}`, "NO_GNUTLS=1", "criu/criu"], { quiet: true, env, cwd: tree });
  const architecture = process.arch === "arm64" ? "aarch64" : "x86";
  const archives = ["criu/built-in.o", `criu/arch/${architecture}/crtools.built-in.o`, "images/built-in.o", "soccr/libsoccr.a", "compel/libcompel.a", "criu/pie/pie.lib.a"];
  const libraries = ["-lbsd", "-lmd", "-lprotobuf-c", "-lnl-3", "-lnet", "-luuid", "-ldl", "-lpthread", "-lrt"];
  // Static, it starts in a fifth of the time: it is started twice for each snapshot that is used.
  const flags = ["-O2", "-s", "-static", "-D_GNU_SOURCE", "-Wl,--wrap=nla_parse,--wrap=nlmsg_parse,--wrap=syscall"];
  run("gcc", [...flags, join(ROOT, "scripts/criu-limits.c"), ...archives, "-Wl,--start-group", ...libraries, "-Wl,--end-group", "-o", "criu-static"], { quiet: true, cwd: tree });
  return join(tree, "criu-static");
}

function versionOf(program) {
  const { stdout } = run(program, ["--version"], { quiet: true });
  const version = /Version: (\d+(?:\.\d+)*)/.exec(stdout)?.[1];
  if (version === undefined) fail(`${program} --version says no version`);
  return version;
}

function isNewEnough(version) {
  const [major, minor = 0] = version.split(".").map(Number);
  return major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1]);
}

function build(target) {
  ensureTools();
  const work = mkdtempSync(join(tmpdir(), "mw-criu-"));
  try {
    const archive = given ?? download(work);
    const tree = join(work, "tree");
    mkdirSync(tree);
    run("tar", ["-xf", archive, "-C", tree, "--strip-components=1"], { quiet: true });
    process.stderr.write("Building CRIU, which takes a few minutes ...\n");
    const program = compile(tree, pkgConfigWithout(work));
    const version = versionOf(program);
    if (!isNewEnough(version)) fail(`the source is of CRIU ${version}; ${OLDEST.join(".")} or later is needed`);
    mkdirSync(target, { recursive: true });
    copyFileSync(program, join(target, "criu.new"));
    run("chmod", ["0755", join(target, "criu.new")], { quiet: true });
    copyFileSync(join(tree, "COPYING"), join(target, "COPYING"));
    writeFileSync(join(target, "version"), `${version}\n`);
    renameSync(join(target, "criu.new"), join(target, "criu"));
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

if (process.platform !== "linux") fail("it works on Linux only");
if (given !== null && !existsSync(given)) fail(`there is no ${given}`);
const target = targetDirectory();
const program = join(target, "criu");
if (force || !existsSync(program)) build(target);
process.stderr.write(`CRIU ${readFileSync(join(target, "version"), "utf8").trim()}\n`);
process.stdout.write(`${program}\n`);
