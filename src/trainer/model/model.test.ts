import { describe, expect, it } from "vitest";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TINY, tinyParameters } from "../../../test/support/trainer.ts";
import { seededRandom } from "../../core/runtime.ts";
import { Renderer } from "../../gateway/render/renderer.ts";
import { EMPTY_TURN } from "../../gateway/conversation.ts";
import { fencedCommand } from "../../harness/agent/fenced.ts";
import { readTensors, writeTensors } from "../safetensors.ts";
import { Decoder, Model } from "./decoder.ts";
import { distribution, drawToken } from "./sample.ts";
import { initialParameters, parameterShapes } from "./shape.ts";
import { ERRAND_NAMES, tokenId, VOCABULARY, writeTokenizer } from "./vocabulary.ts";

const PLAIN = { temperature: 1, topP: 1, topK: -1, minP: 0 };

describe("the decoder", () => {
  it("keeps what it has read: the scores after a sequence do not depend on how it was fed", () => {
    const model = new Model(TINY, tinyParameters());
    const one = new Decoder(model);
    for (const id of [1, 2, 3, 11]) one.read(id);
    one.logits();
    const two = new Decoder(model);
    for (const id of [1, 2]) two.read(id);
    two.logits();
    for (const id of [3, 11]) two.read(id);
    expect(two.logits()).toEqual(one.logits());
    const other = new Decoder(model);
    for (const id of [2, 1, 3, 11]) other.read(id);
    expect(other.logits()).not.toEqual(one.logits());
  });

  it("refuses what is no token, and more than its context", () => {
    const decoder = new Decoder(new Model(TINY, tinyParameters()));
    expect(() => decoder.read(12)).toThrow("no token 12");
    expect(() => decoder.read(-1)).toThrow("no token -1");
    for (let at = 0; at < TINY.context; at++) decoder.read(0);
    expect(() => decoder.read(0)).toThrow("context of 16");
  });

  it("begins by saying everything about equally often, and the same for the same seed", () => {
    const shape = { layers: 1, width: 32, heads: 4, context: 32, ...VOCABULARY };
    expect(initialParameters(shape, "a")).toEqual(initialParameters(shape, "a"));
    expect(initialParameters(shape, "a")).not.toEqual(initialParameters(shape, "b"));
    const decoder = new Decoder(new Model(shape, initialParameters(shape, "a")));
    for (const id of [1, 2, 3]) decoder.read(id);
    const probabilities = distribution(decoder.logits(), PLAIN);
    expect(Math.max(...probabilities)).toBeLessThan(2 / VOCABULARY.spoken);
    expect(Math.min(...probabilities)).toBeGreaterThan(0.5 / VOCABULARY.spoken);
  });
});

describe("sampling", () => {
  const logits = Float64Array.from([2, 1, 0, -1]);

  it("draws as often as the distribution says, and says its log-probability", () => {
    const random = seededRandom("draws");
    const rules = { ...PLAIN, temperature: 0.7 };
    const expected = distribution(logits, rules);
    const counts = [0, 0, 0, 0];
    for (let draw = 0; draw < 20_000; draw++) {
      const { word, logprob } = drawToken(logits, rules, random());
      counts[word] = (counts[word] ?? 0) + 1;
      expect(logprob).toBe(Math.log(expected[word] ?? 0));
    }
    for (const [word, count] of counts.entries()) expect(Math.abs(count / 20_000 - (expected[word] ?? 0))).toBeLessThan(0.012);
  });

  it("cuts by count, mass and share of the likeliest, and tells the cut distribution", () => {
    const kept = (rules: Partial<typeof PLAIN>): number => distribution(logits, { ...PLAIN, ...rules }).filter((probability) => probability > 0).length;
    expect([kept({}), kept({ topK: 2 }), kept({ topP: 0.6 }), kept({ topP: 0.7 }), kept({ minP: 0.3 })]).toEqual([4, 2, 1, 2, 2]);
    expect(distribution(logits, { ...PLAIN, topK: 2 }).reduce((sum, value) => sum + value, 0)).toBeCloseTo(1, 12);
    expect(drawToken(logits, { ...PLAIN, topK: 1 }, 0.99)).toEqual({ word: 0, logprob: 0 });
    expect(drawToken(logits, { ...PLAIN, temperature: 0 }, 0.99)).toEqual({ word: 0, logprob: 0 });
  });

  it("stays within what can be drawn at both ends of the unit", () => {
    expect(drawToken(logits, PLAIN, 0).word).toBe(0);
    expect(drawToken(logits, { ...PLAIN, topK: 3 }, 1 - 2 ** -53).word).toBe(2);
  });
});

