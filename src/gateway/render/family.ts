/**
 * What the templates and parsers of one family of models have in common. A family is data: its `ToolSyntax`, the marks of its thoughts, which tokens end its turns, and what form its
 * templates want of messages. Which family a model is of is read off its template.
 */
import { answerParser, type AnswerParser, type Thought, type ToolSyntax } from "./parse/answer.ts";
import { DEEPSEEK } from "./syntaxes/deepseek.ts";
import { GLM } from "./syntaxes/glm.ts";
import { parseHarmony } from "./syntaxes/harmony.ts";
import { HERMES } from "./syntaxes/hermes.ts";
import { DSML, MINIMAX } from "./syntaxes/invoke.ts";
import { KIMI } from "./syntaxes/kimi.ts";
import { LLAMA } from "./syntaxes/llama.ts";
import { MISTRAL } from "./syntaxes/mistral.ts";
import { QWEN_XML } from "./syntaxes/qwen-xml.ts";

export interface Family {
  readonly name: FamilyName;
  /** Whether a template is of this family. */
  readonly owns: (template: string) => boolean;
  readonly tools: ToolSyntax | null;
  readonly thought: Thought | null;
  /** In place of thoughts and calls within a text: an answer of another build. */
  readonly parser?: (hasTools: boolean) => AnswerParser;
  /** Special tokens that the parser knows as marks, beside those of `tools` and `thought`. */
  readonly marks: readonly string[];
  /** Tokens that end an assistant's turn, in the order in which a template would have them. */
  readonly ends: readonly string[];
  /**
   * Whether any of `ends` may stand for any other: where an answer ended with one and the template would have another, the tokens stay as they were sampled. False where they mean
   * different things, or the end of a turn is the beginning of the next message.
   */
  readonly endsInterchangeable: boolean;
  /** Where templates want the reasoning of an assistant message. */
  readonly reasoningField: "reasoning_content" | "thinking";
  /** What an assistant message with calls and no text has for content. */
  readonly emptyContent: "" | null;
  /** Ids of calls have nine letters and digits. */
  readonly shortIds: boolean;
}

export type FamilyName = "qwen" | "qwen-xml" | "llama" | "deepseek" | "deepseek-dsml" | "minimax" | "mistral" | "glm" | "kimi" | "harmony" | "chatml";

const THINK: Thought = { open: "<think>", close: "</think>" };
const PLAIN = { marks: [], endsInterchangeable: true, reasoningField: "reasoning_content", emptyContent: "", shortIds: false } as const;

/** In the order in which templates are asked for what they show. */
export const FAMILIES: readonly Family[] = [
  {
    ...PLAIN,
    name: "harmony",
    owns: (template) => template.includes("<|channel|>") && template.includes("<|start|>"),
    tools: null,
    thought: null,
    parser: parseHarmony,
    marks: ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"],
    // The model is never to read `<|return|>`: where an answer ended so, and another turn follows, its template has `<|end|>`.
    ends: ["<|end|>", "<|call|>", "<|return|>"],
    endsInterchangeable: false,
    reasoningField: "thinking",
  },
  { ...PLAIN, name: "deepseek-dsml", owns: (template) => template.includes("｜DSML｜"), tools: DSML, thought: THINK, ends: ["<｜end▁of▁sentence｜>"] },
  { ...PLAIN, name: "minimax", owns: (template) => template.includes("minimax:tool_call"), tools: MINIMAX, thought: THINK, ends: ["[e~["] },
  {
    ...PLAIN,
    name: "deepseek",
    owns: (template) => template.includes("<｜tool▁call▁begin｜>") || template.includes("<｜Assistant｜>"),
    tools: DEEPSEEK,
    thought: THINK,
    marks: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"],
    ends: ["<｜end▁of▁sentence｜>"],
    emptyContent: null,
  },
  {
    ...PLAIN,
    name: "kimi",
    owns: (template) => template.includes("<|tool_call_begin|>") && template.includes("<|im_middle|>"),
    tools: KIMI,
    thought: THINK,
    marks: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    ends: ["<|im_end|>"],
  },
  { ...PLAIN, name: "glm", owns: (template) => template.includes("<arg_key>") && template.includes("<|observation|>"), tools: GLM, thought: THINK, ends: ["<|user|>", "<|observation|>"], endsInterchangeable: false },
  { ...PLAIN, name: "qwen-xml", owns: (template) => template.includes("<function=") && template.includes("<|im_end|>"), tools: QWEN_XML, thought: THINK, ends: ["<|im_end|>"] },
  { ...PLAIN, name: "qwen", owns: (template) => template.includes("<tool_call>") && template.includes("<|im_end|>"), tools: HERMES, thought: THINK, ends: ["<|im_end|>"] },
  {
    ...PLAIN,
    name: "mistral",
    owns: (template) => template.includes("[INST]"),
    tools: MISTRAL,
    thought: { open: "[THINK]", close: "[/THINK]" },
    marks: ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"],
    ends: ["</s>"],
    shortIds: true,
  },
  { ...PLAIN, name: "llama", owns: (template) => template.includes("<|start_header_id|>"), tools: LLAMA, thought: THINK, marks: ["<|python_tag|>"], ends: ["<|eot_id|>", "<|eom_id|>"] },
  { ...PLAIN, name: "chatml", owns: (template) => template.includes("<|im_end|>"), tools: null, thought: THINK, ends: ["<|im_end|>"] },
];

/** Null when the template is of no family that is known. */
export function familyOf(template: string): Family | null {
  return FAMILIES.find((family) => family.owns(template)) ?? null;
}

export function parserOf(family: Family, options: { readonly inThought: boolean; readonly hasTools: boolean }): AnswerParser {
  return family.parser?.(options.hasTools) ?? answerParser({ thought: family.thought, inThought: options.inThought, tools: options.hasTools ? family.tools : null });
}
