/**
 * `mw train TASK... --trainer URL`: rollouts for a trainer of somebody's, which comes to that address for them. A run of delivery over a mix of tasks, one part for each argument, in this
 * process. The trainer names its policy, leases groups and acknowledges them; see docs/weight-updates.md.
 */
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { MwError } from "../core/errors.ts";
import { datasetPartSchema, nameSchema, runRequestSchema, statusSchema, type DeliveryStatus, type RunRequest } from "../delivery/contract.ts";
import { absoluteInput } from "../rollout/inputs.ts";
import type { OpenServer } from "../server/index.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";
import { note, printJson, printLine, printable } from "./output.ts";
import { parsePrices } from "./parsers.ts";
import { printCost } from "./run-cost.ts";
import { withServer } from "./serving.ts";
import { tokenizerOf } from "./upstream.ts";

export interface OutsideFlags {
  readonly harness?: string;
  readonly seed?: string;
  readonly groupSize?: number;
  readonly batch?: number;
  readonly maxStaleness?: number;
  readonly concurrency?: number;
  readonly checkpoint?: number;
  readonly price?: string;
  readonly ignoreLimits: boolean;
  readonly json: boolean;
  readonly quiet: boolean;
}

/** How often people are told, where something has changed. */
const TOLD_EVERY_MS = 2_000;

export async function trainOutside(context: AppContext, config: Config, flags: OutsideFlags, tasks: readonly string[], trainer: string): Promise<void> {
  const { host, port, name } = readTrainer(trainer);
  const request = requestOf(context, config, flags, tasks);
  await withServer(context, config, { host, port }, async ({ server, stopped }) => {
    const api = new RunApi(server, context.env["MW_API_KEY"] ?? null, name);
    let status = await api.put(request);
    if (!flags.quiet) printGuide(context, server, name, request);
    let over = false;
    const interrupted = stopped.then(() => (over = true));
    while (status.state === "running" || status.state === "draining") {
      const before = status;
      await Promise.race([context.runtime.sleep(TOLD_EVERY_MS), interrupted]);
      if (over) break;
      status = await api.status();
      if (!flags.quiet && changed(before, status)) note(context, printable(lineOf(status)));
    }
    if (flags.json) printJson(context, status);
    else {
      for (const line of accountOf(status)) printLine(context, printable(line));
      await printCost(context, config.home.value, status.run);
    }
    if (over) {
      note(context, "stopped; the same command goes on with the run: what was delivered and not acknowledged is delivered again");
      context.setExitCode(130);
    } else if (status.state === "failed") throw new MwError("upstream_failed", `the run ${name} failed: ${status.reason ?? "unknown"}`, { fix: `mw show ${status.run} shows its rollouts` });
  });
}

/** Where the trainer comes: `http://HOST:PORT`, perhaps with the run's name as `/v1/runs/NAME`. */
export function readTrainer(text: string): { readonly host: string; readonly port: number; readonly name: string } {
  const refuse = (why: string): MwError => new MwError("usage", `--trainer ${JSON.stringify(text)} ${why}`, { fix: "give embedded, or the address at which a trainer of yours comes for rollouts: http://127.0.0.1:8790" });
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw refuse("is neither embedded nor an address");
  }
  if (url.protocol !== "http:") throw refuse("does not begin with http://");
  if (url.username !== "" || url.password !== "" || url.search !== "" || url.hash !== "") throw refuse("is more than an address");
  const name = url.pathname === "/" ? "train" : /^\/v1\/runs\/([^/]+)\/?$/.exec(url.pathname)?.[1];
  if (name === undefined || !nameSchema.safeParse(name).success) throw refuse("has a path that names no run");
  return { host: url.hostname.replace(/^\[(.*)\]$/, "$1"), port: url.port === "" ? 80 : Number(url.port), name };
}

/** `[NAME=]PATH[@WEIGHT]`. */
export function readPart(cwd: string, text: string): NonNullable<RunRequest["dataset"]>[number] {
  const [, named, path = "", weight] = /^(?:([A-Za-z0-9._:-]+)=)?(.+?)(?:@(\d+(?:\.\d+)?))?$/.exec(text) ?? [];
  const input = absoluteInput(cwd, path);
  const parsed = datasetPartSchema.safeParse({ name: named ?? basename(input), inputs: [input], ...(weight === undefined ? {} : { weight: Number(weight) }) });
  if (parsed.success) return parsed.data;
  throw new MwError("usage", `${JSON.stringify(text)} is no part of a mix: ${parsed.error.issues[0]?.message ?? "unknown"}`, { fix: "write PATH, NAME=PATH or NAME=PATH@WEIGHT, with a weight above 0" });
}

