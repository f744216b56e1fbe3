import type { CliDescriptor } from "../descriptor.ts";

export const codex: CliDescriptor = {
  name: "codex",
  title: "Codex CLI",
  version: "0.171.0",
  dialect: "openai-responses",
  install: { kind: "npm", package: "@openai/codex", before: "2026-11-29", node: null },
  remove: ["node_modules/.bin", "node_modules/@openai/codex", "voice", "bwrap"],
  command: ["{root}/node_modules/@openai/codex-{platform}/vendor/{triple}/bin/codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-"],
  instruction: "stdin",
  files: [
    {
      path: "config.toml",
      format: "toml",
      content: {
        model: "{model}",
        model_provider: "manyworlds",
        model_context_window: "{contextTokens}",
        check_for_update_on_startup: false,
        analytics: { enabled: false },
        feedback: { enabled: false },
        features: { plugins: false, apps: false, remote_plugin: false, unbounded_connection_retries: false },
        model_providers: { manyworlds: { name: "manyworlds", base_url: "{baseUrl}/v1", env_key: "MW_MODEL_TOKEN", wire_api: "responses" } },
      },
    },
  ],
  env: { CODEX_HOME: "{home}", MW_MODEL_TOKEN: "{token}" },
  // Lines of JSON, in which the model's text is escaped.
  endings: [
    { text: '"type":"turn\\.failed","error":\\{"message":"Codex ran out of room', means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { text: '"type":"turn\\.failed","error":\\{"message":"Incomplete response returned, reason: max_output_tokens', means: "tokens", detail: "An answer was cut off by its limit of tokens." },
    { text: '"type":"turn\\.failed"', means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: ["sessions"],
  quirks: [
    "Hangs up as soon as the answer's terminal event is there.",
    "Results of commands hold random ids and times.",
    "The model's name decides its tools: names that it knows get a tool that takes JavaScript instead of a shell.",
    "Puts its own ripgrep on the PATH of commands.",
  ],
};
