import type { CliDescriptor } from "../descriptor.ts";

export const claudeCode: CliDescriptor = {
  name: "claude-code",
  title: "Claude Code",
  version: "2.1.332",
  dialect: "anthropic",
  install: { kind: "npm", package: "@anthropic-ai/claude-code", before: "2026-11-29", node: null },
  remove: ["node_modules/.bin", "node_modules/@anthropic-ai/claude-code", "node_modules/@anthropic-ai/claude-code-*-musl"],
  command: ["{root}/node_modules/@anthropic-ai/claude-code-{platform}/claude", "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions", "--model", "{model}", "--session-id", "{uuid}"],
  instruction: "stdin",
  files: [],
  env: {
    CLAUDE_CONFIG_DIR: "{home}",
    CLAUDE_CODE_TMPDIR: "{home}/tmp",
    ANTHROPIC_BASE_URL: "{baseUrl}",
    ANTHROPIC_API_KEY: "{token}",
    ANTHROPIC_AUTH_TOKEN: "",
    ANTHROPIC_DEFAULT_OPUS_MODEL: "{model}",
    ANTHROPIC_DEFAULT_SONNET_MODEL: "{model}",
    ANTHROPIC_DEFAULT_HAIKU_MODEL: "{model}",
    CLAUDE_CODE_SUBAGENT_MODEL: "{model}",
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    DISABLE_AUTOUPDATER: "1",
    DISABLE_PROMPT_CACHING: "1",
    CLAUDE_CODE_ATTRIBUTION_HEADER: "0",
    CLAUDE_CODE_MAX_RETRIES: "4",
    CLAUDE_CODE_MAX_CONTEXT_TOKENS: "{contextTokens}",
    CLAUDE_CODE_MAX_OUTPUT_TOKENS: "{outputTokens}",
  },
  rootEnv: { IS_SANDBOX: "1" },
  // The last line of its output is a JSON document of its own, in which the model's text is escaped.
  // Its commands run in bash or zsh, and in nothing else.
  companion: { program: "bash", variable: "CLAUDE_CODE_SHELL" },
  endings: [
    { text: '"terminal_reason":"prompt_too_long"|"result":"Prompt is too long', means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { text: '"subtype":"error_max_turns"', means: "turns", detail: "Its own limit of turns was reached." },
    { text: '"terminal_reason":"api_error"', means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: ["projects"],
  quirks: [
    "Takes a task that is nothing but a command of its own, such as `/help`, for that; one that begins with a path is sent.",
    "As root it skips permissions only with IS_SANDBOX=1, which is set for it.",
    "Runs commands with bash or zsh only; an image without bash gets the baking host's, for its commands alone.",
    "Messages of role `system` stand in the middle of its conversations.",
    "After a context overflow it summarises and goes on in a fresh conversation.",
  ],
};
