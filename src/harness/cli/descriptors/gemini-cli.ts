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
        general: { enableAutoUpdate: false, enableAutoUpdateNotification: false, maxAttempts: 4 },
        model: { disableLoopDetection: true },
      },
    },
  ],
  env: { GEMINI_CLI_HOME: "{home}", GOOGLE_GEMINI_BASE_URL: "{baseUrl}", GEMINI_API_KEY: "{token}", GEMINI_CLI_NO_RELAUNCH: "true" },
  // Its commands run in bash.
  companion: { program: "bash", variable: null },
  // Lines of JSON, in which the model's text is escaped. Exit codes of API errors are the HTTP status modulo 256.
  endings: [
    { codes: [41], means: "harness_error", detail: "Its authentication settings were refused." },
    { codes: [53], means: "turns", detail: "Its own limit of turns was reached." },
    { text: '"status":"error","error":\\{"type":"[^"]*","message":"[^\\n]*exceeds the maximum number of tokens', means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { text: '"status":"error","error":\\{"type":"[^"]*","message":"\\[API Error', means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: [".gemini/tmp"],
  quirks: [
    "Refuses commands with command substitution.",
    "Chokes on comments in an event stream.",
    "Does not try a stream again that broke off, and does not shorten a conversation that no longer fits.",
    "Results of commands hold a process number.",
    "Ends with 0 when it is told to stop by a signal.",
  ],
};
