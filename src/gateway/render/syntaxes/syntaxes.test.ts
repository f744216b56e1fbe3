import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { FAMILIES, parserOf, type FamilyName } from "../family.ts";
import { AnswerReader } from "../parse/answer.ts";
import type { Piece } from "../parse/output.ts";

const SCHEMAS: Readonly<Record<string, unknown>> = {
  write: { type: "object", properties: { path: { type: "string" }, mode: { type: "integer" }, force: { type: "boolean" }, list: { type: "array" }, note: { type: ["string", "null"] } } },
};

interface Options {
  readonly inThought?: boolean;
  readonly hasTools?: boolean;
}

function read(family: FamilyName, pieces: readonly string[], { inThought = false, hasTools = true }: Options = {}): readonly Piece[] {
  const found = FAMILIES.find(({ name }) => name === family)!;
  const reader = new AnswerReader(parserOf(found, { inThought, hasTools }), (tool) => SCHEMAS[tool] ?? null);
  return [...pieces.flatMap((piece) => reader.push(piece)), ...reader.end()];
}

/** One line a block: `r:` reasoning, `t:` text, `c: [id] name arguments`. */
function blocks(deltas: readonly Piece[]): readonly string[] {
  const lines: string[] = [];
  let open = "";
  for (const delta of deltas) {
    if (delta.type === "tool_call") lines.push(`c:${delta.id === null ? "" : ` ${delta.id}`} ${delta.name} `);
    else if (delta.type === "arguments") lines[lines.length - 1] += delta.text;
    else if (delta.type === "text" || delta.type === "reasoning") {
      if (open === delta.type) lines[lines.length - 1] += delta.text;
      else lines.push(`${delta.type[0]}: ${delta.text}`);
    }
    open = delta.type;
  }
  return lines;
}

type Case = [family: FamilyName, name: string, text: string, expected: readonly string[], options?: Options];

