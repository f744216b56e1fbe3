/** The commands around runs: resume, runs, show, export. */
import { buildCommand, type Command } from "@stricli/core";
import { LIMITS } from "../core/limits.ts";
import { BUILDERS } from "../gateway/samples/sample.ts";
import { EXPORT_FORMATS } from "../rollout/export.ts";
import type { ExportFlags } from "./commands/export.ts";
import type { ResumeFlags } from "./commands/resume.ts";
import type { ShowFlags } from "./commands/show.ts";
import type { AppContext } from "./context.ts";
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
      apiKeyFile: { kind: "parsed", parse: textParser, optional: true, placeholder: "file", brief: "file that holds the upstream's API key, instead of the run's" },
      strict: { kind: "boolean", default: false, withNegated: false, brief: "exit with 1 when a rollout did not score" },
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
      tokens: { kind: "boolean", default: false, withNegated: false, brief: "of a rollout: its model calls, how they hang together, and which of their text is trained" },
      builder,
    },
    positional: { kind: "tuple", parameters: [{ parse: textParser, placeholder: "run|rollout|session", brief: "id of a run, of a rollout, or of a session of mw gateway; latest is the last run" }] },
  },
  docs: { brief: "Show a run (rewards, pass@k, outcomes, time by phase) or a rollout (timeline, transcript, commands, verdict)" },
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
