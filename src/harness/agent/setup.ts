/** What makes one white-box agent differ from another, as data: its tools' faces, its words, how it speaks, what it shows and keeps. Goes into the rollout's record as it is. */
import { seededRandom } from "../../core/runtime.ts";
import type { ToolName } from "./action.ts";
import { drawFaces } from "./draw.ts";
import type { ToolFace } from "./face.ts";
import { PRESETS, type PresetName } from "./presets.ts";

/**
 * What happens when the history no longer fits the model:
 * `stop` the agent ends; `trim` outputs older than the last few turns are left out; `summarise` the model writes a summary and goes on from it.
 */
export const HISTORY_RULES = ["stop", "trim", "summarise"] as const;
export type HistoryRule = (typeof HISTORY_RULES)[number];

/** `tools`: calls in the API's own form. `fenced`: one shell command in a fenced block of the answer's text, for models without tool calls. */
export type Protocol = "tools" | "fenced";

export interface AgentSetup {
  readonly protocol: Protocol;
  readonly faces: readonly ToolFace[];
  /** Null: none is sent, for models whose template has no system role. */
  readonly systemPrompt: string | null;
  readonly history: HistoryRule;
  /** The history rule is applied when a prompt had this many tokens, not only when the model refuses it; null: only then. */
  readonly historyTokens: number | null;
  /** Send the model's reasoning back with its answers. */
  readonly keepReasoning: boolean;
}

const WHERE = "You work on a task in a Linux machine of your own.";
const ALONE = "Nobody answers questions: decide for yourself and carry the task through.";
const CARE = "Look before you change things, and check your work before you stop.";

const PROMPTS = {
  plain: (how: string, end: string): string => `${WHERE} ${how} ${ALONE}\n${CARE} ${end}`,
  terse: (how: string, end: string): string => `${WHERE} ${how} ${end}`,
  list: (how: string, end: string): string => `${WHERE}\n- ${how}\n- ${ALONE}\n- ${CARE}\n- ${end}`,
} as const;

const BY_TOOLS = (faces: readonly ToolFace[]): string => (faces.length === 1 ? `The ${faces[0]?.name ?? ""} tool runs commands in it; there is no other way to act.` : "The tools act in it; there is no other way to act.");
const BY_FENCES = "To run a command, put exactly one block of the form\n```bash\ncommand\n```\ninto your answer; its exit code and output come back as the next message.";
const END_TOOLS = "When the task is done, answer without a tool call.";
const END_FINISH = (name: string): string => `When the task is done, call ${name}.`;
const END_FENCES = "When the task is done, answer without such a block.";

const BASE = { history: "stop", historyTokens: null, keepReasoning: true } as const;

/** The setup of a preset. */
export function presetSetup(name: PresetName): AgentSetup {
  return { ...BASE, protocol: "tools", faces: PRESETS[name], systemPrompt: PROMPTS.plain(BY_TOOLS(PRESETS[name]), END_TOOLS) };
}

/** An agent that only speaks text, as mini-swe-agent does. */
export function fencedSetup(): AgentSetup {
  return { ...BASE, protocol: "fenced", faces: PRESETS.bash, systemPrompt: PROMPTS.plain(BY_FENCES, END_FENCES) };
}

const OPTIONAL_TOOLS: readonly ToolName[] = ["read", "write", "edit", "list", "search", "finish"];

/** Everything drawn: which tools there are beside the shell, their faces, the words of the prompt. */
export function drawSetup(seed: string): AgentSetup {
  const random = seededRandom(`${seed}/setup`);
  const tools: readonly ToolName[] = ["shell", ...OPTIONAL_TOOLS.filter(() => random() < 0.6)];
  const faces = drawFaces(seed, tools);
  const finish = faces.find(({ tool }) => tool === "finish");
  const styles = Object.values(PROMPTS);
  // The list is not empty.
  const style = styles[Math.floor(random() * styles.length)] as (how: string, end: string) => string;
  return { ...BASE, protocol: "tools", faces, systemPrompt: style(BY_TOOLS(faces), finish === undefined ? END_TOOLS : END_FINISH(finish.name)) };
}