const CASES: Case[] = [
  ["qwen", "text", "  Hello, <b>world</b>!\n", ["t:   Hello, <b>world</b>!\n"]],
  ["qwen", "a thought, a text, two calls", '<think>\nhm\n\nso\n</think>\n\nLook.\n<tool_call>\n{"name": "f", "arguments": {"a": "}</b>\\""}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', ["r: hm\n\nso", "t: Look.", 'c: f {"a": "}</b>\\""}', "c: g {}"]],
  ["qwen", "a thought that the prompt opened", "hm\n</think>\n\nyes", ["r: hm", "t: yes"], { inThought: true }],
  ["qwen", "a thought that was cut off", "<think>\nhm </thi", ["r: hm </thi"]],
  ["qwen", "an empty thought", "<think>\n\n</think>\n\nyes", ["t: yes"]],
  ["qwen", "marks within a thought", '<think>\nI could <tool_call>\n{"name": "f"}</tool_call>\n</think>\n\nno', ['r: I could <tool_call>\n{"name": "f"}</tool_call>', "t: no"]],
  ["qwen", "arguments before the name", '<tool_call>{"arguments": {"a": [1, {"b": null}]}, "name": "f"}</tool_call>', ['c: f {"a": [1, {"b": null}]}']],
  ["qwen", "no arguments", '<tool_call>\n{"name": "f"}\n</tool_call>', ["c: f {}"]],
  ["qwen", "a call that was cut off in its head", 'so\n<tool_call>\n{"name": "f', ['t: so\n<tool_call>\n{"name": "f']],
  ["qwen", "a call that was cut off in its arguments", '<tool_call>\n{"name": "f", "arguments": {"a": "rm -r', ['c: f {"a": "rm -r']],
  ["qwen", "a call that is no JSON", "<tool_call>\nf(1)\n</tool_call> end", ["t: <tool_call>\nf(1)\n</tool_call> end"]],
  ["qwen", "a call without a name", '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>', ['t: <tool_call>\n{"arguments": {"a": 1}}\n</tool_call>']],
  ["qwen", "a brace too many", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}}\n</tool_call>x', ['c: f {"a": 1}}\n', "t: x"]],
  ["qwen", "a brace too few", '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>', ['c: f {"a": 1}']],
  ["qwen", "arguments that break off", '<tool_call>\n{"name": "f", "arguments": {"a": oops}}\n</tool_call>', ['c: f {"a": oops}}\n']],
  ["qwen", "one call broken, one whole", '<tool_call>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', ["t: <tool_call>", "c: f {}"]],
  ["qwen", "marks where no tools were offered", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', ['t: <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'], { hasTools: false }],
  ["qwen-xml", "types by the schema", "I'll write.\n\n<tool_call>\n<function=write>\n<parameter=path>\n/tmp/a \"b\"\n</parameter>\n<parameter=mode>\n420\n</parameter>\n<parameter=force>\nTrue\n</parameter>\n<parameter=list>\n[1, \"x\"]\n</parameter>\n<parameter=note>\nNone\n</parameter>\n<parameter=other>\n12\n</parameter>\n</function>\n</tool_call>", ["t: I'll write.", 'c: write {"path": "/tmp/a \\"b\\"", "mode": 420, "force": true, "list": [1, "x"], "note": null, "other": "12"}']],
  ["qwen-xml", "lines and marks in a value", "<tool_call>\n<function=write>\n<parameter=path>\n\na\n</parameter\n>\n\n</parameter>\n</function>\n</tool_call>\nDone.", ['c: write {"path": "\\na\\n</parameter\\n>\\n"}', "t: Done."]],
  ["qwen-xml", "no outer tag, no parameters", "<function=f>\n</function>", ["c: f {}"]],
  ["qwen-xml", "cut off in a value", "<tool_call>\n<function=write>\n<parameter=path>\n/tmp", ['c: write {"path": "/tmp']],
  ["qwen-xml", "something else in the outer tag", '<tool_call>\n{"name": "f"}\n</tool_call>', ['t: <tool_call>\n{"name": "f"}\n</tool_call>']],
  ["qwen-xml", "a name that is none", "<function=a b>x", ["t: <function=a b>x"]],
  ["qwen-xml", "text between parameters", "<tool_call>\n<function=f>\nhuh\n</function>\n</tool_call>", ["c: f huh\n</function>\n"]],
  ["glm", "4.5 with a thought", "\n<think>hm</think>\nLook.\n<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>/a</arg_value>\n<arg_key>mode</arg_key>\n<arg_value>4</arg_value>\n</tool_call>", ["r: hm", "t: Look.", 'c: write {"path": "/a", "mode": 4}']],
  ["glm", "4.7 without line breaks, two calls", "<tool_call>f</tool_call><tool_call>write<arg_key>path</arg_key><arg_value>a\n</arg_value></tool_call>", ["c: f {}", 'c: write {"path": "a\\n"}']],
  ["glm", "another model's call", '<tool_call>\n{"name": "f"}\n</tool_call>', ['t: <tool_call>\n{"name": "f"}\n</tool_call>']],
  ["deepseek", "V3, two calls", 'Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', ["t: Hm.", 'c: f {"a": 1}', "c: g {}"]],
  ["deepseek", "V3.1 with a thought", 'hm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": {"b": "```"}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', ["r: hm", 'c: f {"a": {"b": "```"}}'], { inThought: true }],
  ["deepseek", "no separator", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁call▁end｜>", ["t: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁call▁end｜>"]],
  ["minimax", "two calls after a thought", 'hm\n</think>\n\nLook.\n<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">/a\n"b"</parameter>\n<parameter name="mode">4</parameter>\n</invoke>\n<invoke name="f">\n</invoke>\n</minimax:tool_call>', ["r: hm", "t: Look.", 'c: write {"path": "/a\\n\\"b\\"", "mode": 4}', "c: f {}"], { inThought: true }],
  ["minimax", "no name", '<minimax:tool_call>\n<invoke name=f>', ["t: <minimax:tool_call>\n<invoke name=f>"]],
  ["deepseek-dsml", "types in the tags", '</think>So.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">12</｜DSML｜parameter>\n<｜DSML｜parameter name="b" string="false">[1, {"c": null}]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', ["t: So.", 'c: f {"a": "12", "b": [1, {"c": null}]}'], { inThought: true }],
  ["deepseek-dsml", "V4's section, cut off in a value", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">/tm', ['c: f {"a": "/tm']],
  ["kimi", "its own ids", 'Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.a-b:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>', ["t: Look.", 'c: functions.f:0 f {"a": 1}', "c: functions.a-b:1 a-b {}"]],
  ["kimi", "cut off in the head", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0", ["t: <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"]],
  ["mistral", "a list", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, "id": "123456789"}]', ['c: f {"a": 1}', "c: g {}"]],
  ["mistral", "one mark a call", 'Look.[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}', ["t: Look.", 'c: f {"a": "[TOOL_CALLS]"}', "c: abcdefghi g {}"]],
  ["mistral", "a thought", "[THINK]hm[/THINK]yes", ["r: hm", "t: yes"]],
  ["mistral", "a list with a tail", '[TOOL_CALLS][{"name": "f", "arguments": {}}, oops]', ["c: f {}", "t: , oops]"]],
  ["llama", "bare", '{"name": "f", "parameters": {"a": "x"}}', ['c: f {"a": "x"}']],
  ["llama", "tagged, two", '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}}', ["c: f {}", 'c: g {"a": 1}']],
  ["llama", "JSON that is no call", '{"name": "Ann", "age": 3}', ['t: {"name": "Ann", "age": 3}']],
  ["llama", "JSON within a text", 'So: {"name": "f", "parameters": {}}', ['t: So: {"name": "f", "parameters": {}}']],
  ["harmony", "analysis and an answer", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.", ["r: hm", "t: Yes."]],
  ["harmony", "a call", '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}', ["r: hm", 'c: f {"a": 1}']],
  ["harmony", "a call addressed first", ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', ['c: f {"a": 1}']],
  ["harmony", "no head", "just text", ["t: just text"]],
  ["chatml", "text", "x <tool_call>", ["t: x <tool_call>"]],
];

describe("answers of the model families", () => {
  it.each(CASES)("%s: %s", (...[family, , text, expected, options = {}]) => {
    expect(blocks(read(family, [text], options))).toEqual(expected);
    expect(blocks(read(family, Array.from(text), options))).toEqual(expected);
  });

  it("are the same however the text was cut", () => {
    fc.assert(
      fc.property(fc.constantFrom(...CASES), fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 40 }), ([family, , text, expected, options = {}], sizes) => {
        const points = Array.from(text);
        const pieces: string[] = [];
        for (let at = 0, turn = 0; at < points.length; turn++) {
          const size = sizes[turn % sizes.length]!;
          pieces.push(points.slice(at, at + size).join(""));
          at += size;
        }
        expect(blocks(read(family, pieces, options))).toEqual(expected);
      }),
    );
  });

  it("loses no text and invents no call, whatever is sampled", () => {
    const scraps = [...new Set(CASES.flatMap(([, , text]) => text.match(/<[^>]*>|\[[A-Z_/]+\]|"[^"]*"|[{}[\],:]|\s+|\w+/g) ?? []))];
    fc.assert(
      fc.property(fc.constantFrom(...FAMILIES.map(({ name }) => name)), fc.array(fc.oneof(fc.constantFrom(...scraps), fc.string({ maxLength: 4 })), { maxLength: 30 }), fc.boolean(), (family, parts, hasTools) => {
        const text = parts.join("");
        const whole = read(family, [text], { hasTools });
        expect(blocks(read(family, Array.from(text), { hasTools }))).toEqual(blocks(whole));
        const calls = whole.filter(({ type }) => type === "tool_call");
        if (!hasTools) expect(calls).toEqual([]);
        for (const call of calls) expect(text).toContain(call.type === "tool_call" ? call.name : "");
        // Without calls and thoughts the text is what was sampled, to the last space.
        if (calls.length === 0 && !whole.some(({ type }) => type === "reasoning") && family !== "harmony" && !/<think>|\[THINK\]/.test(text)) {
          expect(whole.map((delta) => (delta.type === "text" ? delta.text : "")).join("")).toBe(text);
        }
      }),
      { numRuns: 2000 },
    );
  });
});
