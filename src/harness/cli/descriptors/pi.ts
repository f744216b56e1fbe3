import type { CliDescriptor } from "../descriptor.ts";

export const pi: CliDescriptor = {
  name: "pi",
  title: "Pi coding agent",
  version: "0.73.1",
  dialect: "openai-chat",
  install: { kind: "npm", package: "@mariozechner/pi-coding-agent", before: "2026-11-25", node: "24.22.3" },
  remove: ["freebsd_*", "openbsd_*", "darwin_*", "win32_*", "musl_*", "linux_*32*", "linux_riscv64d", "linux_loong64", "*.map", "*.md", "*.d.ts", "*.d.mts", "*.d.cts", "node_modules/.bin"],
  command: ["{node}", "{root}/node_modules/@mariozechner/pi-coding-agent/dist/cli.js", "-p", "--mode", "json", "--provider", "manyworlds", "--model", "{model}"],
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
  // Lines of JSON, in which the model's text is escaped. It ends with 0 whatever happened; what its last line says counts.
  endings: [
    { codes: [0, 1], text: '"type":"compaction_start","reason":"overflow"\\}\\s*(?![\\s\\S])|"errorMessage":"[^\\n]*(?:maximum context length|context_length_exceeded|too long)[^\\n]*"\\}\\]\\}\\s*(?![\\s\\S])', means: "context_overflow", detail: "The conversation no longer fitted the model." },
    { codes: [0, 1], text: '"stopReason":"error"[^\\n]*"errorMessage":"[^\\n]*"\\}\\]\\}\\s*(?![\\s\\S])|"type":"auto_retry_end","success":false[^\\n]*\\s*(?![\\s\\S])', means: "model_error", detail: "The model API answered with errors until it gave up." },
  ],
  logs: ["sessions"],
  quirks: ["Truncated tool arguments are repaired and run.", "Ends with 0 whatever happened.", "After a context overflow it summarises and goes on; a second one ends it."],
};
