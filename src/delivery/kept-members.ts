/**
 * Samples of members whose group is not ready yet: packed, in memory up to a budget over all runs of the process, beyond it in files. They need not survive: after a death the worker
 * gives them again.
 */
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { UsableMember } from "./judge.ts";
import type { DeliveredSampleFacts } from "./contract.ts";

/** Arrays of all samples of one or more members behind one another, in the order in which they are stored. */
export interface PackedArrays {
  readonly tokenIds: Uint8Array;
  readonly logprobs: Uint8Array;
  readonly versions: Uint8Array;
  readonly lossMask: Uint8Array;
}

export interface PackedMember {
  readonly facts: readonly DeliveredSampleFacts[];
  readonly lengths: readonly number[];
  readonly arrays: PackedArrays;
}

export interface KeptMember {
  readonly member: number;
  readonly reward: number;
  readonly versionMin: number;
  readonly versionMax: number;
  readonly samples: number;
  readonly tokens: number;
  /** Null: in its file. */
  packed: Buffer | null;
  readonly path: string;
  readonly bytes: number;
}

/** What all runs of a process keep in memory together. */
export class KeptBudget {
  readonly limitBytes: number;
  usedBytes = 0;

  constructor(limitBytes: number) {
    this.limitBytes = limitBytes;
  }
}

export class KeptMembers {
  readonly #directory: string;
  readonly #budget: KeptBudget;
  #made: Promise<unknown> | null = null;

  constructor(directory: string, budget: KeptBudget) {
    this.#directory = directory;
    this.#budget = budget;
  }

  /** Takes away what a process left that died. */
  async sweep(): Promise<void> {
    await rm(this.#directory, { recursive: true, force: true });
  }

  async keep(group: number, member: number, { samples, reward, versionMin, versionMax }: UsableMember): Promise<KeptMember> {
    const packed = pack(samples);
    const kept: KeptMember = {
      member,
      reward,
      versionMin,
      versionMax,
      samples: samples.length,
      tokens: samples.reduce((sum, { arrays }) => sum + arrays.tokenIds.length, 0),
      packed,
      path: join(this.#directory, `${group}-${member}`),
      bytes: packed.length,
    };
    if (this.#budget.usedBytes + packed.length <= this.#budget.limitBytes) {
      this.#budget.usedBytes += packed.length;
      return kept;
    }
    this.#made ??= mkdir(this.#directory, { recursive: true });
    await this.#made;
    await writeFile(kept.path, packed);
    kept.packed = null;
    return kept;
  }

  async load(kept: KeptMember): Promise<PackedMember> {
    return unpack(kept.packed ?? (await readFile(kept.path)));
  }

  async drop(kept: KeptMember): Promise<void> {
    if (kept.packed === null) {
      await rm(kept.path, { force: true });
      return;
    }
    this.#budget.usedBytes -= kept.bytes;
    kept.packed = null;
  }
}

/** Length of the facts (u32, with spaces up to a multiple of 4), the facts, then each of the arrays of all samples. */
function pack(samples: UsableMember["samples"]): Buffer {
  const json = Buffer.from(JSON.stringify({ lengths: samples.map(({ arrays }) => arrays.tokenIds.length), facts: samples.map(({ facts }) => facts) }));
  const padded = Math.ceil(json.length / 4) * 4;
  const tokens = samples.reduce((sum, { arrays }) => sum + arrays.tokenIds.length, 0);
  const packed = Buffer.allocUnsafeSlow(4 + padded + 13 * tokens);
  packed.writeUInt32LE(padded, 0);
  json.copy(packed, 4);
  packed.fill(0x20, 4 + json.length, 4 + padded);
  let at = 4 + padded;
  for (const name of ["tokenIds", "logprobs", "versions", "lossMask"] as const) {
    for (const { arrays } of samples) {
      const array = arrays[name];
      packed.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at);
      at += array.byteLength;
    }
  }
  return packed;
}

function unpack(packed: Buffer): PackedMember {
  const start = 4 + packed.readUInt32LE(0);
  const { lengths, facts } = JSON.parse(packed.toString("utf8", 4, start)) as Pick<PackedMember, "facts" | "lengths">;
  const tokens = lengths.reduce((sum, length) => sum + length, 0);
  const section = (index: number, bytes: number): Uint8Array => packed.subarray(start + index * 4 * tokens, start + index * 4 * tokens + bytes * tokens);
  return { facts, lengths, arrays: { tokenIds: section(0, 4), logprobs: section(1, 4), versions: section(2, 4), lossMask: section(3, 1) } };
}
