/** The sample files as Python reads them: the example of the docs on safetensors, and pyarrow on Parquet. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { writeParquet } from "../../src/rollout/samples/parquet.ts";
import { writeSafetensors } from "../../src/rollout/samples/safetensors.ts";
import type { SampleRow } from "../../src/rollout/samples/sample-row.ts";
import { pythonPath } from "../support/python.ts";

const home = mkdtempSync(join(tmpdir(), "mw-samples-"));
let packages = "";
beforeAll(async () => {
  packages = await pythonPath(["numpy==2.2.6", "pyarrow==21.0.0", "safetensors==0.6.2"]);
}, 600_000);
afterAll(() => rmSync(home, { recursive: true, force: true }));

function python(program: string): string {
  return execFileSync("python3", ["-c", program], { cwd: home, encoding: "utf8", env: { ...process.env, PYTHONPATH: packages, PYTHONIOENCODING: "utf-8" } });
}

async function* rows(): AsyncGenerator<SampleRow> {
  for (const n of [0, 1, 2]) {
    yield await Promise.resolve({
      facts: {
        sample: `ro${n}/0`,
        run: "run1",
        group: "grp1",
        rollout: `ro${n}`,
        task: "tâsk",
        family: "f",
        task_digest: null,
        attempt: n,
        harness: "bash",
        seed: "s",
        segment: 0,
        segments: 1,
        builder: "prefix-merge",
        kind: "main",
        calls: [1],
        outcome: "scored",
        stop_reason: null,
        reward: n === 1 ? null : n / 4,
        rewards: { reward: n / 4 },
        weight: 1,
        prompt_length: 1,
        shared_length: 0,
        version_names: ["v1"],
      },
      arrays: { tokenIds: Int32Array.of(n, n + 1, n + 2), lossMask: Uint8Array.of(0, 1, 1), logprobs: Float32Array.of(0, -0.5, -0.25), versions: Int32Array.of(-1, 0, 0) },
    });
  }
}

it("the example of docs/samples.md reads what was written", async () => {
  const example = /```python\n([\s\S]*?)```/.exec(readFileSync("docs/samples.md", "utf8"))?.[1] ?? "";
  await writeSafetensors(join(home, "samples.safetensors"), rows());
  expect(python(example)).toBe("tâsk 0 [0 1 2] [0 1 1]\ntâsk None [1 2 3] [0 1 1]\ntâsk 0.5 [2 3 4] [0 1 1]\n");
});

it("pyarrow reads the Parquet file with its types", async () => {
  await writeParquet(join(home, "samples.parquet"), rows());
  const program = `
import json, pyarrow.parquet as pq
table = pq.read_table("samples.parquet")
kinds = {name: str(table.schema.field(name).type) for name in ("token_ids", "loss_mask", "logprobs", "versions", "reward", "task")}
print(json.dumps([kinds, table.column("token_ids").to_pylist(), table.column("loss_mask").to_pylist(), table.column("logprobs").to_pylist(), table.column("reward").to_pylist(), table.column("task").to_pylist()]))
`;
  const [kinds, ids, mask, logprobs, reward, task] = JSON.parse(python(program)) as unknown[];
  expect(kinds).toEqual({ token_ids: "list<element: int32 not null>", loss_mask: "list<element: int8 not null>", logprobs: "list<element: float not null>", versions: "list<element: int32 not null>", reward: "double", task: "string" });
  expect(ids).toEqual([[0, 1, 2], [1, 2, 3], [2, 3, 4]]);
  expect(mask).toEqual([[0, 1, 1], [0, 1, 1], [0, 1, 1]]);
  expect(logprobs).toEqual([[0, -0.5, -0.25], [0, -0.5, -0.25], [0, -0.5, -0.25]]);
  expect(reward).toEqual([0, null, 0.5]);
  expect(task).toEqual(["tâsk", "tâsk", "tâsk"]);
});
