/** The flags of `mw run`. */
import { buildCommand, type Command } from "@stricli/core";
import { LIMITS } from "../core/limits.ts";
import { HISTORY_RULES, type HistoryRule } from "../harness/agent/setup.ts";
import { SCRIPT_HELP } from "../harness/script.ts";
import type { AppContext } from "./context.ts";
import { SETTINGS, type SettingName, type SettingValue } from "./settings.ts";
import { choiceParser, everyTurnParser, hostParser, integerParser, textParser } from "./parsers.ts";

type SettingFlag = Exclude<SettingName, "maxSandboxes" | "maxSandboxesPerOwner" | "maxSnapshotsPerOwner" | "maxDiskPerOwner" | "warmSandboxes">;

export type RunFlags = { readonly [Name in SettingFlag]?: SettingValue<Name> } & {
  readonly script?: string;
  readonly harnessCommand?: string;
  readonly harnessUser?: string;
  readonly systemPrompt?: string;
  readonly history?: HistoryRule;
  readonly historyTokens?: number;
  readonly image?: string;
  readonly allow?: readonly string[];
  readonly ignoreLimits: boolean;
  readonly keepWorkspace: boolean;
  readonly requireTokens: boolean;
  readonly pauseOnThink: boolean;
  readonly checkpoint?: number;
  readonly takeOver?: number;
  readonly branch?: number;
  readonly branchTurn?: number;
  readonly strict: boolean;
  readonly dryRun: boolean;
  readonly ui: boolean;
  readonly server?: string;
  readonly interrupt?: Interrupt;
  readonly json: boolean;
  readonly quiet: boolean;
};

/** A setting as a flag: its parser, its help, no default here (files and environment come between). */
export function setting<Name extends SettingName>(name: Name, placeholder: string) {
  const { parse, brief, env } = SETTINGS[name];
  return { kind: "parsed", parse: parse as (text: string) => SettingValue<Name>, optional: true, placeholder, brief: `${brief} (${env})` } as const;
}

/** What Ctrl-C does to a run on a server. */
export type Interrupt = "stop" | "detach";

export const SERVER_FLAGS = {
  server: { kind: "parsed", parse: textParser, optional: true, placeholder: "url", brief: "run on the machines of the mw serve at that address (its key in MW_API_KEY; paths are its host's), and follow the run from here" },
  interrupt: { kind: "parsed", parse: choiceParser(["stop", "detach"]), optional: true, placeholder: "stop|detach", brief: "with --server, what Ctrl-C does: stop the run (default), or leave it to the server" },
} as const;

