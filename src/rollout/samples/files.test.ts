import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parquetReadObjects } from "hyparquet";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { writeParquet } from "./parquet.ts";
import { writeSafetensors } from "./safetensors.ts";
import type { SampleRow } from "./sample-row.ts";

let home = "";
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "mw-samples-"));
});
afterEach(() => rmSync(home, { recursive: true, force: true }));

const row = (n: number, length: number): SampleRow => ({
  facts: {
    sample: `ro${n}/0`,
    run: "run1",
    group: "grp1",
    rollout: `ro${n}`,
    task: 'a "task" ✓',
    family: "f",
    task_digest: n % 2 === 0 ? null : "sha256:1",
    attempt: n,
    harness: "bash",
    seed: "s",
    segment: 0,
    segments: 2,
    builder: "prefix-merge",
    kind: "main",
    calls: [1, 2],
    outcome: n % 3 === 0 ? "verifier_error" : "scored",
    stop_reason: null,
    reward: n % 3 === 0 ? null : n / 2,
    rewards: { reward: n / 2, "odd name": 1 },
    weight: 0.5,
    prompt_length: 1,
    shared_length: 0,
    version_names: ["1", "2"],
  },
  arrays: {
    tokenIds: Int32Array.from({ length }, (_, at) => n * 1000 + at),
    lossMask: Uint8Array.from({ length }, (_, at) => at % 2),
    logprobs: Float32Array.from({ length }, (_, at) => -at / 3),
    versions: Int32Array.from({ length }, (_, at) => (at % 2 === 0 ? -1 : 1)),
  },
});

async function* rows(count: number): AsyncGenerator<SampleRow> {
  for (let n = 0; n < count; n++) yield await Promise.resolve(row(n, n === 4 ? 0 : 3 + (n % 5)));
}

describe("samples in files", () => {
  it("safetensors: a header that tells where everything is, and aligned tensors behind it", async () => {
    const path = join(home, "samples.safetensors");
    const { samples, tokens } = await writeSafetensors(path, rows(9));
    const file = readFileSync(path);
    const length = Number(file.readBigUInt64LE(0));
    const { __metadata__: metadata, ...tensors } = JSON.parse(file.toString("utf8", 8, 8 + length)) as { readonly __metadata__: { readonly samples: string } } & Readonly<Record<string, { readonly data_offsets: readonly [number, number] }>>;
    const data = (name: string): ArrayBuffer => {
      const [start, end] = tensors[name]?.data_offsets ?? [0, 0];
      return Uint8Array.from(file.subarray(8 + length + start, 8 + length + end)).buffer;
    };
    const offsets = [...new BigInt64Array(data("offsets"))].map(Number);
    expect(samples).toBe(9);
    expect(offsets.at(-1)).toBe(tokens);
    expect((8 + length) % 8).toBe(0);
    expect(Math.max(...Object.values(tensors).flatMap(({ data_offsets: at }) => at))).toBe(file.length - 8 - length);
    expect(JSON.parse(metadata.samples)).toEqual(Array.from({ length: 9 }, (_, n) => row(n, 0).facts));
    const ids = new Int32Array(data("token_ids"));
    const logprobs = new Float32Array(data("logprobs"));
    for (let n = 0; n < 9; n++) {
      const { arrays } = row(n, n === 4 ? 0 : 3 + (n % 5));
      expect(ids.slice(offsets[n], offsets[n + 1])).toEqual(arrays.tokenIds);
      expect(logprobs.slice(offsets[n], offsets[n + 1])).toEqual(arrays.logprobs);
    }
    expect([...new Uint8Array(data("scored"))]).toEqual([0, 1, 1, 0, 1, 1, 0, 1, 1]);
    expect(new Float64Array(data("rewards"))[1]).toBe(0.5);
    expect(readdirSync(home)).toEqual(["samples.safetensors"]);
  });

  it("parquet: lists for the arrays, columns for the rest", async () => {
    const path = join(home, "samples.parquet");
    expect(await writeParquet(path, rows(150))).toMatchObject({ samples: 150 });
    const bytes = Uint8Array.from(readFileSync(path)).buffer;
    const read = await parquetReadObjects({ file: bytes });
    expect(read.length).toBe(150);
    for (const n of [0, 1, 4, 149]) {
      const { facts, arrays } = row(n, n === 4 ? 0 : 3 + (n % 5));
      expect(read[n]).toEqual({ ...facts, token_ids: [...arrays.tokenIds], loss_mask: [...arrays.lossMask], logprobs: [...arrays.logprobs], versions: [...arrays.versions] });
    }
  });

  it("leaves nothing behind when the rows fail half-way", async () => {
    const broken = async function* (): AsyncGenerator<SampleRow> {
      yield* rows(3);
      throw new Error("no more");
    };
    // Also where a file is only being opened when it is to go: many at once keep each other waiting.
    await Promise.all(
      Array.from({ length: 50 }, async (_, at) => {
        await expect(writeSafetensors(join(home, `${at}.safetensors`), broken())).rejects.toThrow("no more");
        await expect(writeParquet(join(home, `${at}.parquet`), broken())).rejects.toThrow("no more");
      }),
    );
    expect(readdirSync(home)).toEqual([]);
  });

  it("says it when the place cannot be written", async () => {
    await expect(writeSafetensors(join(home, "no", "a.safetensors"), rows(3))).rejects.toThrow(/ENOENT/);
    await expect(writeParquet(join(home, "no", "a.parquet"), rows(3))).rejects.toThrow(/ENOENT/);
  });
});
