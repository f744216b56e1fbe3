/** Sets of 32-bit tensors as safetensors files (https://github.com/huggingface/safetensors), read with every length checked. */
import { readFile } from "node:fs/promises";
import { z } from "zod";
import { MwError, messageOf } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { writeDurably } from "../store/durable.ts";
import { sizeOf, type Parameters } from "./model/shape.ts";

const entrySchema = z.strictObject({ dtype: z.string(), shape: z.array(z.int().nonnegative()), data_offsets: z.tuple([z.int().nonnegative(), z.int().nonnegative()]) });
const FLOAT_BYTES = 4;

/** Written whole or not at all. */
export async function writeTensors(path: string, tensors: Parameters, shapes: ReadonlyMap<string, readonly number[]>): Promise<void> {
  const header: Record<string, unknown> = {};
  const parts: Buffer[] = [];
  let at = 0;
  for (const [name, values] of tensors) {
    header[name] = { dtype: "F32", shape: shapes.get(name) ?? [values.length], data_offsets: [at, at + values.byteLength] };
    at += values.byteLength;
    parts.push(Buffer.from(values.buffer, values.byteOffset, values.byteLength));
  }
  const json = JSON.stringify(header);
  // Spaces behind the header keep the numbers aligned.
  const text = Buffer.from(json + " ".repeat((8 - (Buffer.byteLength(json) % 8)) % 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  await writeDurably(path, Buffer.concat([length, text, ...parts]), "process");
}

/** Rejects `corrupt` for a file that is none, or that lacks a tensor of `shapes` or has another one. */
export async function readTensors(path: string, shapes: ReadonlyMap<string, readonly number[]>): Promise<Parameters> {
  const bytes = await readFile(path).catch((error: unknown) => {
    throw new MwError("not_found", `there are no weights at ${path}: ${messageOf(error)}`, { fix: "name the directory of a checkpoint", cause: error });
  });
  const wrong = (why: string): MwError => new MwError("corrupt", `${path} ${why}`, { fix: "use another checkpoint" });
  if (bytes.length < 8) throw wrong("is no safetensors file");
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  if (headerBytes > LIMITS.tensorHeaderBytes || 8 + headerBytes > bytes.length) throw wrong("is no whole safetensors file");
  let header: Readonly<Record<string, unknown>>;
  try {
    header = z.record(z.string(), z.unknown()).parse(JSON.parse(bytes.toString("utf8", 8, 8 + headerBytes)));
  } catch (error) {
    throw wrong(`has a header that is none: ${messageOf(error)}`);
  }
  const data = bytes.subarray(8 + headerBytes);
  const unknown = Object.keys(header).find((name) => name !== "__metadata__" && !shapes.has(name));
  if (unknown !== undefined) throw wrong(`holds ${JSON.stringify(unknown)}, which this model has not`);
  return new Map(
    [...shapes].map(([name, sides]) => {
      const entry = entrySchema.safeParse(header[name]);
      if (!entry.success) throw wrong(`lacks ${name}`);
      const { dtype, shape, data_offsets: [from, to] } = entry.data;
      const size = sizeOf(sides);
      if (dtype !== "F32" || shape.join() !== sides.join() || to - from !== size * FLOAT_BYTES || to > data.length) throw wrong(`has ${name} as ${dtype} [${shape.join(", ")}], not as F32 [${sides.join(", ")}]`);
      // A copy is aligned.
      return [name, new Float32Array(Uint8Array.from(data.subarray(from, to)).buffer)];
    }),
  );
}
