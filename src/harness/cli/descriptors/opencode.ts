import type { CliDescriptor } from "../descriptor.ts";

export const opencode: CliDescriptor = {
  name: "opencode",
  title: "OpenCode",
  version: "1.18.33",
  dialect: "openai-chat",
  install: { kind: "npm", package: "opencode-ai", before: "2026-11-29", node: null },
  // The build for processors without AVX2 runs everywhere.
  remove: ["node_modules/.bin", "node_modules/opencode-ai", "node_modules/opencode-linux-x64", "node_modules/*-musl"],
  command: ["{root}/node_modules/opencode-{platform}-baseline/bin/opencode", "run", "--auto", "--format", "json", "--title", "task", "-m", "manyworlds/{model}"],
  instruction: "stdin",
  files: [
    {
      path: "opencode.json",
      format: "json",
      content: {
        share: "disabled",
        autoupdate: false,
        enabled_providers: ["manyworlds"],
        model: "manyworlds/{model}",
        small_model: "manyworlds/{model}",
        provider: {
          manyworlds: {
            npm: "@ai-sdk/openai-compatible",
            options: { baseURL: "{baseUrl}/v1", apiKey: "{token}" },
            models: { "{model}": { limit: { context: "{contextTokens}", output: "{outputTokens}" } } },
          },
        },
      },
    },
  ],
  env: {
    BUN_TMPDIR: "{home}/tmp",
    OPENCODE_CONFIG: "{home}/opencode.json",
    XDG_DATA_HOME: "{home}/data",
    XDG_STATE_HOME: "{home}/state",
    XDG_CACHE_HOME: "{home}/cache",
    XDG_CONFIG_HOME: "{home}/config",
    OPENCODE_DISABLE_MODELS_FETCH: "1",
    OPENCODE_DISABLE_AUTOUPDATE: "1",
    OPENCODE_DISABLE_LSP_DOWNLOAD: "1",
    OPENCODE_DISABLE_DEFAULT_PLUGINS: "1",
    OPENCODE_PURE: "1",
  },
  // Lines of JSON, in which the model's text is escaped. It ends with 1 after any error, also when it recovered and finished.
  endings: [
    { text: '"type":"step_finish"[^\\n]*"reason":"stop"[^\\n]*\\s*(?![\\s\\S])', means: "finished", detail: "It finished after an error that it recovered from." },
    { text: '"type":"error"[^\\n]*"name":"ContextOverflowError"', means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { text: '"type":"error"[^\\n]*"name":"[^"]*Error"', means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: ["data/opencode/opencode.db", "data/opencode/log"],
  quirks: [
    "Tries a failing model API again for one and a half minutes.",
    "Summarises without end when the reported usage stays near the configured window.",
    "Hides the exit code of a failing command from the model.",
    "Stops a command after about 120 s.",
    "Its commands see XDG directories below /.mw/home, because it has no other way to keep its files apart.",
  ],
};
