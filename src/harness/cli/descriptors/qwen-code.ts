import type { CliDescriptor } from "../descriptor.ts";

export const qwenCode: CliDescriptor = {
  name: "qwen-code",
  title: "Qwen Code",
  version: "0.24.4",
  dialect: "openai-chat",
  install: { kind: "npm", package: "@qwen-code/qwen-code", before: "2026-11-29", node: "24.22.3" },
  remove: ["*.map", "*.md", "node_modules/.bin", "node_modules/@qwen-code/qwen-code/web-shell", "node_modules/@qwen-code/qwen-code/bundled/browser-use", "*-win32", "*-darwin", "examples"],
  command: ["{node}", "--liftoff-only", "--expose-gc", "{root}/node_modules/@qwen-code/qwen-code/cli.js", "--yolo", "--auth-type", "openai", "-o", "stream-json"],
  instruction: "stdin",
  files: [
    {
      path: "settings.json",
      format: "json",
      content: {
        privacy: { usageStatisticsEnabled: false },
        telemetry: { enabled: false },
        general: { disableAutoUpdate: true, enableAutoUpdate: false },
        security: { auth: { selectedType: "openai" } },
        model: { generationConfig: { contextWindowSize: "{contextTokens}" } },
      },
    },
  ],
  env: { QWEN_HOME: "{home}", OPENAI_API_KEY: "{token}", OPENAI_BASE_URL: "{baseUrl}/v1", OPENAI_MODEL: "{model}", QWEN_CODE_NO_RELAUNCH: "true", QWEN_CODE_SUPPRESS_YOLO_WARNING: "1" },
  // Its commands run in bash.
  companion: { program: "bash", variable: null },
  // Lines of JSON, in which the model's text is escaped.
  endings: [
    { codes: [53], means: "turns", detail: "Its own limit of turns was reached." },
    { text: '"is_error":true[^\\n]*"error":\\{"message":"\\[API Error: [^\\n]*(?:maximum context length|context_length_exceeded|too long)', means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { text: '"is_error":true[^\\n]*"error":\\{"message":"\\[API Error', means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: ["projects"],
  quirks: [
    "Adds two line ends to the task, and rewrites the blanks of one in which `@name` stands; takes one that is nothing but a command of its own, such as `/help`, for that.",
    "Its prompt takes about 19,000 tokens before any work.",
    "Runs with V8's optimising WebAssembly compiler off: with it one rollout takes 1.9 GB and 15 s.",
    "Refuses commands that sleep for long.",
    "An answer that was cut at its limit is asked for again with a larger one.",
  ],
};
