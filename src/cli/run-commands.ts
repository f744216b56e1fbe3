/** The commands around runs: resume, runs, show, export. */
import { buildCommand, type Command } from "@stricli/core";
import { LIMITS } from "../core/limits.ts";
import { BUILDERS } from "../gateway/samples/sample.ts";
import { EXPORT_FORMATS } from "../rollout/export.ts";
import type { ExportFlags } from "./commands/export.ts";
import type { ResumeFlags } from "./commands/resume.ts";
import type { ReverifyFlags } from "./commands/reverify.ts";
import type { ShowFlags } from "./commands/show.ts";
import type { AppContext } from "./context.ts";
import { SERVER_FLAGS } from "./run-flags.ts";
import { choiceParser, integerParser, textParser } from "./parsers.ts";

const json = { kind: "boolean", default: false, withNegated: false, brief: "print one JSON document on stdout" } as const;
const builder = {
  kind: "parsed",
  parse: choiceParser([...BUILDERS]),
  default: "prefix-merge",
  placeholder: BUILDERS.join("|"),
  brief: "how samples are cut: per-call, one a call; prefix-merge, one for all calls whose tokens extend each other; realign, also across short answers that the agent spelt anew (not trained then)",
} as const;
const runArgument = { parse: textParser, placeholder: "run", brief: "id of a run, a unique beginning of it, or latest" } as const;

export const resumeCommand: Command<AppContext> = buildCommand<ResumeFlags, [string], AppContext>({
  loader: async () => (await import("./commands/resume.ts")).resume,
  parameters: {
    flags: {
      concurrency: { kind: "parsed", parse: integerParser(1, LIMITS.sandboxesPerHost / 2), optional: true, placeholder: "n", brief: "rollouts alive at once, instead of the run's" },
      errors: { kind: "boolean", default: false, withNegated: false, brief: "also begin again what ended in a failure of a machine, a model server or a harness, with the same seeds; the old records stand" },
      apiKeyFile: { kind: "parsed", parse: textParser, optional: true, placeholder: "file", brief: "file that holds the upstream's API key, instead of the run's" },
      strict: { kind: "boolean", default: false, withNegated: false, brief: "exit with 1 when a rollout did not score" },
      ...SERVER_FLAGS,
      json,
      quiet: { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" },
    },
    positional: { kind: "tuple", parameters: [runArgument] },
    aliases: { j: "concurrency", q: "quiet" },
  },
  docs: { brief: "Go on with a run after a crash or an interrupt; what is recorded never runs twice" },
});

export const runsCommand: Command<AppContext> = buildCommand<{ readonly json: boolean; readonly limit: number }, [], AppContext>({
  loader: async () => (await import("./commands/runs.ts")).runs,
  parameters: { flags: { json, limit: { kind: "parsed", parse: integerParser(1, 1_000_000), default: "1000", placeholder: "n", brief: "only the newest n" } } },
  docs: { brief: "List runs, newest first" },
});

export const showCommand: Command<AppContext> = buildCommand<ShowFlags, [string], AppContext>({
  loader: async () => (await import("./commands/show.ts")).show,
  parameters: {
    flags: {
      json,
      all: { kind: "boolean", default: false, withNegated: false, brief: "every rollout, and whole outputs" },
      web: { kind: "boolean", default: false, withNegated: false, brief: "serve the dashboard at that run or rollout on this host until Ctrl-C, and print the link" },
      tokens: { kind: "boolean", default: false, withNegated: false, brief: "of a rollout: its model calls, how they hang together, and which of their text is trained" },
      builder,
    },
    positional: { kind: "tuple", parameters: [{ parse: textParser, placeholder: "run|rollout|session", brief: "id of a run, of a rollout, or of a session of mw gateway; latest is the last run" }] },
  },
  docs: { brief: "Show a run (rewards, pass@k, outcomes, time by phase) or a rollout (timeline, transcript, commands, verdict)" },
});

export const reverifyCommand: Command<AppContext> = buildCommand<ReverifyFlags, [string], AppContext>({
  loader: async () => (await import("./commands/reverify.ts")).reverifyRun,
  parameters: {
    flags: {
      task: { kind: "parsed", parse: textParser, placeholder: "dir", brief: "directory of the task with the verifier that is to speak now; its environment must be what it was" },
      concurrency: { kind: "parsed", parse: integerParser(1, LIMITS.sandboxesPerHost / 2), default: "1", placeholder: "n", brief: "workspaces verified at once" },
      json,
      quiet: { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" },
    },
    positional: { kind: "tuple", parameters: [runArgument] },
    aliases: { j: "concurrency", q: "quiet" },
  },
  docs: {
    brief: "Run a changed verifier over what the agents of a run left, and list what its rewards touch",
    fullDescription:
      "Run a changed verifier over what the agents of a run left, and list what its rewards touch.\n\nEach kept workspace (mw run --keep-workspace; keep_workspaces in runs of trainers) is put into a fresh machine on its image and verified with the same care as the first time. The run's records stay as they are: new verdicts stand beside them in the rollouts' directories, under reverified/.\n\nOf rewards that are other than recorded it says which samples carried them, and which leases, trainer steps and checkpoints used those.",
  },
});

export const exportCommand: Command<AppContext> = buildCommand<ExportFlags, [string], AppContext>({
  loader: async () => (await import("./commands/export.ts")).exportRun,
  parameters: {
    flags: {
      format: {
        kind: "parsed",
        parse: choiceParser([...EXPORT_FORMATS]),
        default: "jsonl",
        placeholder: EXPORT_FORMATS.join("|"),
        brief: "jsonl: one document a rollout, with everything recorded and its samples; atif: one trajectory in the Agent Trajectory Interchange Format; parquet, safetensors: the samples, for trainers",
      },
      out: { kind: "parsed", parse: textParser, optional: true, placeholder: "file", brief: "write there; parquet and safetensors need it, the others go to stdout without it" },
      builder,
      maxTokens: { kind: "parsed", parse: integerParser(1, 2 ** 31 - 1), optional: true, placeholder: "n", brief: "cut samples at this many tokens" },
      scoredOnly: { kind: "boolean", default: false, withNegated: false, brief: "leave out rollouts that did not score" },
    },
    positional: { kind: "tuple", parameters: [runArgument] },
  },
  docs: { brief: "Export a run's recorded rollouts and their samples" },
});
