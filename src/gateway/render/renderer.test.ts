import * as fc from "fast-check";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Tokenizer as Encoder } from "@huggingface/tokenizers";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { MODEL_DIRECTORY } from "../../../test/support/engine/tokenizer.ts";
import { BASH, turn } from "../../../test/support/turns.ts";
import type { AnswerBlock, Message } from "../conversation.ts";
import type { TokenHistory } from "../upstreams/upstream.ts";
import { Detokeniser } from "./detokeniser.ts";
import { Renderer } from "./renderer.ts";
import { Tokenizer } from "./tokenizer.ts";

const NOW = new Date(2026, 0, 2);
const system = (text: string): Message => ({ role: "system", name: "system", content: [{ type: "text", text }] });
const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });
const assistant = (...content: AnswerBlock[]): Message => ({ role: "assistant", content });
const said = (text: string): Message => assistant({ type: "text", text });
const recorded = (messages: number, ids: readonly number[]): TokenHistory => ({ longestPrefix: () => ({ messages, ids }) });

let renderer: Renderer;
let tokenizer: Tokenizer;
let directory: string;
beforeAll(async () => {
  tokenizer = await Tokenizer.load(MODEL_DIRECTORY);
  renderer = new Renderer(tokenizer);
  directory = await mkdtemp(join(tmpdir(), "mw-tokenizer-"));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

const spelled = (ids: readonly number[]): string => ids.map((id) => tokenizer.textOf(id)).join("");
const END = "<|im_end|>";

describe("extending recorded tokens", () => {
  const messages = [system("s"), user("one"), said("first"), user("two")];

  it("adds what was appended, and the end of an answer that was cut off", () => {
    const ids = tokenizer.encode("anything at all");
    const tail = "\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n";
    const whole = renderer.render(turn({ messages }), recorded(3, [...ids, tokenizer.idOf(END)!]), NOW);
    expect(whole).toMatchObject({ extended: ids.length + 1, notes: [] });
    expect(spelled(whole.ids)).toBe(`anything at all${END}${tail}`);
    const cut = renderer.render(turn({ messages }), recorded(3, ids), NOW);
    expect(spelled(cut.ids)).toBe(`anything at all${END}${tail}`);
    expect(cut.extended).toBe(ids.length);
  });

  it.each<readonly [string, readonly Message[], number, RegExp]>([
    ["nothing was appended", messages.slice(0, 3), 3, /no answer that something was appended to/],
    ["an answer of another was appended", [...messages, said("not mine"), user("three")], 3, /was not sampled here/],
    ["the record ends with no answer", messages, 2, /no answer that something was appended to/],
  ])("renders anew and says why when %s", (_name, given, covered, why) => {
    const prompt = renderer.render(turn({ messages: given }), recorded(covered, tokenizer.encode("recorded")), NOW);
    expect(prompt).toMatchObject({ extended: 0, notes: [expect.stringMatching(why) as unknown] });
    expect(prompt.ids).toEqual(renderer.render(turn({ messages: given }), null, NOW).ids);
  });

  it("is the whole rendering when the template spells history as it was sampled", () => {
    fc.assert(
      fc.property(fc.array(fc.record({ answer: fc.string(), call: fc.boolean(), next: fc.string({ minLength: 1 }) }), { minLength: 1, maxLength: 4 }), (turns) => {
        const conversation: Message[] = [user("start")];
        let ids: number[] = [...renderer.render(turn({ messages: conversation, tools: [BASH] }), null, NOW).ids];
        for (const [at, { answer, call, next }] of turns.entries()) {
          const blocks: AnswerBlock[] = call ? [{ type: "tool_call", id: `c${at}`, name: "bash", arguments: `{"command": ${JSON.stringify(answer)}}` }] : [{ type: "text", text: answer }];
          ids.push(...tokenizer.encode(call ? `<tool_call>\n{"name": "bash", "arguments": {"command": ${JSON.stringify(answer)}}}\n</tool_call>${END}` : `${answer}${END}`));
          conversation.push(assistant(...blocks), call ? { role: "tool", callId: `c${at}`, name: "bash", content: [{ type: "text", text: next }], isError: false } : user(next));
          const request = turn({ messages: [...conversation], tools: [BASH] });
          const extended = renderer.render(request, recorded(conversation.length - 1, ids), NOW);
          expect(extended.ids.slice(0, ids.length)).toEqual(ids);
          expect(spelled(extended.ids)).toBe(renderer.text(request, NOW));
          ids = [...extended.ids];
        }
      }),
      { numRuns: 50 },
    );
  });
});

describe("what a template refuses", () => {
  const strict = "{%- for m in messages -%}{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('system must be first') }}{%- endif -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{%- endfor -%}{%- if messages | length > 3 -%}{{ raise_exception('too long') }}{%- endif -%}";

  it("is gathered at the head where it is the order of system messages, and said", () => {
    const one = new Renderer(tokenizer, { template: strict });
    const { ids, notes } = one.render(turn({ messages: [system("a"), { role: "system", name: "developer", content: [{ type: "text", text: "b" }] }, user("c"), system("d")] }), null, NOW);
    expect(spelled(ids)).toBe("<|im_start|>system\na\n\nb<|im_end|><|im_start|>user\nc<|im_end|><|im_start|>user\nd<|im_end|>");
    expect(notes).toEqual([expect.stringContaining("system must be first") as unknown]);
  });

  it("is the harness's to know otherwise", () => {
    const one = new Renderer(tokenizer, { template: strict });
    expect(() => one.render(turn({ messages: [user("a"), said("b"), user("c"), said("d")] }), null, NOW)).toThrow(/refuses this conversation: too long/);
  });
});

describe("tools that a model cannot be told of", () => {
  it.each([
    ["{{ messages[0].content }}<|im_end|><tool_call>", /does not tell it of tools/],
    ["{{ tools | tojson }}<|im_end|>", /family chatml call tools is not known/],
  ])("are refused, not dropped: %s", (template, why) => {
    const one = new Renderer(tokenizer, { template });
    const request = turn({ tools: [BASH] });
    expect(() => one.render(request, null, NOW)).toThrow(why);
    expect(one.render({ ...request, toolChoice: { type: "none" } }, null, NOW).ids.length).toBeGreaterThan(0);
  });
});

describe("a tokenizer directory", () => {
  it.each<readonly [string, Readonly<Record<string, string>>, RegExp]>([
    ["without a tokenizer", {}, /has no tokenizer.json/],
    ["with something else", { "tokenizer.json": "[]" }, /not of the form/],
    ["with broken JSON", { "tokenizer.json": "{" }, /not JSON/],
    ["with an unknown decoder", { "tokenizer.json": '{"decoder": {"type": "WordPiece"}, "model": {"type": "WordPiece", "vocab": {}}}' }, /decodes by WordPiece/],
  ])("%s is refused with what is wrong", async (_name, files, why) => {
    for (const [name, text] of Object.entries(files)) await writeFile(join(directory, name), text);
    await expect(Tokenizer.load(directory)).rejects.toThrow(why);
    await rm(join(directory, "tokenizer.json"), { force: true });
  });

  it("without a template, or with one of no known family, is refused", async () => {
    expect(() => new Renderer(tokenizer, { template: "{{ messages }}" })).toThrow(/no known family/);
    expect(new Renderer(tokenizer, { template: "{{ messages }}", family: "chatml" }).family.name).toBe("chatml");
    await expect(Renderer.load(MODEL_DIRECTORY, "nobody")).rejects.toThrow(/no model family/);
  });
});

describe("Detokeniser", () => {
  const decode = (ids: readonly number[]): string => {
    const text = new Detokeniser(tokenizer, new Set(), new Set());
    return ids.map((id) => text.push(id)).join("") + text.end();
  };

  it("gives back any text, however its characters were spread over tokens", () => {
    fc.assert(
      fc.property(fc.string({ unit: "grapheme" }), (text) => {
        expect(decode(tokenizer.encode(text))).toBe(text);
      }),
    );
    // Byte by byte, as a model may spell it.
    const byte = (value: number): number => Array.from({ length: 1000 }, (_, id) => id).find((id) => !tokenizer.isSpecial(id) && tokenizer.bytesOf(id).length === 1 && tokenizer.bytesOf(id)[0] === value)!;
    expect(decode([...Buffer.from("ä北😀")].map(byte))).toBe("ä北😀");
    expect(decode([...Buffer.from("a😀").subarray(0, 3)].map(byte))).toBe("a\uFFFD");
  });

  it("encodes what stands between special tokens as it would the whole", async () => {
    const vocabulary = JSON.parse(await readFile(join(MODEL_DIRECTORY, "tokenizer.json"), "utf8")) as object;
    const whole = new Encoder(vocabulary, {});
    fc.assert(
      fc.property(fc.array(fc.oneof(fc.constantFrom("<|im_start|>", END, "<think>", "<tool_call>", "</tool_call>", " ", "\n", "<|im_"), fc.string({ unit: "grapheme" }), fc.lorem({ maxCount: 4 }))), (parts) => {
        const text = parts.join("");
        expect(tokenizer.encode(text)).toEqual(text === "" ? [] : whole.encode(text, { add_special_tokens: false }).ids);
      }),
      { numRuns: 300 },
    );
  });

  it("keeps special tokens out of the text, and what no vocabulary has", () => {
    const [start, end] = [tokenizer.idOf("<|im_start|>")!, tokenizer.idOf(END)!];
    expect(decode([start, ...tokenizer.encode("x"), end, 1_000_000])).toBe("x");
    const text = new Detokeniser(tokenizer, new Set([start]), new Set());
    expect(text.push(start) + text.push(end)).toBe("<|im_start|>");
  });

  it("never fails on random ids, and never invents a call", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(2_000)), (ids) => {
        const reader = renderer.reader(turn({ tools: [BASH] }), { inThought: false, hasTools: true });
        const text = renderer.detokeniser();
        const pieces = [...ids.flatMap((id) => reader.push(text.push(id))), ...reader.push(text.end()), ...reader.end()];
        if (!decode(ids).includes("<tool_call>")) expect(pieces.some(({ type }) => type === "tool_call")).toBe(false);
      }),
      { numRuns: 500 },
    );
  });
});
