import type { CliDescriptor } from "../descriptor.ts";

export const geminiCli: CliDescriptor = {
  name: "gemini-cli",
  title: "Gemini CLI",
  version: "0.61.0",
  dialect: "gemini",
  install: { kind: "npm", package: "@google/gemini-cli", before: "2026-11-29", node: "24.22.3" },
  remove: ["*.map", "*.md", "node_modules/.bin", "node_modules/node-pty", "node_modules/nan", "node_modules/node-addon-api", "node_modules/@google/gemini-cli/bundle/bundled"],
  command: ["{node}", "{root}/node_modules/@google/gemini-cli/bundle/gemini.js", "--yolo", "-o", "stream-json", "-m", "{model}"],
  instruction: "stdin",
  files: [
    {
      path: ".gemini/settings.json",
      format: "json",
      content: {
        security: { auth: { selectedType: "gemini-api-key" }, folderTrust: { enabled: false } },
        privacy: { usageStatisticsEnabled: false },
        telemetry: { enabled: false },
        general: { enableAutoUpdate: false, enableAutoUpdateNotification: false },
        model: { disableLoopDetection: true },
      },
    },
  ],
  env: { GEMINI_CLI_HOME: "{home}", GOOGLE_GEMINI_BASE_URL: "{baseUrl}", GEMINI_API_KEY: "{token}", GEMINI_CLI_NO_RELAUNCH: "true" },
  endings: [],
  logs: [".gemini/tmp"],
  quirks: [],
};