describe("the vocabulary", () => {
  it("is a tokenizer directory that the gateway renders with: every instruction of the errands is words, and any other text is read back", async () => {
    const directory = mkdtempSync(join(tmpdir(), "mw-tokenizer-"));
    try {
      await writeTokenizer(directory);
      const renderer = await Renderer.load(directory);
      const render = (text: string): readonly number[] =>
        renderer.render({ ...EMPTY_TURN, messages: [{ role: "system", name: "system", content: [{ type: "text", text: "ignored" }] }, { role: "user", content: [{ type: "text", text }] }] }, null, new Date(0)).ids;
      for (const part of ["train", "held-out"]) {
        for (const name of readdirSync(join("worlds/errands", part))) {
          const ids = render(readFileSync(join("worlds/errands", part, name, "instruction.md"), "utf8"));
          expect(ids.length).toBe(10);
          expect(ids.every((id) => id >= 256)).toBe(true);
        }
      }
      const ids = render("Größe 3 €\n");
      const text = renderer.detokeniser();
      expect(ids.map((id) => text.push(id)).join("")).toContain("Größe 3 €\n");
      expect(Math.max(...ids)).toBeLessThan(VOCABULARY.vocabulary);
      expect([...renderer.endIds]).toEqual([tokenId("<|im_end|>")]);
      const said = ["```bash\nmkfifo", ` ${ERRAND_NAMES[0]}`, ` ${ERRAND_NAMES[1]}`, "\n```\n"].map(tokenId);
      const answer = renderer.detokeniser();
      expect(fencedCommand(said.map((id) => answer.push(id)).join("") + answer.end())).toEqual({ kind: "command", command: "mkfifo amber cedar\n" });
      expect(said.every((id) => id >= VOCABULARY.spokenFrom && id < VOCABULARY.spokenFrom + VOCABULARY.spoken)).toBe(true);
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });
});

describe("weights in files", () => {
  it("come back bit for bit; anything else is refused", async () => {
    const directory = mkdtempSync(join(tmpdir(), "mw-tensors-"));
    try {
      const path = join(directory, "model.safetensors");
      const shapes = parameterShapes(TINY);
      await writeTensors(path, tinyParameters(), shapes);
      expect(await readTensors(path, shapes)).toEqual(tinyParameters());
      const bytes = readFileSync(path);
      await expect(readTensors(path, parameterShapes({ ...TINY, width: 10 }))).rejects.toMatchObject({ code: "corrupt" });
      await expect(readTensors(path, parameterShapes({ ...TINY, layers: 1 }))).rejects.toMatchObject({ code: "corrupt" });
      for (const broken of [bytes.subarray(0, 4), bytes.subarray(0, bytes.length - 1), Buffer.alloc(64, 255), Buffer.concat([bytes.subarray(0, 8), Buffer.from("["), bytes.subarray(9)])]) {
        writeFileSync(path, broken);
        await expect(readTensors(path, shapes)).rejects.toMatchObject({ code: "corrupt" });
      }
      await expect(readTensors(join(directory, "none"), shapes)).rejects.toMatchObject({ code: "not_found" });
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });
});
