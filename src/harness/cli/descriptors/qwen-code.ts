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
      },
    },
  ],
  env: { QWEN_HOME: "{home}", OPENAI_API_KEY: "{token}", OPENAI_BASE_URL: "{baseUrl}/v1", OPENAI_MODEL: "{model}", QWEN_CODE_NO_RELAUNCH: "true", QWEN_CODE_SUPPRESS_YOLO_WARNING: "1" },
  endings: [],
  logs: ["projects"],
  quirks: [],
};
