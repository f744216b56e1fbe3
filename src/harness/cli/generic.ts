/** A descriptor for any command that finds its model through the environment: what the user names with `--harness-command`. */
import type { CliDescriptor } from "./descriptor.ts";

/**
 * The command runs in the image, by its shell. The task is on standard input and in the file `$MW_INSTRUCTION_FILE`; the model is where the usual variables of all
 * four APIs say.
 */
export function genericCli(command: string): CliDescriptor {
  return {
    name: "generic",
    title: "The command",
    version: "1",
    dialect: "openai-chat",
    install: { kind: "none" },
    remove: [],
    command: ["/bin/sh", "-c", "--", command],
    literalCommand: true,
    instruction: "stdin",
    files: [{ path: "instruction.md", format: "text", content: "{instruction}" }],
    env: {
      MW_INSTRUCTION_FILE: "{home}/instruction.md",
      MW_MODEL_URL: "{baseUrl}",
      MW_MODEL_TOKEN: "{token}",
      MW_MODEL: "{model}",
      OPENAI_BASE_URL: "{baseUrl}/v1",
      OPENAI_API_BASE: "{baseUrl}/v1",
      OPENAI_API_KEY: "{token}",
      OPENAI_MODEL: "{model}",
      ANTHROPIC_BASE_URL: "{baseUrl}",
      ANTHROPIC_API_KEY: "{token}",
      ANTHROPIC_MODEL: "{model}",
      GOOGLE_GEMINI_BASE_URL: "{baseUrl}",
      GEMINI_API_KEY: "{token}",
    },
    endings: [],
    logs: [],
    quirks: ["What it is and needs must be in the image."],
  };
}
