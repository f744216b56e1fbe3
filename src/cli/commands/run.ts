/** `mw run`: checks everything that was given, then runs it. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { messageOf, MwError } from "../../core/errors.ts";
import { CallBoard } from "../../gateway/call-board.ts";
import { parseUpstreamSpec } from "../../gateway/upstreams/spec.ts";
import { DEFAULT_OUTCOME_RULES } from "../../core/outcome.ts";
import { AGENT_NAMES } from "../../harness/agent/agent.ts";
import { isAgent, isAgentCli } from "../../harness/index.ts";
import { absoluteInput } from "../../rollout/inputs.ts";
import { planOf, startRun, type NewRun } from "../../rollout/run.ts";
import type { Config } from "../config.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { note, printJson, printLine, printable } from "../output.ts";
import type { RunFlags } from "../run-flags.ts";
import { makeRunHarness } from "../../rollout/run-harness.ts";
import { conductRun } from "../conduct.ts";
import { linkTo, startPage } from "../show-page.ts";
import { expectServer, startOnServer } from "../run-on-server.ts";
import { expectUpstream } from "../upstream-answers.ts";
import { parsePrices } from "../parsers.ts";
import { readApiKey, tokenizerOf } from "../upstream.ts";

/** The page is there a little longer than the run, so that who looks at it sees the end. */
const PAGE_LINGERS_MS = 2_000;

export async function run(this: AppContext, flags: RunFlags, ...tasks: string[]): Promise<void> {
  const config = loadConfig(this.env, this.cwd, flags);
  const request = newRun(this, config, flags, tasks);
  expectServer(flags);
  // A harness that does not exist or lacks an option is found before anything else is.
  const harnesses = request.harnesses.map((name) => makeRunHarness(name, request));
  const needsModel = harnesses.find((harness) => harness.needsModel);
  if (needsModel !== undefined && request.upstream === null && !flags.dryRun) {
    throw new MwError("usage", `the harness ${needsModel.name} drives a model, and none is named`, { fix: "give --upstream URL and --model NAME, or another --harness (oracle, nop, script)" });
  }
  if (flags.dryRun) {
    await showPlan(this, request, flags.json);
    return;
  }
  if (flags.server !== undefined) {
    await startOnServer(this, { ...flags, server: flags.server }, request);
    return;
  }
  const apiKey = request.upstream === null ? null : readApiKey(request.apiKeyFile, this.env);
  if (request.upstream !== null && needsModel !== undefined) await expectUpstream(request.upstream.url, this.env);
  const board = new CallBoard();
  const page = flags.ui ? await startPage(this, config.home.value, board) : null;
  try {
    await conductRun(this, config, { json: flags.json, quiet: flags.quiet, strict: flags.strict }, (dependencies) =>
      startRun(
        {
          ...dependencies,
          board,
          started: (controller, run) => {
            dependencies.started(controller, run);
            if (page !== null) dependencies.observer.note(`dashboard ${linkTo(page, `/runs/${run}`)}`);
          },
        },
        request,
        apiKey,
      ),
    );
  } finally {
    if (page !== null) {
      await this.runtime.sleep(PAGE_LINGERS_MS);
      await page.close();
    }
  }
}

