/** The head as one msgpack document; in each group `samples` in place of `sample_facts`: the facts of the sample and its arrays as `{dtype, shape, data}`. */
import { Packr } from "msgpackr";
import type { DeliveredSample, Lease } from "../delivery.ts";
import { bytesOf, headWithoutGroups, type EncodedLease } from "./encoding.ts";

/** Plain maps, which every reader knows. */
const packr = new Packr({ useRecords: false, variableMapSize: true });

export function encodeMsgpack(lease: Lease): EncodedLease {
  return { contentType: "application/msgpack", bytes: null, chunks: chunks(lease) };
}

function* chunks({ head, groups }: Lease): Generator<Uint8Array> {
  const entries = Object.entries(headWithoutGroups(head));
  yield mapHeader(entries.length + 1);
  for (const [key, value] of entries) yield Buffer.concat([packed(key), packed(value)]);
  yield packed("groups");
  yield arrayHeader(groups.length);
  for (const group of groups) yield packed({ ...group.facts, samples: group.samples.map(sampleOf) });
}

function sampleOf({ facts, arrays }: DeliveredSample): Record<string, unknown> {
  return {
    ...facts,
    token_ids: arrayOf("int32", arrays.tokenIds),
    loss_mask: arrayOf("uint8", arrays.lossMask),
    logprobs: arrayOf("float32", arrays.logprobs),
    versions: arrayOf("int32", arrays.versions),
  };
}

function arrayOf(dtype: string, array: ArrayBufferView & { readonly length: number }): Record<string, unknown> {
  // Buffers are written as binary data, whole arrays of other types as extensions.
  return { dtype, shape: [array.length], data: Buffer.from(bytesOf(array).buffer, array.byteOffset, array.byteLength) };
}

/** The packer uses its buffer again: what it gave is copied. */
function packed(value: unknown): Buffer {
  return Buffer.from(packr.pack(value));
}

/** Of the format: https://github.com/msgpack/msgpack/blob/master/spec.md, a map or array with a 32-bit count. */
function mapHeader(size: number): Buffer {
  return header(0xdf, size);
}

function arrayHeader(size: number): Buffer {
  return header(0xdd, size);
}

function header(type: number, size: number): Buffer {
  const bytes = Buffer.alloc(5);
  bytes.writeUInt8(type);
  bytes.writeUInt32BE(size, 1);
  return bytes;
}
