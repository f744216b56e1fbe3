/** Installs one package of the npm registry, at one version, into a directory. */
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { runTool } from "./run-tool.ts";

export interface NpmRequest {
  readonly package: string;
  readonly version: string;
  /** Dependencies are chosen among what was published before this day. */
  readonly before: string | null;
  readonly directory: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal: AbortSignal;
}

/** No script of any package runs. An `engines` field that this host's Node does not meet is no obstacle: it is not what the CLI runs on. */
export async function installNpm(request: NpmRequest): Promise<void> {
  const { directory, before } = request;
  await writeFile(join(directory, "package.json"), "{}\n");
  const options = ["--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--no-workspaces", "--engine-strict=false", "--no-package-lock", "--loglevel=error"];
  if (before !== null) options.push(`--before=${before}`);
  await runTool(["npm", "install", ...options, "--prefix", directory, `${request.package}@${request.version}`], {
    cwd: directory,
    env: request.env,
    signal: request.signal,
    what: `install ${request.package} ${request.version}`,
    install: "install npm (it comes with Node)",
  });
  // Where packages came from is nobody's business inside, and differs between mirrors.
  for (const name of ["package.json", "package-lock.json", "node_modules/.package-lock.json"]) await rm(join(directory, name), { force: true });
}
