/** Samples as a Parquet file, one row each: the facts as columns, the arrays as lists. */
import { rename, rm } from "node:fs/promises";
import type { SampleRow } from "./sample-row.ts";

/** Rows of one group lie in memory together. */
const ROWS_PER_GROUP = 64;

const text = (name: string, nullable = false): object => ({ name, type: "BYTE_ARRAY", converted_type: "UTF8", repetition_type: nullable ? "OPTIONAL" : "REQUIRED" });
const number = (name: string, type: "INT32" | "DOUBLE", nullable = false): object => ({ name, type, repetition_type: nullable ? "OPTIONAL" : "REQUIRED" });
const list = (name: string, element: object): readonly object[] => [
  { name, converted_type: "LIST", repetition_type: "REQUIRED", num_children: 1 },
  { name: "list", repetition_type: "REPEATED", num_children: 1 },
  { name: "element", repetition_type: "REQUIRED", ...element },
];

const COLUMNS: readonly (readonly [name: string, schema: readonly object[]])[] = [
  ...["sample", "run", "group", "rollout", "task", "family"].map((name) => [name, [text(name)]] as const),
  ["task_digest", [text("task_digest", true)]],
  ["attempt", [number("attempt", "INT32")]],
  ["harness", [text("harness")]],
  ["seed", [text("seed")]],
  ["segment", [number("segment", "INT32")]],
  ["segments", [number("segments", "INT32")]],
  ["builder", [text("builder")]],
  ["kind", [text("kind")]],
  ["calls", list("calls", { type: "INT32" })],
  ["outcome", [text("outcome")]],
  ["stop_reason", [text("stop_reason", true)]],
  ["reward", [number("reward", "DOUBLE", true)]],
  // Names are the task's own, so they cannot be columns.
  ["rewards", [{ name: "rewards", type: "BYTE_ARRAY", converted_type: "JSON", repetition_type: "REQUIRED" }]],
  ["weight", [number("weight", "DOUBLE")]],
  ["prompt_length", [number("prompt_length", "INT32")]],
  ["shared_length", [number("shared_length", "INT32")]],
  ["version_names", list("version_names", { type: "BYTE_ARRAY", converted_type: "UTF8" })],
  ["token_ids", list("token_ids", { type: "INT32" })],
  ["loss_mask", list("loss_mask", { type: "INT32", converted_type: "INT_8" })],
  ["logprobs", list("logprobs", { type: "FLOAT" })],
  ["versions", list("versions", { type: "INT32" })],
];

/** Writes all rows to `path`, which is there whole or not at all. Gives back how many samples and tokens they were. */
export async function writeParquet(path: string, rows: AsyncIterable<SampleRow>): Promise<{ readonly samples: number; readonly tokens: number }> {
  // Loaded only where it is used.
  const { fileWriter, parquetWriteRows } = await import("hyparquet-writer");
  const counts = { samples: 0, tokens: 0 };
  const records = async function* (): AsyncGenerator<Record<string, unknown>> {
    for await (const { facts, arrays } of rows) {
      counts.samples++;
      counts.tokens += arrays.tokenIds.length;
      yield { ...facts, token_ids: [...arrays.tokenIds], loss_mask: [...arrays.lossMask], logprobs: [...arrays.logprobs], versions: [...arrays.versions] };
    }
  };
  const part = `${path}.part`;
  try {
    await parquetWriteRows({
      writer: fileWriter(part),
      rows: records(),
      columns: COLUMNS.map(([name]) => ({ name })),
      schema: [{ name: "root", num_children: COLUMNS.length }, ...(COLUMNS.flatMap(([, schema]) => schema) as { name: string }[])],
      rowGroupSize: ROWS_PER_GROUP,
    });
    await rename(part, path);
  } finally {
    await rm(part, { force: true });
  }
  return counts;
}
