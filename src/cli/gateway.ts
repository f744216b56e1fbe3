/** `mw gateway`: names, flags and help. */
import { buildCommand, type Command } from "@stricli/core";
import type { AppContext } from "./context.ts";
import { integerParser, textParser } from "./parsers.ts";
import { setting } from "./run-flags.ts";
import type { SettingValue } from "./settings.ts";

export type GatewayFlags = { readonly [Name in "upstream" | "model" | "apiKeyFile" | "tokenizer" | "family" | "durability"]?: SettingValue<Name> } & {
  readonly port: number;
  readonly session?: readonly string[];
  readonly dir?: string;
  readonly requireTokens: boolean;
  readonly json: boolean;
  readonly quiet: boolean;
};

const DEFAULT_PORT = "20411";

export const gatewayCommand: Command<AppContext> = buildCommand<GatewayFlags, [], AppContext>({
  loader: async () => (await import("./commands/gateway.ts")).gateway,
  parameters: {
    flags: {
      upstream: setting("upstream", "[kind=]url"),
      model: setting("model", "name"),
      apiKeyFile: setting("apiKeyFile", "file"),
      tokenizer: setting("tokenizer", "directory"),
      family: setting("family", "name"),
      durability: setting("durability", "process|power"),
      port: { kind: "parsed", parse: integerParser(0, 65_535), default: DEFAULT_PORT, placeholder: "n", brief: "port on 127.0.0.1, 0 for any free one" },
      session: { kind: "parsed", parse: textParser, variadic: true, optional: true, placeholder: "name", brief: "serve only sessions opened now, each with a token that is printed; repeatable" },
      dir: { kind: "parsed", parse: textParser, optional: true, placeholder: "directory", brief: "where sessions are recorded (default: gateway/ in MW_HOME)" },
      requireTokens: { kind: "boolean", default: false, withNegated: false, brief: "refuse to start unless the server returns exact token ids and logprobs, which training needs" },
      json: { kind: "boolean", default: false, withNegated: false, brief: "print addresses and sessions as one JSON document" },
      quiet: { kind: "boolean", default: false, withNegated: false, brief: "no line on stderr for each session and call" },
    },
    aliases: { q: "quiet" },
  },
  docs: {
    brief: "A model API on this host that records every call: point any agent at it",
    fullDescription: [
      "Speaks OpenAI chat completions and Responses, Anthropic Messages and Gemini, and talks to one model server. Every call is recorded with its exact tokens where the server gives them.",
      "An agent's API key names its session: each new key opens one, so give each agent, or each attempt, a key of its own. With --session only the named sessions are served.",
      "mw show SESSION shows the traces. Ctrl-C ends it.",
    ].join("\n"),
  },
});
