/** Which CRIU keeps the processes of machines: `MW_CRIU` (`off`: none), else the one that scripts/build-criu.mjs built for this user, else the distribution's where it is new enough. */
import { spawnSync } from "node:child_process";
import { accessSync, constants, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { isAbsolute, join } from "node:path";
import { findProgram } from "../programs.ts";

type Env = Readonly<Record<string, string | undefined>>;

export interface CriuProgram {
  readonly path: string;
  readonly version: string;
}

/** Linux 6.13 divided a mapping that older ones do not know in two. */
const OLDEST = [4, 2] as const;
const BUILD = "node scripts/build-criu.mjs builds one";

/** The program, or why there is none. */
export function findCriu(env: Env = process.env): CriuProgram | { readonly missing: string } {
  const named = env["MW_CRIU"];
  if (named === "off") return { missing: "MW_CRIU is off" };
  if (named !== undefined && named !== "") return judged(named, "MW_CRIU");
  const built = builtDirectory(env);
  const version = versionFile(built);
  if (version !== null) return { path: join(built, "criu"), version };
  const installed = findProgram("criu");
  if (installed === null) return { missing: `there is no CRIU (https://criu.org); ${BUILD}` };
  return judged(installed, "this host");
}

/** The same as in scripts/build-criu.mjs. */
export function builtDirectory(env: Env): string {
  const xdg = env["XDG_CACHE_HOME"];
  return join(xdg !== undefined && isAbsolute(xdg) ? xdg : join(env["HOME"] ?? homedir(), ".cache"), "manyworlds", `criu-${process.arch}`);
}

function versionFile(directory: string): string | null {
  try {
    accessSync(join(directory, "criu"), constants.X_OK);
    return readFileSync(join(directory, "version"), "utf8").trim();
  } catch {
    return null;
  }
}

const judgements = new Map<string, CriuProgram | { readonly missing: string }>();

/** Asked once per process. */
function judged(path: string, whose: string): CriuProgram | { readonly missing: string } {
  const known = judgements.get(path);
  if (known !== undefined) return known;
  const judgement = judge(path, whose);
  judgements.set(path, judgement);
  return judgement;
}

function judge(path: string, whose: string): CriuProgram | { readonly missing: string } {
  const { stdout, error } = spawnSync(path, ["--version"], { encoding: "utf8", timeout: 10_000 });
  const version = /Version: (\d+(?:\.\d+)*)/.exec(stdout ?? "")?.[1];
  if (version === undefined) return { missing: `${path} (${whose}) is no CRIU that runs here${error === undefined ? "" : `: ${error.message}`}; ${BUILD}` };
  const [major = 0, minor = 0] = version.split(".").map(Number);
  if (major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1])) return { path, version };
  return { missing: `${path} is CRIU ${version}, and ${OLDEST.join(".")} or later is needed; ${BUILD}` };
}
