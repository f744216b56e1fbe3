/** The agent CLIs that ship with a descriptor, by name. */
import type { CliDescriptor } from "../descriptor.ts";
import { claudeCode } from "./claude-code.ts";
import { codex } from "./codex.ts";
import { continueCli } from "./continue.ts";
import { geminiCli } from "./gemini-cli.ts";
import { miniSweAgent } from "./mini-swe-agent.ts";
import { opencode } from "./opencode.ts";
import { pi } from "./pi.ts";
import { qwenCode } from "./qwen-code.ts";

export const CLI_DESCRIPTORS: readonly CliDescriptor[] = [claudeCode, codex, geminiCli, qwenCode, opencode, pi, continueCli, miniSweAgent];
