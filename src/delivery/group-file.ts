/**
 * The samples of one finished group as one safetensors file, written once and delivered from as often as it takes: that makes redelivery the same bytes, and memory independent of
 * how many groups wait. The group's facts stand in the metadata under `group`. The CRC-32 of the file is in the log.
 */
import { open, rename, rm, stat, type FileHandle } from "node:fs/promises";
import { crc32 } from "node:zlib";
import { MwError } from "../core/errors.ts";
import type { Durability } from "../store/durable.ts";
import type { SampleArrays } from "../rollout/samples/sample-row.ts";
import type { DeliveredSampleFacts, GroupFacts } from "./contract.ts";
import type { DeliveredGroup } from "./delivery.ts";
import type { PackedMember } from "./kept-members.ts";
import { readSafetensorsHead, safetensorsHead } from "./safetensors-head.ts";

const FORMAT = "manyworlds-group-1";

/** Writes the file whole or not at all, and gives back its checksum. `load` gives the members in order, each time anew. */
export async function writeGroup(path: string, facts: GroupFacts, members: readonly (() => Promise<PackedMember>)[], durability: Durability): Promise<number> {
  const temporary = `${path}.new`;
  const file = await open(temporary, "w", 0o644);
  try {
    const sum = await writeTensors(file, facts, members);
    if (durability === "power") await file.sync();
    await file.close();
    await rename(temporary, path);
    return sum;
  } catch (error) {
    await file.close().catch(() => undefined);
    await rm(temporary, { force: true });
    throw error;
  }
}

async function writeTensors(file: FileHandle, facts: GroupFacts, members: readonly (() => Promise<PackedMember>)[]): Promise<number> {
  const sampleFacts: DeliveredSampleFacts[] = [];
  const offsets = [0n];
  for (const load of members) {
    const { facts: of, lengths } = await load();
    sampleFacts.push(...of);
    for (const length of lengths) offsets.push((offsets.at(-1) ?? 0n) + BigInt(length));
  }
  let sum = 0;
  let pending: Uint8Array[] = [];
  let pendingBytes = 0;
  const flush = async (): Promise<void> => {
    if (pending.length > 0) await file.writev(pending);
    pending = [];
    pendingBytes = 0;
  };
  const write = async (bytes: Uint8Array): Promise<void> => {
    if (bytes.length === 0) return;
    sum = crc32(bytes, sum);
    pending.push(bytes);
    pendingBytes += bytes.length;
    if (pendingBytes > 1 << 20 || pending.length > 512) await flush();
  };
  await write(safetensorsHead({ format: FORMAT, group: JSON.stringify({ ...facts, sample_facts: sampleFacts }) }, facts.samples, facts.tokens));
  await write(new Uint8Array(BigInt64Array.from(offsets).buffer));
  for (const name of ["tokenIds", "logprobs", "versions", "lossMask"] as const) for (const load of members) await write((await load()).arrays[name]);
  await flush();
  return sum;
}

/** Rejects `corrupt` for a file that is not what was written. */
export async function readGroup(path: string, sum: number): Promise<DeliveredGroup> {
  const bytes = await readAligned(path);
  if (crc32(bytes) !== sum) throw damaged(path, "its checksum differs");
  const { metadata, tensors, start } = readSafetensorsHead(bytes);
  const { sample_facts: sampleFacts, ...facts } = JSON.parse(metadata["group"] ?? "null") as GroupFacts & { sample_facts: DeliveredSampleFacts[] };
  const place = (name: string): { readonly at: number; readonly count: number } => {
    const tensor = tensors[name];
    if (tensor === undefined) throw damaged(path, `it has no ${name}`);
    return { at: start + tensor.data_offsets[0], count: tensor.shape[0] ?? 0 };
  };
  const tokens = place("token_ids");
  const flat: SampleArrays = {
    tokenIds: new Int32Array(bytes.buffer, tokens.at, tokens.count),
    logprobs: new Float32Array(bytes.buffer, place("logprobs").at, tokens.count),
    versions: new Int32Array(bytes.buffer, place("versions").at, tokens.count),
    lossMask: new Uint8Array(bytes.buffer, place("loss_mask").at, tokens.count),
  };
  const offsets = numbersAt(bytes, place("offsets"));
  const samples = sampleFacts.map((of, index) => {
    const [from = 0, to = 0] = [offsets[index], offsets[index + 1]];
    return {
      facts: of,
      arrays: { tokenIds: flat.tokenIds.subarray(from, to), logprobs: flat.logprobs.subarray(from, to), versions: flat.versions.subarray(from, to), lossMask: flat.lossMask.subarray(from, to) },
    };
  });
  return { facts, samples, flat };
}

/** A buffer of its own, so that the tensors can be looked at in place. */
async function readAligned(path: string): Promise<Uint8Array<ArrayBuffer>> {
  const file = await open(path, "r").catch((error: unknown) => {
    throw damaged(path, "it cannot be opened", error);
  });
  try {
    const { size } = await stat(path);
    const bytes = new Uint8Array(size);
    for (let done = 0; done < size; ) {
      const { bytesRead } = await file.read(bytes, done, size - done, done);
      if (bytesRead === 0) throw damaged(path, "it ends early");
      done += bytesRead;
    }
    return bytes;
  } finally {
    await file.close();
  }
}

function numbersAt(bytes: Uint8Array<ArrayBuffer>, { at, count }: { readonly at: number; readonly count: number }): readonly number[] {
  return Array.from(new BigInt64Array(bytes.buffer, at, count), Number);
}

function damaged(path: string, why: string, cause?: unknown): MwError {
  return new MwError("corrupt", `${path} is not the group that was written: ${why}`, { cause, fix: "restore the file; its group has ended as failed" });
}
