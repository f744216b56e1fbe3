/**
 * What holds of every sample that leaves. Each line is a fault that trainers have met in the wild: lengths that differ, logprobs that are no numbers, tokens trained twice, rewards
 * that differ between the pieces of one rollout.
 */
import type { SampleRow } from "../rollout/samples/sample-row.ts";

export interface SampleBounds {
  /** Longest sample that the trainer takes. */
  readonly maxTokens: number | null;
  /** Token ids are below it. */
  readonly vocabSize: number | null;
  /** Oldest version that may have sampled anything. */
  readonly versionFloor: number;
}

export interface Violation {
  readonly code: "malformed_sample" | "overlong" | "no_tokens" | "version";
  readonly message: string;
}

/** Versions of the samples as numbers, or what is wrong with them. The rows are all of one rollout, in order. */
export function checkSamples(rows: readonly SampleRow[], bounds: SampleBounds): { readonly versions: readonly Int32Array[] } | Violation {
  if (rows.length === 0) return { code: "no_tokens", message: "nothing was sampled that can be trained" };
  const versions: Int32Array[] = [];
  for (const [index, row] of rows.entries()) {
    const violation = checkShape(rows, row, index, bounds) ?? checkTokens(row, bounds) ?? checkShared(rows, row, index);
    if (violation !== null) return { ...violation, message: `sample ${index} of ${rows.length}: ${violation.message}` };
    const numbers = versionsOf(row, bounds.versionFloor);
    if ("code" in numbers) return { ...numbers, message: `sample ${index} of ${rows.length}: ${numbers.message}` };
    versions.push(numbers);
  }
  return { versions };
}

function checkShape(rows: readonly SampleRow[], { facts, arrays }: SampleRow, index: number, { maxTokens }: SampleBounds): Violation | null {
  const { length } = arrays.tokenIds;
  if (arrays.lossMask.length !== length || arrays.logprobs.length !== length || arrays.versions.length !== length) return malformed("its arrays differ in length");
  if (maxTokens !== null && length > maxTokens) return { code: "overlong", message: `${length} tokens, more than the ${maxTokens} that the trainer takes` };
  if (facts.segments !== rows.length || facts.segment !== index) return malformed(`it calls itself segment ${facts.segment} of ${facts.segments}`);
  if (facts.reward !== rows[0]?.facts.reward) return malformed("its reward differs from that of the first");
  if (facts.prompt_length > length || facts.shared_length > length) return malformed("its prompt is longer than it is");
  return null;
}

function checkTokens({ facts, arrays }: SampleRow, { vocabSize }: SampleBounds): Violation | null {
  const { tokenIds, lossMask, logprobs } = arrays;
  const vocabulary = vocabSize ?? 0x8000_0000;
  let first = -1;
  for (let at = 0; at < tokenIds.length; at++) {
    // All four have this length.
    const token = tokenIds[at] as number;
    if (token < 0 || token >= vocabulary) return malformed(`token ${at} is ${token}, outside of the vocabulary`);
    const mask = lossMask[at] as number;
    if (mask === 0) continue;
    if (mask !== 1) return malformed(`the mask of token ${at} is ${mask}`);
    if (first < 0) first = at;
    if (!Number.isFinite(logprobs[at])) return malformed(`the logprob of token ${at} is ${String(logprobs[at])}`);
  }
  if (first < 0) return { code: "no_tokens", message: "none of its tokens was sampled by the policy" };
  if (first !== facts.prompt_length) return malformed(`its prompt has ${facts.prompt_length} tokens, but the first sampled one is ${first}`);
  return null;
}

/** Tokens that an earlier sample of the rollout has too are those of an earlier sample, and are not trained again. */
function checkShared(rows: readonly SampleRow[], { facts, arrays }: SampleRow, index: number): Violation | null {
  const { shared_length: shared } = facts;
  if (shared === 0) return null;
  for (let at = 0; at < shared; at++) if (arrays.lossMask[at] !== 0) return malformed(`token ${at} is trained in an earlier sample already`);
  for (let earlier = 0; earlier < index; earlier++) if (sharesPrefix(rows[earlier]?.arrays.tokenIds, arrays.tokenIds, shared)) return null;
  return malformed(`no earlier sample begins with its first ${shared} tokens`);
}

function sharesPrefix(a: Int32Array | undefined, b: Int32Array, length: number): boolean {
  if (a === undefined || a.length < length) return false;
  for (let at = 0; at < length; at++) if (a[at] !== b[at]) return false;
  return true;
}

function versionsOf({ facts, arrays }: SampleRow, floor: number): Int32Array | Violation {
  const names = facts.version_names.map((name) => (/^\d{1,9}$/.test(name) ? Number(name) : null));
  const versions = new Int32Array(arrays.tokenIds.length).fill(-1);
  for (let at = 0; at < versions.length; at++) {
    if (arrays.lossMask[at] === 0) continue;
    const index = arrays.versions[at] ?? -1;
    const version = names[index];
    if (version === undefined || version === null) return { code: "version", message: `token ${at} was sampled by version ${JSON.stringify(facts.version_names[index] ?? null)}, which is no version of the policy` };
    if (version < floor) return { code: "version", message: `token ${at} was sampled by version ${version}, asked for was at least ${floor}` };
    versions[at] = version;
  }
  return versions;
}

function malformed(message: string): Violation {
  return { code: "malformed_sample", message };
}