function newRun(context: AppContext, config: Config, flags: RunFlags, tasks: readonly string[]): NewRun {
  const harnesses = (config.get("harness") ?? "").split(",").map((name) => name.trim());
  if (harnesses.some((name) => name === "")) throw new MwError("usage", `${config.origin("harness")}: an empty name in the list of harnesses ${JSON.stringify(config.get("harness"))}`, { fix: "write names separated by commas: --harness bash,oracle" });
  const repeated = harnesses.find((name, index) => harnesses.indexOf(name) !== index);
  if (repeated !== undefined) throw new MwError("usage", `${config.origin("harness")}: the harness ${repeated} is named twice`, { fix: "name each harness once" });
  if (flags.script !== undefined && !harnesses.includes("script")) throw new MwError("usage", "--script is given, but the harness script is not", { fix: "add --harness script, or leave --script out" });
  if (flags.harnessCommand !== undefined && !harnesses.includes("generic")) throw new MwError("usage", "--harness-command is given, but the harness generic is not", { fix: "add --harness generic, or leave --harness-command out" });
  if (flags.harnessUser !== undefined && !harnesses.some(isAgentCli)) throw new MwError("usage", "--harness-user is given, but no agent CLI is", { fix: "name an agent CLI with --harness (mw harness ls), or leave --harness-user out" });
  const branch = branchOf(flags, harnesses);
  const price = config.get("price");
  return {
    inputs: tasks.map((task) => absoluteInput(context.cwd, task)),
    attempts: branch?.members ?? config.get("attempts") ?? 1,
    seed: config.get("seed") ?? Buffer.from(context.runtime.randomBytes(8)).toString("hex"),
    harnesses,
    script: flags.script === undefined ? null : absoluteInput(context.cwd, flags.script),
    harnessCommand: flags.harnessCommand ?? null,
    harnessUser: flags.harnessUser ?? null,
    agent: agentOptions(context, flags, harnesses),
    upstream: upstreamOf(config, flags.requireTokens),
    ...(price === null ? {} : { prices: parsePrices(price) }),
    apiKeyFile: config.get("apiKeyFile"),
    budgets: { turns: config.get("maxTurns") ?? 100, tokens: config.get("tokenBudget"), commandMs: config.get("commandTimeout") ?? 300_000, outputBytes: 16 * 1024 },
    network: config.get("network"),
    ...allowedOf(config, flags),
    image: flags.image === undefined ? null : absoluteImage(context.cwd, flags.image),
    ignoreLimits: flags.ignoreLimits,
    keepWorkspace: flags.keepWorkspace,
    pauseOnThink: flags.pauseOnThink,
    checkpointEveryMs: flags.checkpoint ?? null,
    takeOverSeconds: takeOverOf(config, flags, harnesses),
    branch,
    backend: config.get("backend") ?? "native",
    timeoutMultiplier: config.get("timeoutMultiplier") ?? 1,
    concurrency: config.get("concurrency") ?? 1,
    durability: config.get("durability") ?? "process",
    rules: DEFAULT_OUTCOME_RULES,
  };
}

function allowedOf(config: Config, { allow }: RunFlags): Pick<NewRun, "allow"> {
  if (allow === undefined) return {};
  const network = config.get("network");
  if (network === "none" || network === "public") throw new MwError("usage", `--allow is given, but the network of every machine is ${network} (${config.origin("network")})`, { fix: "say --network allowlist, or leave one of them out" });
  return { allow };
}

function takeOverOf(config: Config, { takeOver, server }: RunFlags, harnesses: readonly string[]): NewRun["takeOverSeconds"] {
  if (takeOver === undefined) return null;
  if (server !== undefined) throw new MwError("usage", "--take-over is given, but the machines are the server's", { fix: "leave it out" });
  const backend = config.get("backend") ?? "native";
  if (backend !== "native") throw new MwError("usage", `--take-over is given, but machines of the backend ${backend} end with their controller (${config.origin("backend")})`, { fix: "leave it out, or say --backend native" });
  const other = harnesses.find((name) => !isAgentCli(name) && !isAgent(name));
  if (other !== undefined) throw new MwError("usage", `--take-over is given, but nobody can go on with the harness ${other} when this command has died`, { fix: `leave it out, or name an agent CLI or a white-box harness with --harness (mw harness ls)` });
  return takeOver;
}

function branchOf({ checkpoint, branch, branchTurn, attempts }: RunFlags, harnesses: readonly string[]): NewRun["branch"] {
  const whiteBox = `name a white-box harness with --harness (${AGENT_NAMES.join(", ")})`;
  const other = harnesses.find((name) => !isAgent(name));
  for (const [flag, value] of [["--checkpoint", checkpoint], ["--branch", branch]] as const) {
    if (value !== undefined && other !== undefined) throw new MwError("usage", `${flag} is given, but the harness ${other} cannot go on in the middle of its work`, { fix: `leave it out, or ${whiteBox}` });
  }
  if (branch === undefined) {
    if (branchTurn !== undefined) throw new MwError("usage", "--branch-turn says where, but nothing branches", { fix: "add --branch K" });
    return null;
  }
  if (attempts !== undefined) throw new MwError("usage", "--branch makes the group of each task, and so does --attempts", { fix: "leave one of them out" });
  return { members: branch, turn: branchTurn ?? 1 };
}

