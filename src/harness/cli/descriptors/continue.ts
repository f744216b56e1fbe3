import type { CliDescriptor } from "../descriptor.ts";

export const continueCli: CliDescriptor = {
  name: "continue",
  title: "Continue CLI",
  version: "1.5.47",
  dialect: "openai-chat",
  install: { kind: "npm", package: "@continuedev/cli", before: "2026-11-29", node: "24.22.3" },
  remove: ["*.map", "*.md", "node_modules/.bin", "node_modules/@continuedev/cli/media", "meta.json"],
  command: ["{node}", "{root}/node_modules/@continuedev/cli/dist/cn.js", "--config", "{home}/config.yaml", "--auto", "-p", "--"],
  instruction: "argument",
  trimsInstruction: true,
  files: [
    {
      path: "config.yaml",
      format: "json",
      content: {
        name: "manyworlds",
        version: "1.0.0",
        schema: "v1",
        models: [
          {
            name: "{model}",
            provider: "openai",
            model: "{model}",
            apiBase: "{baseUrl}/v1",
            apiKey: "{token}",
            roles: ["chat", "edit", "apply"],
            capabilities: ["tool_use"],
            defaultCompletionOptions: { contextLength: "{contextTokens}", maxTokens: "{outputTokens}" },
          },
        ],
      },
    },
  ],
  env: { CONTINUE_GLOBAL_DIR: "{home}", CONTINUE_TELEMETRY_ENABLED: "0", CONTINUE_METRICS_ENABLED: "0", CONTINUE_CLI_ENABLE_TELEMETRY: "0" },
  // Its commands run in bash.
  companion: { program: "bash", variable: "SHELL" },
  endings: [
    { text: '\\{"status":"error","message":"Context length exceeded', means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { text: '\\{"status":"error","message":', means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: ["sessions", "logs"],
  quirks: ["Strips blanks at both ends of the task.", "Hides the exit code of a failing command from the model.", "Ends with 0 when it is told to stop by a signal.", "A context overflow ends it at once."],
};