export const runCommand: Command<AppContext> = buildCommand<RunFlags, string[], AppContext>({
  loader: async () => (await import("./commands/run.ts")).run,
  parameters: {
    flags: {
      harness: setting("harness", "name[,name]"),
      script: { kind: "parsed", parse: textParser, optional: true, placeholder: "file", brief: SCRIPT_HELP },
      harnessCommand: { kind: "parsed", parse: textParser, optional: true, placeholder: "command", brief: "what the generic harness runs, by the image's shell; the task is its input, the model where OPENAI_BASE_URL and the like say" },
      harnessUser: { kind: "parsed", parse: textParser, optional: true, placeholder: "user", brief: "user that runs agent CLIs, instead of the task's" },
      systemPrompt: { kind: "parsed", parse: textParser, optional: true, placeholder: "file|none", brief: "system prompt of the white-box harnesses, instead of their own" },
      history: {
        kind: "parsed",
        parse: choiceParser([...HISTORY_RULES]),
        optional: true,
        placeholder: HISTORY_RULES.join("|"),
        brief: "what the white-box harnesses do when the conversation no longer fits the model: stop, trim (leave out older outputs) or summarise (go on from a summary)",
      },
      historyTokens: { kind: "parsed", parse: integerParser(1, 2 ** 31 - 1), optional: true, placeholder: "n", brief: "apply --history already when a prompt has more tokens than this" },
      upstream: setting("upstream", "[kind=]url"),
      model: setting("model", "name"),
      tokenizer: setting("tokenizer", "directory"),
      family: setting("family", "name"),
      apiKeyFile: setting("apiKeyFile", "file"),
      price: setting("price", "input=x,output=x"),
      attempts: setting("attempts", "n"),
      concurrency: setting("concurrency", "n"),
      seed: setting("seed", "text"),
      temperature: setting("temperature", "x"),
      topP: setting("topP", "x"),
      samplingSeed: setting("samplingSeed", "n"),
      maxTokens: setting("maxTokens", "n"),
      maxTurns: setting("maxTurns", "n"),
      tokenBudget: setting("tokenBudget", "n"),
      commandTimeout: setting("commandTimeout", "time"),
      backend: setting("backend", "backend"),
      network: setting("network", "none|allowlist|public"),
      allow: { kind: "parsed", parse: hostParser, variadic: true, optional: true, placeholder: "host", brief: "host that machines may reach over HTTP and HTTPS, besides those that tasks name, wherever that is not everything; repeatable" },
      image: { kind: "parsed", parse: textParser, optional: true, placeholder: "reference", brief: "image of every task, instead of what tasks declare" },
      ignoreLimits: { kind: "boolean", default: false, withNegated: false, brief: "run although limits that tasks declare cannot be enforced here" },
      keepWorkspace: { kind: "boolean", default: false, withNegated: false, brief: "keep what each agent left, as workspace.tar in the rollout's directory" },
      requireTokens: { kind: "boolean", default: false, withNegated: false, brief: "refuse to start unless the upstream returns exact token ids and logprobs, which training needs" },
      pauseOnThink: { kind: "boolean", default: false, withNegated: false, brief: "freeze a machine, with all that its agent left running, while its model thinks" },
      checkpoint: {
        kind: "parsed",
        parse: everyTurnParser,
        optional: true,
        placeholder: "every-turn|time",
        brief: "keep each rollout of a white-box harness between its turns, behind every one or at most so often (such as 30s), so that mw resume goes on in the middle of it",
      },
      takeOver: { kind: "parsed", parse: integerParser(1, LIMITS.takeOverSeconds), optional: true, placeholder: "seconds", brief: "machines outlive this command's death that long, and mw resume goes on with the agents at work in them" },
      branch: { kind: "parsed", parse: integerParser(2, 1000), optional: true, placeholder: "k", brief: "make of each task one group of k rollouts that share their first turns: all but the first branch from it (white-box harnesses)" },
      branchTurn: { kind: "parsed", parse: integerParser(1, 1_000_000), optional: true, placeholder: "n", brief: "the turn of the first rollout behind which --branch branches (default 1)" },
      timeoutMultiplier: setting("timeoutMultiplier", "x"),
      durability: setting("durability", "process|power"),
      strict: { kind: "boolean", default: false, withNegated: false, brief: "exit with 1 when a rollout did not score" },
      dryRun: { kind: "boolean", default: false, withNegated: false, brief: "show what would run, and run nothing" },
      ui: { kind: "boolean", default: false, withNegated: false, brief: "serve the dashboard on this host while the run goes on, and print the link" },
      ...SERVER_FLAGS,
      json: { kind: "boolean", default: false, withNegated: false, brief: "print one JSON document on stdout" },
      quiet: { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" },
    },
    positional: {
      kind: "array",
      minimum: 1,
      parameter: { parse: textParser, placeholder: "task", brief: "task directory, directory of tasks, or dataset file" },
    },
    aliases: { n: "attempts", j: "concurrency", q: "quiet" },
  },
  docs: {
    brief: "Run attempts at tasks, each in a machine of its own, and grade them",
    fullDescription: [
      "Runs n attempts at each task, each in its own fresh machine, and grades each in another one. What happened is in MW_HOME/runs/<run>/ and is never run twice: mw resume goes on after a crash.",
      "Ctrl-C once: nothing new starts, what runs may finish for a while; twice: everything ends now. Either way mw resume goes on.",
      "With --server the run goes on at the server whatever becomes of this command, also when the server is started anew; mw resume RUN --server URL follows it again.",
      "Exit codes: 0 done; 1 something asked for did not hold (an input was not there, a rollout did not score under --strict); 2 bad usage or input; 3 the host lacks something; 130 interrupted.",
    ].join("\n"),
  },
});
