/** `mw doctor`: what this host can and cannot do for sandboxes, how to change it, and where each setting comes from. */
import { statfs } from "node:fs/promises";
import { mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, freemem, tmpdir, totalmem } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { existsSync } from "node:fs";
import { parseBackendChoice, probeBackends, probeSandboxes, type Probe } from "../../sandbox/index.ts";
import { loadConfig, type Config } from "../config.ts";
import type { AppContext } from "../context.ts";
import { formatBytes, formatTable, printJson, printLine, printable, styler } from "../output.ts";
import { VERSION } from "../version.ts";

/** Programs that widen what images can be made, none of them needed for `host`. */
const HELPERS = [
  { program: "mmdebstrap", gives: "Debian images without a registry (the shipped tasks' base)", fix: "apt-get install mmdebstrap" },
  { program: "buildah", gives: "Dockerfiles beyond our own builder", fix: "apt-get install buildah" },
] as const;

export async function doctor(this: AppContext, flags: { readonly json: boolean }): Promise<void> {
  const config = loadConfig(this.env, this.cwd);
  const probes: Probe[] = [{ name: "node", state: "ok", detail: `${process.version}, manyworlds ${VERSION}`, fix: null }];
  // A data directory of its own: the real one may be in use, and looking must not change it.
  const scratch = mkdtempSync(join(tmpdir(), "mw-doctor-"));
  try {
    probes.push(...(await probeSandboxes(scratch)));
    // Without the native programs there is nothing to start elsewhere.
    if (!probes.some(({ state }) => state === "failed")) probes.push(...(await probeBackends(parseBackendChoice(config.get("backend") ?? "native"), { home: scratch, env: this.env, runtime: this.runtime })));
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
  probes.push(...HELPERS.map((helper) => helperProbe(helper, this.env["PATH"] ?? "")), await room(config));
  if (flags.json) printJson(this, { probes, home: config.home, settings: config.entries() });
  else print(this, config, probes);
  if (probes.some(({ state }) => state === "failed")) this.setExitCode(3);
}

function helperProbe({ program, gives, fix }: (typeof HELPERS)[number], path: string): Probe {
  const found = [...path.split(delimiter), "/usr/sbin", "/sbin"].some((directory) => existsSync(join(directory, program)));
  return found ? { name: program, state: "ok", detail: gives, fix: null } : { name: program, state: "absent", detail: `not installed; it gives ${gives}`, fix };
}

async function room(config: Config): Promise<Probe> {
  let directory = config.home.value;
  while (!existsSync(directory) && dirname(directory) !== directory) directory = dirname(directory);
  const { bavail, bsize } = await statfs(directory);
  const detail = `${availableParallelism()} CPUs, ${formatBytes(freemem())} of ${formatBytes(totalmem())} memory free, ${formatBytes(bavail * bsize)} of disk free at ${config.home.value}`;
  return { name: "room", state: "ok", detail, fix: null };
}

function print(context: AppContext, config: Config, probes: readonly Probe[]): void {
  const paint = styler(context.process.stdout, context.env);
  const marks = { ok: paint("green", "ok"), absent: paint("yellow", "absent"), failed: paint("red", "FAILED") } as const;
  for (const { name, state, detail, fix } of probes) {
    printLine(context, `${marks[state].padEnd(marks.ok.length + 4)} ${name}: ${printable(detail)}`);
    if (fix !== null) printLine(context, `       fix: ${printable(fix)}`);
  }
  printLine(context);
  const rows = config.entries().map(({ key, value, origin, brief }) => [key, value === null ? "-" : printable(String(value)), origin, brief]);
  rows.unshift(["home", config.home.value, config.home.origin, "data directory: runs, images"]);
  printLine(context, formatTable([{ title: "setting" }, { title: "value" }, { title: "from" }, { title: "meaning" }], rows, paint));
}