function agentOptions({ cwd }: AppContext, { systemPrompt, history, historyTokens }: RunFlags, harnesses: readonly string[]): NewRun["agent"] {
  const given = Object.entries({ "--system-prompt": systemPrompt, "--history": history, "--history-tokens": historyTokens }).find(([, value]) => value !== undefined);
  if (given !== undefined && !harnesses.some(isAgent)) throw new MwError("usage", `${given[0]} is given, but no harness that has it`, { fix: `leave it out, or name a white-box harness with --harness (${AGENT_NAMES.join(", ")})` });
  if (historyTokens !== undefined && history === undefined) throw new MwError("usage", "--history-tokens says when, but not what is to be done", { fix: "add --history trim or --history summarise" });
  return {
    ...(systemPrompt === undefined ? {} : { systemPrompt: systemPrompt === "none" ? null : readPrompt(absoluteInput(cwd, systemPrompt)) }),
    ...(history === undefined ? {} : { history }),
    ...(historyTokens === undefined ? {} : { historyTokens }),
  };
}

function readPrompt(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new MwError("invalid_input", `cannot read the system prompt: ${messageOf(error)}`, { fix: "give --system-prompt a readable file, or none", cause: error });
  }
}

/** A reference that means the same from any working directory. */
function absoluteImage(cwd: string, reference: string): string {
  const match = /^(dir|tar|oci|docker-archive):(?!\/)(.+)$/.exec(reference);
  return match === null ? reference : `${match[1]}:${join(cwd, match[2] ?? "")}`;
}

function upstreamOf(config: Config, requireTokens: boolean): NewRun["upstream"] {
  const url = config.get("upstream");
  const model = config.get("model");
  if (url === null) return null;
  const spec = parseUpstreamSpec(url, config.origin("upstream"));
  if (model === null) throw new MwError("usage", "--upstream is given, but no model", { fix: "add --model NAME, as the server lists it under /v1/models" });
  const sampling: Record<string, number> = {};
  for (const [key, value] of [["temperature", config.get("temperature")], ["top_p", config.get("topP")], ["seed", config.get("samplingSeed")], ["max_tokens", config.get("maxTokens")]] as const) if (value !== null) sampling[key] = value;
  return { url: `${spec.kind}=${spec.url}`, model, sampling, requireTokens, tokenizer: tokenizerOf(config) };
}

async function showPlan(context: AppContext, request: NewRun, json: boolean): Promise<void> {
  const groups: { task: string; family: string; digest: string | null; directory: string; error: string | null; attempts: readonly { attempt: number; harness: string; seed: string }[] }[] = [];
  const refused: { source: string; error: { code: string; message: string; fix: string | null } }[] = [];
  for await (const item of planOf(request)) {
    if (item.kind === "refused") refused.push({ source: item.source, error: item.error });
    else if (item.kind === "broken") groups.push({ task: item.reference.name, family: item.reference.family, digest: null, directory: item.reference.directory, error: item.error.message, attempts: item.attempts });
    else groups.push({ task: item.task.name, family: item.task.family, digest: item.task.digest, directory: item.task.directory, error: null, attempts: item.attempts });
  }
  for (const { source, error } of refused) note(context, printable(`${source}: ${error.message}`));
  for (const { directory, error } of groups) if (error !== null) note(context, printable(`${directory}: ${error}`));
  if (groups.every((group) => group.error !== null)) {
    throw new MwError("invalid_input", "nothing that was given can run", { fix: "name task directories, directories of tasks, or a dataset file" });
  }
  if (json) {
    printJson(context, { dryRun: true, seed: request.seed, harnesses: request.harnesses, rollouts: groups.length * request.attempts, groups, refused });
    return;
  }
  for (const { task, family, attempts } of groups) printLine(context, printable(`${family}/${task}: ${attempts.map(({ attempt, harness }) => `${attempt}:${harness}`).join(" ")}`));
  printLine(context, `${groups.length} tasks x ${request.attempts} attempts = ${groups.length * request.attempts} rollouts, ${request.concurrency} at once, seed ${request.seed}`);
}
