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
  endings: [],
  logs: ["sessions", "logs"],
  quirks: [],
};
