/** `mmdebstrap:SUITE[+package,...]`: a Debian root made from packages, through the package sources that this host itself is configured with. */
import { spawn } from "node:child_process";
import { constants } from "node:fs";
import { access, mkdir, readFile, readdir, stat } from "node:fs/promises";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { MwError } from "../core/errors.ts";
import { ROOT_CONFIG } from "./root-sources.ts";
import { needed, type LoadOptions, type Source, type SourceContext } from "./source.ts";
import { removeTree } from "./unpacker.ts";

/** What mmdebstrap says of itself rather than of its progress. */
const HOUSEKEEPING = /tempdir|is equal to the host|signed-by/;

export function debianSource(suite: string, packages: readonly string[], context: SourceContext | null): Source {
  const name = `mmdebstrap:${suite}${packages.length > 0 ? `+${packages.join(",")}` : ""}`;
  return {
    name,
    label: name,
    // Made once; a newer state of the suite is fetched by removing the image.
    fingerprint: () => Promise.resolve(null),
    load: async (options) => {
      const { layers, env } = needed(context);
      const program = await findProgram("mmdebstrap", env);
      if (program === null) {
        throw new MwError("environment", `making ${name} needs the program mmdebstrap, which is not installed`, { fix: "apt-get install mmdebstrap, or map the image to another with mw image alias" });
      }
      const temporary = await layers.temporary();
      try {
        options.progress(`making ${name} with mmdebstrap (about a minute)`);
        const made = await startBootstrap([program, ...argumentsFor(suite, packages, await mirrorsOf(suite))], temporary, name, options);
        try {
          const layer = await layers.unpack(() => Promise.resolve(made.tar), { diffId: null, digest: null, whiteouts: false }, { name, signal: options.signal, confirm: made.finished });
          return { layers: [layer], config: ROOT_CONFIG };
        } finally {
          made.stop();
          await made.finished().catch(() => undefined);
        }
      } finally {
        await removeTree(temporary);
      }
    },
  };
}

function argumentsFor(suite: string, packages: readonly string[], mirrors: readonly string[]): readonly string[] {
  return [
    "--variant=minbase",
    `--mode=${process.geteuid?.() === 0 ? "root" : "unshare"}`,
    "--format=tar",
    // Documentation weighs as much as the programs and nobody reads it in a machine like this.
    "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright", "--dpkgopt=path-exclude=/usr/share/locale/*",
    // A machine that is thrown away need not survive a power cut.
    "--dpkgopt=force-unsafe-io",
    ...(packages.length > 0 ? [`--include=${packages.join(",")}`] : []),
    suite,
    "-",
    ...mirrors,
  ];
}

interface Bootstrap {
  readonly tar: Readable;
  /** Rejects when the program failed: what it wrote until then is no root. */
  readonly finished: () => Promise<void>;
  readonly stop: () => void;
}

async function startBootstrap([program = "", ...args]: readonly string[], temporary: string, name: string, options: LoadOptions): Promise<Bootstrap> {
  // In a user namespace the program is somebody who may not enter our private directories.
  const work = process.geteuid?.() === 0 ? { TMPDIR: join(temporary, "work") } : {};
  if (work.TMPDIR !== undefined) await mkdir(work.TMPDIR, { mode: 0o755 });
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...work, LC_ALL: "C" }, detached: true });
  const exit = new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("close", (code, signal) => resolve(signal ?? `code ${code}`));
  });
  const tail: string[] = [];
  createInterface({ input: child.stderr }).on("line", (line) => {
    if (line.startsWith("I: ") && !HOUSEKEEPING.test(line)) options.progress(`mmdebstrap: ${line.slice(3, 150)}`);
    tail.push(line);
    if (tail.length > 40) tail.shift();
  });
  const stop = (): void => {
    try {
      // Its own group: apt and dpkg go with it.
      if (child.pid !== undefined && child.exitCode === null && child.signalCode === null) process.kill(-child.pid, "SIGTERM");
    } catch {
      // Gone meanwhile.
    }
  };
  options.signal.addEventListener("abort", stop, { once: true });
  const finished = async (): Promise<void> => {
    const how = await exit;
    options.signal.removeEventListener("abort", stop);
    options.signal.throwIfAborted();
    if (how !== "code 0") throw failure(name, how, tail);
  };
  return { tar: child.stdout, finished, stop };
}

function failure(name: string, how: string, tail: readonly string[]): MwError {
  const errors = tail.filter((line) => /^(E|W):|error|unable|cannot|failed/i.test(line));
  const text = (errors.length > 0 ? errors : tail).slice(-8).join("\n");
  let fix = `check that the package sources of this host offer the suite and the packages`;
  if (/newuidmap|subuid|unshare/.test(text)) fix = "as an ordinary user this needs subordinate ids: apt-get install uidmap, and a line for you in /etc/subuid and /etc/subgid";
  else if (/Could not (resolve|connect)|Temporary failure|timed out/i.test(text)) fix = "the package mirror cannot be reached: check the network and the proxy";
  else if (/Unable to locate package|no installation candidate/i.test(text)) fix = "check the package names";
  return new MwError("image_failed", `mmdebstrap could not make ${name} (${how}):\n${text}`, { fix });
}

/**
 * The host's own sources for the suite, as lines; empty where the host has none: mmdebstrap then takes its defaults, with the host's apt configuration (proxies
 * among it) either way.
 */
async function mirrorsOf(suite: string): Promise<readonly string[]> {
  const release = await readFile("/etc/os-release", "utf8").catch(() => "");
  if (!/^ID=debian$/m.test(release)) return [];
  const uri = await debianMirror();
  if (uri === null) return [];
  const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
  const signed = (await stat(keyring).catch(() => null)) === null ? "" : ` [signed-by=${keyring}]`;
  return [`deb${signed} ${uri} ${suite} main`];
}

/** The first address of the distribution itself in the host's sources, in either of apt's formats. */
async function debianMirror(): Promise<string | null> {
  const directory = "/etc/apt/sources.list.d";
  const files = ["/etc/apt/sources.list", ...(await readdir(directory).catch(() => [])).sort((a, b) => (a < b ? -1 : 1)).map((name) => join(directory, name))];
  for (const file of files) {
    const text = await readFile(file, "utf8").catch(() => "");
    const uris = [...text.matchAll(/^\s*(?:deb(?:\s+\[[^\]]*\])?\s+|URIs:\s*)((?:https?|file|mirror\+\w+):\S+)/gm)].map((match) => match[1] ?? "");
    const found = uris.find((uri) => /\/debian\/?$/.test(uri));
    if (found !== undefined) return found;
  }
  return null;
}

async function findProgram(name: string, env: Readonly<Record<string, string | undefined>>): Promise<string | null> {
  for (const directory of [...(env["PATH"] ?? "").split(delimiter), "/usr/bin", "/usr/sbin"]) {
    const path = join(directory, name);
    if (directory !== "" && (await access(path, constants.X_OK).then(() => true, () => false))) return path;
  }
  return null;
}
