/**
 * What a verifier wrote, read strictly. `reward.json` (a flat object of numbers) wins over `reward.txt` (one number), as in Harbor since May 2026; an unusable
 * `reward.json` is an error, never a reason to look at the other file. What cannot be read as a finite number is an error with its own name, never 0.
 */
import { LIMITS } from "../../core/limits.ts";
import type { Verdict } from "../task.ts";

/** One reward file as found: its bytes, or why it is not a regular file of a sane size; null when nothing is there. */
export type RewardFile = { readonly bytes: Uint8Array } | { readonly fault: string } | null;

export type RewardError = NonNullable<Verdict["error"]>;

export type RewardReading =
  | {
      readonly kind: "rewards";
      readonly source: "reward.json" | "reward.txt";
      readonly rewards: Readonly<Record<string, number>>;
      readonly reward: number;
      readonly conflict: boolean;
      readonly notes: readonly string[];
    }
  | { readonly kind: "error"; readonly error: RewardError };

/**
 * `expected`: which of the two files the task's tests mention by name. A file that they never mention, beside one that they do, was written by the program under
 * test, not by the tests: it is passed over, and that is noted.
 */
export function readRewards(json: RewardFile, text: RewardFile, expected: { readonly json: boolean; readonly text: boolean }): RewardReading {
  const notes: string[] = [];
  let useJson = json !== null;
  if (json !== null && text !== null && expected.text && !expected.json) {
    useJson = false;
    notes.push("reward.json was passed over: the tests never mention it, and they do mention reward.txt");
  }
  const file = useJson ? json : text;
  if (file === null) return error("missing", "the verifier wrote neither /logs/verifier/reward.json nor /logs/verifier/reward.txt");
  const source = useJson ? "reward.json" : "reward.txt";
  if ("fault" in file) return error("tampered", `/logs/verifier/${source} ${file.fault}`);
  const parsed = useJson ? parseRewardJson(file.bytes) : parseRewardText(file.bytes);
  if ("error" in parsed) return { kind: "error", error: parsed.error };
  const { reward, note } = scalar(parsed.rewards);
  if (note !== null) notes.push(note);
  return { kind: "rewards", source, rewards: parsed.rewards, reward, conflict: disagrees(json, text, reward, useJson), notes };
}

type Parsed = { readonly rewards: Readonly<Record<string, number>> } | { readonly error: RewardError };

export function parseRewardText(bytes: Uint8Array): Parsed {
  const content = decode(bytes);
  if (content === null) return fail("unparsable", "reward.txt is not UTF-8 text");
  const value = content.trim();
  if (value === "") return fail("empty", "reward.txt is empty");
  if (/^[+-]?(?:nan|inf|infinity)$/i.test(value)) return fail("not_finite", `reward.txt says ${show(value)}`);
  if (!/^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i.test(value)) return fail("unparsable", `reward.txt is not a number: ${show(value)}`);
  const reward = Number(value);
  return Number.isFinite(reward) ? { rewards: { reward } } : fail("not_finite", `reward.txt says ${show(value)}, which no number can hold`);
}

export function parseRewardJson(bytes: Uint8Array): Parsed {
  const content = decode(bytes);
  if (content === null) return fail("unparsable", "reward.json is not UTF-8 text");
  if (content.trim() === "") return fail("empty", "reward.json is empty");
  const document = parseJson(content);
  if (document === undefined) return fail("unparsable", `reward.json is not JSON: ${show(content)}`);
  if (typeof document !== "object" || document === null || Array.isArray(document)) return fail("unparsable", `reward.json is not an object of numbers: ${show(content)}`);
  const entries = Object.entries(document);
  if (entries.length === 0) return fail("empty", "reward.json has no rewards");
  if (entries.length > LIMITS.rewardKeys) return fail("unparsable", `reward.json has ${entries.length} keys, more than ${LIMITS.rewardKeys}`);
  for (const [key, value] of entries) {
    if (typeof value === "boolean") continue;
    if (typeof value !== "number") return fail("unparsable", `reward.json: ${show(key)} is not a number`);
    if (!Number.isFinite(value)) return fail("not_finite", `reward.json: ${show(key)} is not finite`);
  }
  // Booleans count as 1 and 0, as they do in Harbor.
  return { rewards: Object.fromEntries(entries.map(([key, value]) => [key, Number(value)])) };
}

/** Strict JSON, but with NaN and Infinity as other writers put them, so that they can be named. Undefined when it is neither. */
function parseJson(content: string): unknown {
  const text = content.replace(/^\uFEFF/, "");
  for (const candidate of [text, text.replace(/("(?:[^"\\]|\\.)*")|-?\b(?:NaN|Infinity)\b/g, (match, quoted: string | undefined) => (quoted === undefined ? "1e999" : match))]) {
    try {
      return JSON.parse(candidate) as unknown;
    } catch {
      continue;
    }
  }
  return undefined;
}

/** The one number of several: the key `reward`, else the only key, else the mean of all. */
function scalar(rewards: Readonly<Record<string, number>>): { reward: number; note: string | null } {
  const named = Object.hasOwn(rewards, "reward") ? rewards["reward"] : undefined;
  if (named !== undefined) return { reward: named, note: null };
  const values = Object.values(rewards);
  const mean = values.reduce((sum, value) => sum + value / values.length, 0);
  return { reward: mean, note: values.length === 1 ? null : `no key "reward": the reward is the mean of ${Object.keys(rewards).map(show).join(", ")}` };
}

function disagrees(json: RewardFile, text: RewardFile, reward: number, usedJson: boolean): boolean {
  const other = usedJson ? text : json;
  if (other === null) return false;
  if ("fault" in other) return true;
  const parsed = usedJson ? parseRewardText(other.bytes) : parseRewardJson(other.bytes);
  return "error" in parsed || scalar(parsed.rewards).reward !== reward;
}

function decode(bytes: Uint8Array): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** Hostile text, short and printable. */
function show(value: string): string {
  return JSON.stringify(value.length > 80 ? `${value.slice(0, 80)}...` : value);
}

function fail(kind: RewardError["kind"], message: string): { readonly error: RewardError } {
  return { error: { kind, message } };
}

function error(kind: RewardError["kind"], message: string): RewardReading {
  return { kind: "error", error: { kind, message } };
}
