/** The beginning of a safetensors file (format: https://github.com/huggingface/safetensors): its length, and JSON that says where the tensors lie. */
import { MwError } from "../core/errors.ts";

/** Widest elements first, which keeps every tensor aligned. */
export const TENSORS = [
  { name: "offsets", dtype: "I64", bytes: 8 },
  { name: "token_ids", dtype: "I32", bytes: 4 },
  { name: "logprobs", dtype: "F32", bytes: 4 },
  { name: "versions", dtype: "I32", bytes: 4 },
  { name: "loss_mask", dtype: "U8", bytes: 1 },
] as const;

/** Elements of each tensor: one a token, and the offsets of the samples with their end. */
export function safetensorsHead(metadata: Readonly<Record<string, string>>, samples: number, tokens: number): Buffer {
  let at = 0;
  const tensors = TENSORS.map(({ name, dtype, bytes }) => {
    const count = name === "offsets" ? samples + 1 : tokens;
    const entry = { dtype, shape: [count], data_offsets: [at, at + count * bytes] };
    at += count * bytes;
    return [name, entry];
  });
  const json = Buffer.from(JSON.stringify({ __metadata__: metadata, ...Object.fromEntries(tensors) }));
  const padded = Math.ceil(json.length / 8) * 8;
  const head = Buffer.alloc(8 + padded, 0x20);
  head.writeBigUInt64LE(BigInt(padded));
  json.copy(head, 8);
  return head;
}

export interface TensorPlace {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data_offsets: readonly [number, number];
}

export interface ReadHead {
  readonly metadata: Readonly<Record<string, string>>;
  readonly tensors: Readonly<Record<string, TensorPlace>>;
  /** Where the tensors begin. */
  readonly start: number;
}

export function readSafetensorsHead(file: Uint8Array): ReadHead {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = file.byteLength < 8 ? Number.NaN : Number(view.getBigUint64(0, true));
  if (!(length <= file.byteLength - 8)) throw new MwError("corrupt", "a safetensors file ends before its header");
  const { __metadata__: metadata, ...tensors } = JSON.parse(Buffer.from(file.buffer, file.byteOffset + 8, length).toString("utf8")) as Record<string, TensorPlace> & { __metadata__: Record<string, string> };
  return { metadata, tensors, start: 8 + length };
}
