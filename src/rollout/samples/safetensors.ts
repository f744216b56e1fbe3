/**
 * Samples as one safetensors file (format: https://github.com/huggingface/safetensors). The samples lie behind one another in four flat tensors, `token_ids` (I32), `loss_mask`
 * (U8), `logprobs` (F32) and `versions` (I32); sample i is at `offsets[i]` to `offsets[i + 1]` (I64). `rewards` (F64) has a NaN where there is none, `scored` (U8) says where. Whatever else is known
 * stands in the metadata under `samples`, a JSON array of `SampleFacts` in the same order.
 *
 * The header comes first and needs all lengths, so the tensors are spooled beside the file and put together at the end: memory holds the facts, never the tokens.
 */
import { createReadStream, createWriteStream } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { finished, pipeline } from "node:stream/promises";
import { once } from "node:events";
import { closed } from "../../store/durable.ts";
import type { SampleFacts, SampleRow } from "./sample-row.ts";

export const SAMPLES_FORMAT = "manyworlds-samples-1";

/** Wider elements first, which keeps every tensor aligned. */
const TENSORS = [
  { name: "offsets", dtype: "I64", bytes: 8 },
  { name: "rewards", dtype: "F64", bytes: 8 },
  { name: "token_ids", dtype: "I32", bytes: 4 },
  { name: "logprobs", dtype: "F32", bytes: 4 },
  { name: "versions", dtype: "I32", bytes: 4 },
  { name: "loss_mask", dtype: "U8", bytes: 1 },
  { name: "scored", dtype: "U8", bytes: 1 },
] as const;
type TensorName = (typeof TENSORS)[number]["name"];

/** Writes all rows to `path`, which is there whole or not at all. Gives back how many samples and tokens they were. */
export async function writeSafetensors(path: string, rows: AsyncIterable<SampleRow>): Promise<{ readonly samples: number; readonly tokens: number }> {
  const spools = new Map(TENSORS.map(({ name }) => [name, new Spool(`${path}.${name}.part`)]));
  const write = async (name: TensorName, array: ArrayBufferView): Promise<void> => await spools.get(name)?.write(array);
  const facts: SampleFacts[] = [];
  let tokens = 0;
  try {
    await write("offsets", BigInt64Array.of(0n));
    for await (const { facts: of, arrays } of rows) {
      facts.push(of);
      tokens += arrays.tokenIds.length;
      await write("token_ids", arrays.tokenIds);
      await write("loss_mask", arrays.lossMask);
      await write("logprobs", arrays.logprobs);
      await write("versions", arrays.versions);
      await write("offsets", BigInt64Array.of(BigInt(tokens)));
      await write("rewards", Float64Array.of(of.reward ?? Number.NaN));
      await write("scored", Uint8Array.of(of.reward === null ? 0 : 1));
    }
    for (const spool of spools.values()) await spool.close();
    await assemble(`${path}.part`, header(facts, spools), spools);
    await rename(`${path}.part`, path);
  } finally {
    for (const spool of spools.values()) await spool.remove();
    await rm(`${path}.part`, { force: true });
  }
  return { samples: facts.length, tokens };
}

function header(facts: readonly SampleFacts[], spools: ReadonlyMap<TensorName, Spool>): Buffer {
  let at = 0;
  const tensors = TENSORS.map(({ name, dtype, bytes }) => {
    const size = spools.get(name)?.size ?? 0;
    const entry = { dtype, shape: [size / bytes], data_offsets: [at, at + size] };
    at += size;
    return [name, entry];
  });
  const json = JSON.stringify({ __metadata__: { format: SAMPLES_FORMAT, samples: JSON.stringify(facts) }, ...Object.fromEntries(tensors) });
  // Spaces behind the header are allowed, and keep what follows aligned.
  const text = Buffer.from(json + " ".repeat((8 - (Buffer.byteLength(json) % 8)) % 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text]);
}

async function assemble(path: string, head: Buffer, spools: ReadonlyMap<TensorName, Spool>): Promise<void> {
  const parts = async function* (): AsyncGenerator<Buffer> {
    yield head;
    for (const { name } of TENSORS) {
      const spool = spools.get(name);
      if (spool !== undefined && spool.size > 0) yield* createReadStream(spool.path, { highWaterMark: 1 << 20 }) as AsyncIterable<Buffer>;
    }
  };
  const out = createWriteStream(path);
  try {
    await pipeline(parts, out);
  } finally {
    await closed(out);
  }
}

class Spool {
  readonly path: string;
  size = 0;
  readonly #out;

  constructor(path: string) {
    this.path = path;
    this.#out = createWriteStream(path);
    // What goes wrong is thrown where it is waited for.
    this.#out.on("error", () => undefined);
  }

  async write(array: ArrayBufferView): Promise<void> {
    if (array.byteLength === 0) return;
    this.size += array.byteLength;
    if (this.#out.errored !== null) throw this.#out.errored;
    if (!this.#out.write(new Uint8Array(array.buffer, array.byteOffset, array.byteLength))) await once(this.#out, "drain");
  }

  async close(): Promise<void> {
    this.#out.end();
    await finished(this.#out);
  }

  async remove(): Promise<void> {
    await closed(this.#out);
    await rm(this.path, { force: true });
  }
}
