/** `mw serve` */
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { MwError } from "../../core/errors.ts";
import type { OpenServer } from "../../server/index.ts";
import { openEnvironment, type EnvironmentServer } from "../../server/environment/index.ts";
import { loadConfig, type Config } from "../config.ts";
import type { AppContext } from "../context.ts";
import type { RunHost } from "../../rollout/run-host.ts";
import { note, printJson, printLine } from "../output.ts";
import type { DataFlag, ServeFlags } from "../serve.ts";
import { withServer } from "../serving.ts";
import { VERSION } from "../version.ts";

export async function serve(this: AppContext, flags: ServeFlags): Promise<void> {
  const { maxSandboxes, maxSandboxesPerOwner, maxSnapshotsPerOwner, maxDiskPerOwner, warm: warmSandboxes } = flags;
  const config = loadConfig(withData(this, flags), this.cwd, { maxSandboxes, maxSandboxesPerOwner, maxSnapshotsPerOwner, maxDiskPerOwner, warmSandboxes });
  const home = config.home.value;
  await withServer(this, config, flags, async ({ server, runs, log, stopped }) => {
    const environment = await openZmq(this, flags, { home, runs, log });
    try {
      if (flags.json) printJson(this, { url: server.url, keyFile: server.keyFile, keyless: server.keyless, home, ...(environment === null ? {} : { zmq: environment.address }) });
      else printGuide(this, server, config, environment);
      await stopped;
      note(this, "ending: requests under way have their time; once more ends them now");
    } finally {
      await environment?.close();
    }
  });
}

/** The environment as it is with `--data`. */
export function withData(context: AppContext, { data }: DataFlag): AppContext["env"] {
  return data === undefined ? context.env : { ...context.env, MW_HOME: resolve(context.cwd, data) };
}

function openZmq(context: AppContext, { zmq, zmqWire, zmqRun }: ServeFlags, of: { readonly home: string; readonly runs: RunHost; readonly log: (line: string) => void }): Promise<EnvironmentServer | null> {
  if (zmq === undefined) return Promise.resolve(null);
  const defaults: unknown = zmqRun === undefined ? {} : readJson(resolve(context.cwd, zmqRun));
  return openEnvironment({ ...of, runtime: context.runtime, version: VERSION, address: zmq, wire: zmqWire, defaults });
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (cause) {
    throw new MwError("usage", `--zmq-run: ${path} cannot be read as JSON`, { fix: "give a file with a body of PUT /v1/runs", cause });
  }
}

function printGuide(context: AppContext, { url, keyFile, keyless }: OpenServer, config: Config, environment: EnvironmentServer | null): void {
  const print = (text = ""): void => printLine(context, text);
  print(`serving ${url}`);
  print(`data    ${config.home.value}`);
  if (environment !== null) print(`zmq     ${environment.address}`);
  print(`key     ${keyFile ?? "MW_API_KEY"}${keyless ? " (programs of this user need none)" : ""}`);
  print();
  const key = keyFile === null ? "$MW_API_KEY" : `$(cat ${keyFile})`;
  print(`export MW_URL=${url} MW_API_KEY=${key}`);
  print(`export E2B_API_URL=${url} E2B_SANDBOX_URL=${url} E2B_API_KEY=${key}`);
}
