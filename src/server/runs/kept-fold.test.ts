/** What is kept of a run's log beside it, against the log itself. */
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { begin, end, writeRun, type RunFixture } from "../../../test/support/run-fixture.ts";
import { newId } from "../../core/ids.ts";
import { systemRuntime } from "../../core/runtime.ts";
import { eventsFile } from "../../store/run-directory.ts";
import { foldFile, readKeptFold } from "./kept-fold.ts";
import { LiveRun } from "./live-run.ts";

const home = mkdtempSync(join(tmpdir(), "mw-kept-"));
let fixture: RunFixture;
let kept: string;
let log: string;

beforeAll(async () => {
  // More than is worth keeping; with failed tries, rollouts under way, and groups that a trainer asked for.
  fixture = await writeRun({ home, tasks: 120, attempts: 8, seed: "kept", unfinished: 20 });
  const error = { code: "invalid_task", message: "there is no task.toml", fix: null } as const;
  const [group, rollout, later] = [newId("grp", systemRuntime), newId("ro", systemRuntime), newId("ro", systemRuntime)];
  const task = { name: "asked/for", family: "asked", digest: null, directory: "/nowhere/asked" };
  await fixture.append([
    { type: "input_refused", source: "/nowhere/else", error },
    { type: "group_planned", group, index: 120, source: task.directory, task, error: null, name: "step-1", dataset: "mix", rollouts: [{ rollout, attempt: 1, seed: "1", harness: "bash", sampling: { top_k: 4 }, deadlineMs: 9_000 }] },
    { type: "rollouts_planned", group, rollouts: [{ rollout: later, attempt: 2, seed: "2", harness: "bash", replacement: 1, branch: { parent: rollout, turn: 2 } }] },
    ...begin(rollout, 1),
    { type: "run_interrupted", reason: "asked to" },
  ]);
  kept = foldFile(home, fixture.run);
  log = eventsFile(home, fixture.run);
});
afterAll(async () => {
  await fixture.close();
  rmSync(home, { recursive: true, force: true });
});

/** All that is known of a run, also by questions. */
async function knowledge(run: LiveRun): Promise<unknown> {
  const { state, order, groupOf, failedTries, seq } = run;
  const [first, last] = [order[3], order.at(-2)];
  return {
    state: Object.entries(state),
    named: state.groupNamed("step-1"),
    members: order.map((rollout) => state.groupOf(rollout).map((member) => member.rollout)),
    order: [...order],
    groupOf: [...groupOf],
    failedTries: [...failedTries],
    seq,
    changes: run.changedSince(0, 10_000),
    latest: run.changedSince(seq - 40, 5),
    events: await Promise.all([first, last].flatMap((rollout) => (rollout === undefined ? [] : run.eventsOf(rollout.rollout)))),
  };
}

async function opened(): Promise<LiveRun> {
  const run = new LiveRun(home, fixture.run);
  await run.refresh();
  return run;
}

/** As the log alone tells it. */
async function fromLog(): Promise<unknown> {
  rmSync(kept, { force: true });
  const told = await knowledge(await opened());
  return told;
}

async function keep(): Promise<void> {
  rmSync(kept, { force: true });
  await new LiveRun(home, fixture.run).keep();
}

describe("what is kept of a log", () => {
  it("says what the log says, and goes on with what is written after it", async () => {
    const told = await fromLog();
    await keep();
    const fold = await readKeptFold(home, fixture.run);
    expect(fold?.position.offset).toBe(statSync(log).size);
    expect(await knowledge(await opened())).toEqual(told);

    const unfinished = fixture.groups[119]?.rollouts[7];
    if (unfinished === undefined) throw new Error("there are twenty");
    await fixture.append(end(unfinished, 1, 1));
    const goneOn = await knowledge(await opened());
    expect(goneOn).not.toEqual(told);
    expect(goneOn).toEqual(await fromLog());
  });

  it("is written by a reader, too, and never again by one that cannot", async () => {
    rmSync(kept, { force: true });
    const run = await opened();
    await run.keep();
    expect(await readKeptFold(home, fixture.run)).not.toBeNull();
    rmSync(kept);
    mkdirSync(`${kept}.new`);
    const told = await knowledge(await opened());
    expect(await knowledge(await opened())).toEqual(told);
    expect(existsSync(kept)).toBe(false);
    rmSync(`${kept}.new`, { recursive: true });
  });

  it("counts for nothing where it is damaged, of another version, or of another log", async () => {
    const told = await fromLog();
    await keep();
    const whole = readFileSync(kept);
    const text = whole.toString("utf8");
    const [head = "", body = ""] = text.split("\n");
    /** One that is whole, but says something else. */
    const saying = (change: (head: Record<string, unknown>) => object, other = body): string => `${JSON.stringify({ ...change(JSON.parse(head) as Record<string, unknown>), sum: crc32(other) })}\n${other}\n`;
    const wrong: Readonly<Record<string, string | Buffer>> = {
      "half of it": whole.subarray(0, whole.length / 2),
      "nothing": "",
      "not JSON": "fold",
      "a reward that was changed": text.replace('"reward":1', '"reward":0'),
      "another format": saying((was) => ({ ...was, format: 0 })),
      "fields of another version": saying((was) => ({ ...was, columns: [...(was["columns"] as string[]), "mood"] })),
      "a rollout of no group": saying((was) => was, body.replace('"rollouts":[[0,', '"rollouts":[[9999,')),
    };
    for (const [name, content] of Object.entries(wrong)) {
      writeFileSync(kept, content);
      expect(await readKeptFold(home, fixture.run), name).toBeNull();
      expect(await knowledge(await opened()), name).toEqual(told);
      await keep();
    }

    // The log of before, in part another one, of the same length; and one that was cut.
    copyFileSync(log, `${log}.kept`);
    const bytes = readFileSync(log);
    bytes[bytes.length >> 1] = (bytes[bytes.length >> 1] ?? 0) ^ 1;
    writeFileSync(log, bytes);
    expect(await readKeptFold(home, fixture.run)).toBeNull();
    expect((await opened()).status).toBe("damaged");
    copyFileSync(`${log}.kept`, log);
    expect(await readKeptFold(home, fixture.run)).not.toBeNull();
    truncateSync(log, bytes.lastIndexOf(10, bytes.length - 2) + 1);
    expect(await readKeptFold(home, fixture.run)).toBeNull();
    expect(await knowledge(await opened())).toEqual(await fromLog());
  });
});
