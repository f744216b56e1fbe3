import { assert, double, oneof, property, string, uint8Array } from "fast-check";
import { describe, expect, test } from "vitest";
import { parseRewardJson, parseRewardText, readRewards, type RewardFile } from "./reward.ts";

const bytes = (content: string): { bytes: Uint8Array } => ({ bytes: Buffer.from(content) });
const BOTH = { json: true, text: true };

describe("reward.txt", () => {
  test.each([
    ["1\r\n", 1],
    ["1", 1],
    ["\uFEFF0.5\n", 0.5],
    ["  -1e-3 \n", -0.001],
    ["+.5", 0.5],
    ["1.", 1],
    ["0", 0],
    ["1e308", 1e308],
  ])("%j is %d", (content, reward) => {
    expect(parseRewardText(Buffer.from(content))).toEqual({ rewards: { reward } });
  });

  test.each([
    ["", "empty"],
    [" \r\n", "empty"],
    ["nan", "not_finite"],
    ["-Infinity\n", "not_finite"],
    ["1e999", "not_finite"],
    ["1 2", "unparsable"],
    ["1\n1", "unparsable"],
    ["0x10", "unparsable"],
    ["1_000", "unparsable"],
    ["PASS", "unparsable"],
    ["{\"reward\": 1}", "unparsable"],
    ["１", "unparsable"],
    ["1\0", "unparsable"],
  ])("%j is %s", (content, kind) => {
    expect(parseRewardText(Buffer.from(content))).toMatchObject({ error: { kind } });
  });

  test("bytes that are not text", () => {
    expect(parseRewardText(Buffer.from([0x31, 0xff]))).toMatchObject({ error: { kind: "unparsable" } });
  });

  test("never anything but a finite number or a named error", () => {
    assert(
      property(oneof(uint8Array({ maxLength: 40 }), string().map((value) => Buffer.from(value)), double().map((value) => Buffer.from(String(value)))), (content) => {
        for (const parsed of [parseRewardText(content), parseRewardJson(content)]) {
          expect("error" in parsed ? parsed.error.message !== "" : Object.values(parsed.rewards).every(Number.isFinite)).toBe(true);
        }
      }),
    );
  });
});

describe("reward.json", () => {
  test.each([
    ['{"reward": 1.0, "repo_modified": 1.0}', { reward: 1, repo_modified: 1 }],
    ['\uFEFF{"reward": 0}\r\n', { reward: 0 }],
    ['{"a": true}', { a: 1 }],
  ])("%j", (content, rewards) => {
    expect(parseRewardJson(Buffer.from(content))).toEqual({ rewards });
  });

  test.each([
    ["", "empty"],
    ["{}", "empty"],
    ["1", "unparsable"],
    ["[1]", "unparsable"],
    ["null", "unparsable"],
    ["{", "unparsable"],
    ['{"reward": "1"}', "unparsable"],
    ['{"reward": {"x": 1}}', "unparsable"],
    ['{"reward": null}', "unparsable"],
    ['{"reward": NaN}', "not_finite"],
    ['{"reward": -Infinity}', "not_finite"],
    ['{"reward": 1e999}', "not_finite"],
    ['{"NaN": "NaN"}', "unparsable"],
    [JSON.stringify(Object.fromEntries(Array.from({ length: 300 }, (_, index) => [`k${index}`, 1]))), "unparsable"],
  ])("%j is %s", (content, kind) => {
    expect(parseRewardJson(Buffer.from(content))).toMatchObject({ error: { kind } });
  });

  test("a key that is a trap in JavaScript stays a key", () => {
    const parsed = parseRewardJson(Buffer.from('{"__proto__": 1}'));
    expect("rewards" in parsed && Object.keys(parsed.rewards)).toEqual(["__proto__"]);
  });
});

describe("both files", () => {
  test("json wins, and the conflict is seen", () => {
    expect(readRewards(bytes('{"reward": 1.0}'), bytes("0"), BOTH)).toMatchObject({ kind: "rewards", source: "reward.json", reward: 1, conflict: true });
    expect(readRewards(bytes('{"reward": 1.0}'), bytes("1\n"), BOTH)).toMatchObject({ reward: 1, conflict: false });
    expect(readRewards(bytes('{"a": 1}'), null, BOTH)).toMatchObject({ reward: 1, conflict: false });
    expect(readRewards(null, bytes("0.25"), BOTH)).toMatchObject({ source: "reward.txt", reward: 0.25 });
  });

  test("an empty json is an error, not a reason to guess", () => {
    expect(readRewards(bytes(""), bytes("1"), BOTH)).toMatchObject({ kind: "error", error: { kind: "empty" } });
  });

  test("a file that the tests never mention does not outrank the one that they do", () => {
    expect(readRewards(bytes('{"reward": 1}'), bytes("0"), { json: false, text: true })).toMatchObject({ source: "reward.txt", reward: 0, conflict: true });
    // A tool that writes the file without being told its name.
    expect(readRewards(bytes('{"reward": 1}'), null, { json: false, text: true })).toMatchObject({ source: "reward.json", reward: 1 });
  });

  test("neither, links and giants", () => {
    expect(readRewards(null, null, BOTH)).toMatchObject({ error: { kind: "missing" } });
    const link: RewardFile = { fault: "is a symlink, not a regular file" };
    expect(readRewards(link, bytes("1"), BOTH)).toMatchObject({ error: { kind: "tampered" } });
    expect(readRewards(null, link, BOTH)).toMatchObject({ error: { kind: "tampered" } });
  });

  test("several rewards without a main one", () => {
    expect(readRewards(bytes('{"a": 1, "b": 0}'), null, BOTH)).toMatchObject({ reward: 0.5, notes: [expect.stringContaining("mean")] });
  });
});
