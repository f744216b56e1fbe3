import type { CliDescriptor } from "../descriptor.ts";

export const pi: CliDescriptor = {
  name: "pi",
  title: "Pi coding agent",
  version: "0.73.1",
  dialect: "openai-chat",
  install: { kind: "npm", package: "@mariozechner/pi-coding-agent", before: "2026-11-25", node: "24.22.3" },
  remove: ["freebsd_*", "openbsd_*", "darwin_*", "win32_*", "musl_*", "linux_*32*", "linux_riscv64d", "linux_loong64", "*.map", "*.md", "*.d.ts", "*.d.mts", "*.d.cts", "node_modules/.bin"],
  command: ["{node}", "{root}/node_modules/@mariozechner/pi-coding-agent/dist/cli.js", "-p", "--provider", "manyworlds", "--model", "{model}"],
  instruction: "split",
  files: [
    {
      path: "models.json",
      format: "json",
      content: {
        providers: {
          manyworlds: { baseUrl: "{baseUrl}/v1", api: "openai-completions", apiKey: "{token}", models: [{ id: "{model}", contextWindow: "{contextTokens}", maxTokens: "{outputTokens}" }] },
        },
      },
    },
  ],
  env: { PI_CODING_AGENT_DIR: "{home}", PI_OFFLINE: "1" },
  endings: [
    { text: "maximum context length|context[ _]length[ _]exceeded|prompt is too long|overflow recovery failed", means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { text: "^\\s*(?:\\d{3} |Error: |Connection error)", means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: ["sessions"],
  quirks: ["Truncated tool arguments are repaired and run.", "After a context overflow it summarises and goes on; a second one ends it with exit code 0 and no text."],
};