function requestOf({ cwd }: AppContext, config: Config, flags: OutsideFlags, tasks: readonly string[]): RunRequest {
  if (tasks.length === 0) throw new MwError("usage", "no tasks are named", { fix: "mw train worlds/terminal --trainer http://127.0.0.1:8790" });
  const sampling = { temperature: config.get("temperature"), top_p: config.get("topP"), max_tokens: config.get("maxTokens"), seed: config.get("samplingSeed") };
  const tokenizer = tokenizerOf(config);
  const price = flags.price ?? config.get("price");
  return runRequestSchema.parse({
    // The same command again is the same run, so nothing is drawn here.
    seed: flags.seed ?? config.get("seed") ?? "0",
    dataset: tasks.map((task) => readPart(cwd, task)),
    harness: (flags.harness ?? config.get("harness") ?? "bash").split(",").map((name) => name.trim()),
    sampling: Object.fromEntries(Object.entries(sampling).filter(([, value]) => value !== null)),
    tokenizer: tokenizer === null ? null : { directory: tokenizer.directory, family: tokenizer.family },
    ignore_limits: flags.ignoreLimits,
    ...(price === null ? {} : { prices: parsePrices(price) }),
    ...(flags.groupSize === undefined ? {} : { group_size: flags.groupSize }),
    ...(flags.batch === undefined ? {} : { batch_groups: flags.batch }),
    ...(flags.maxStaleness === undefined ? {} : { max_staleness: flags.maxStaleness }),
    ...(flags.concurrency === undefined ? {} : { concurrency: flags.concurrency }),
    ...(flags.checkpoint === undefined ? {} : { checkpoint_rollouts: flags.checkpoint === 0 ? "every-turn" : { every_s: flags.checkpoint / 1000 } }),
    ...(config.get("maxTurns") === null ? {} : { budgets: { turns: config.get("maxTurns"), tokens: config.get("tokenBudget") } }),
  });
}

/** The run over the server's own routes, as its trainer sees it. */
class RunApi {
  readonly #url: string;
  readonly #headers: Readonly<Record<string, string>>;

  constructor({ url, keyFile }: OpenServer, key: string | null, name: string) {
    this.#url = `${url}/v1/runs/${name}`;
    this.#headers = { "content-type": "application/json", authorization: `Bearer ${keyFile === null ? (key ?? "") : readFileSync(keyFile, "utf8").trim()}` };
  }

  put(request: RunRequest): Promise<DeliveryStatus> {
    return this.#ask("PUT", "", JSON.stringify(request));
  }

  status(): Promise<DeliveryStatus> {
    return this.#ask("GET", "/status", null);
  }

  async #ask(method: string, path: string, body: string | null): Promise<DeliveryStatus> {
    const response = await fetch(`${this.#url}${path}`, { method, headers: this.#headers, ...(body === null ? {} : { body }) });
    const answer = (await response.json()) as { readonly detail?: string; readonly fix?: string };
    if (!response.ok) throw new MwError(response.status === 409 ? "conflict" : "invalid_input", answer.detail ?? `the server answered ${response.status}`, answer.fix === undefined ? {} : { fix: answer.fix });
    return statusSchema.parse(answer);
  }
}

function printGuide(context: AppContext, { url, keyFile }: OpenServer, name: string, { dataset }: RunRequest): void {
  note(context, `rollouts for a trainer at ${url}, run ${name}`);
  for (const part of dataset ?? []) note(context, printable(`  ${part.name}, weight ${part.weight}: ${part.inputs.join(", ")}`));
  note(context, `export MW_URL=${url} MW_API_KEY=${keyFile === null ? "$MW_API_KEY" : `$(cat ${keyFile})`}`);
  note(context, "nothing begins before the trainer names its policy");
}

function changed(before: DeliveryStatus, after: DeliveryStatus): boolean {
  return lineOf(before) !== lineOf(after);
}

function lineOf({ policy, groups, rollouts }: DeliveryStatus): string {
  const policyText = policy.version === null ? "no policy yet" : `version ${policy.version}${policy.state === "updating" ? ", updating" : ""}`;
  return `${policyText}  ${rollouts.running} rollouts under way, ${rollouts.ended} ended  groups: ${groups.ready} ready, ${groups.leased} leased, ${groups.consumed} consumed, ${groups.failed} failed`;
}

function accountOf({ state, groups, datasets, quarantined }: DeliveryStatus): readonly string[] {
  return [
    `${state}: ${groups.consumed} groups consumed, ${groups.rejected} rejected, ${groups.failed} failed, ${groups.expired} expired`,
    ...Object.entries(datasets).map(([name, { begun, consumed, failed, mean_reward: mean }]) => `  ${name}: ${begun} begun, ${consumed} consumed, ${failed} failed, mean reward ${mean === null ? "none" : mean.toFixed(3)}`),
    ...quarantined.map((task) => `  in quarantine: ${task}`),
  ];
}
