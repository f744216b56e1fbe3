/** What a run promises its trainer: staleness, order, bounds, shares, waiting and going back. */
import { existsSync, readdirSync, rmSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { failedEnd, scoredEnd } from "../../test/support/delivery/simulated-worker.ts";
import { SimulatedRun, type SimulatedRunOptions } from "../../test/support/delivery/simulated-run.ts";
import { Alarms } from "./alarms.ts";
import { leaseRequestSchema, type GroupSubmission, type LeaseRequest } from "./contract.ts";
import type { Lease } from "./delivery.ts";

const never = new AbortController().signal;
const wanted = (request: Partial<LeaseRequest> = {}): LeaseRequest => leaseRequestSchema.parse(request);
const named = (count: number, about: Partial<GroupSubmission> = {}): GroupSubmission[] => Array.from({ length: count }, (_, at) => ({ group_id: `g${at}`, task: "/t", ...about }));

let run: SimulatedRun;
afterEach(() => run.close());

/** Each group takes as long as `seconds` says of its name. */
async function openRun(request: SimulatedRunOptions["request"], seconds: (group: string) => number = () => 1, more: Partial<SimulatedRunOptions> = {}): Promise<void> {
  run = await SimulatedRun.open({
    request: { group_size: 1, quarantine_after: null, ...request },
    draw: (job) => ({
      durationMs: seconds(job.groupId) * 1000,
      end: ({ startedAt, endedAt, version }) =>
        seconds(job.groupId) === 13 ? failedEnd(job, "task_error", "image_failed", startedAt, endedAt, true) : scoredEnd(job, { startedAt, endedAt, reward: 1, prompt: 2, sampled: 3, versionMin: version, versionMax: version }),
    }),
    ...more,
  });
}

const setVersion = (version: number): Promise<unknown> => run.service.setPolicy({ version, state: "live", model: "m", endpoints: [{ url: "http://127.0.0.1:1" }] });
const lease = (request: Partial<LeaseRequest> = {}): Promise<Lease> => run.service.lease(wanted(request), never);
const namesOf = ({ groups }: Lease): string[] => groups.map(({ facts }) => facts.group_id);
async function consume(request: Partial<LeaseRequest> = {}): Promise<string[]> {
  const taken = await lease(request);
  if (taken.head.lease_id !== null) await run.service.ack(taken.head.lease_id, { consumed: namesOf(taken), rejected: [] });
  return namesOf(taken);
}

describe("staleness", () => {
  it("by admission begins no more than can be consumed in time", async () => {
    await openRun({ max_staleness: 1, batch_groups: 3, concurrency: 100 });
    await run.service.submit(named(40));
    await run.advance(5_000);
    expect(run.service.status()).toMatchObject({ waiting_for: "policy", groups: { waiting: 40 } });
    for (let version = 0; version < 5; version++) {
      await setVersion(version);
      await run.advance(5_000);
      const { groups, waiting_for: why } = run.service.status();
      expect(groups.ready + groups.consumed).toBe((1 + version + 1) * 3);
      expect(why).toBe("staleness");
      expect((await consume({ max_groups: 3 })).length).toBe(3);
    }
    expect(run.service.status().groups.expired).toBe(0);
  });

  it("by admission keeps the place of a straggler, and a trainer waits for it rather than past it", async () => {
    await openRun({ max_staleness: 1, batch_groups: 2, concurrency: 100, window: 100 }, (group) => (group === "g0" ? 1_000 : 1));
    await setVersion(0);
    await run.service.submit(named(20));
    await run.advance(10_000);
    // Four were begun at version 0; the straggler is one of the first four that go out.
    expect(await consume({ max_groups: 2 })).toEqual(["g1", "g2"]);
    await setVersion(1);
    await run.advance(10_000);
    expect(await consume({ max_groups: 2, current_version: 1 })).toEqual(["g3"]);
    expect(await consume({ max_groups: 2, current_version: 1 })).toEqual([]);
    await run.advance(1_000_000);
    expect(await consume({ max_groups: 2, current_version: 1 })).toEqual(["g0", "g4"]);
  });

  it("at lease ends what is too old, and says so", async () => {
    await openRun({ max_staleness: 1, batch_groups: 2, concurrency: 100, admission: "at_lease" }, (group) => (group === "g0" ? 1_000 : 1));
    await setVersion(0);
    await run.service.submit(named(3));
    await run.advance(10_000);
    expect(await consume({ max_groups: 8, current_version: 0 })).toEqual(["g1", "g2"]);
    await run.advance(1_000_000);
    expect(await consume({ current_version: 2 })).toEqual([]);
    expect((await run.service.terminal(2, 10)).map(({ group_id, outcome, group }) => [group_id, outcome, group.outcome])).toEqual([["g0", "expired", "expired"]]);
    expect(run.service.status()).toMatchObject({ groups: { expired: 1 }, ready_bytes: 0, credits: { groups: 1024 } });
  });
});

describe("order", () => {
  it("is that of the starts, with at most so many overtaking what still runs", async () => {
    for (const [order, window, overtaking] of [["windowed", 3, 3], ["fifo", 64, 0]] as const) {
      await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 100, order, window }, (group) => (group === "g2" ? 100 : 1));
      await setVersion(0);
      await run.service.submit(named(10));
      await run.advance(10_000);
      expect(await consume({ max_groups: 100 })).toEqual(named(10).map(({ group_id }) => group_id).filter((name) => name !== "g2").slice(0, 2 + overtaking));
      await run.advance(100_000);
      expect((await consume({ max_groups: 100 }))[0]).toBe("g2");
      await run.close();
    }
    await openRun({});
  });

  it("begins what is more urgent first, and nothing before its version", async () => {
    await openRun({ concurrency: 1, admission: "at_lease", max_staleness: 9 });
    await run.service.submit([{ group_id: "later", task: "/t", min_version: 1, priority: 9 }, { group_id: "plain", task: "/t" }, { group_id: "urgent", task: "/t", priority: 1 }]);
    await setVersion(0);
    await run.advance(10_000);
    expect(await consume()).toEqual(["urgent", "plain"]);
    await setVersion(1);
    await run.advance(10_000);
    expect(await consume()).toEqual(["later"]);
  });
});

describe("bounds", () => {
  it("hold against a trainer that never acknowledges", async () => {
    await openRun({ admission: "at_lease", max_staleness: 1_000, concurrency: 4, group_size: 4, credits: { groups: 400, bytes: 5_000 } });
    await setVersion(0);
    await run.service.submit(named(400, { size: 4 }));
    let most = 0;
    for (let round = 0; round < 50; round++) {
      await run.advance(100_000);
      await lease({ max_groups: 2 });
      most = Math.max(most, run.service.status().ready_bytes);
    }
    const { ready_bytes: bytes, waiting_for: why, groups } = run.service.status();
    expect(why).toBe("bytes");
    expect(groups.waiting).toBeGreaterThan(300);
    // One group more than fits at most: the one whose size was not known.
    expect(most).toBeLessThanOrEqual(5_000 + bytes / (groups.ready + groups.leased));
    expect(readdirSync(join(run.directory, "groups")).length).toBe(groups.ready + groups.leased);
    await expect(run.service.submit([{ group_id: "one-more", task: "/t" }])).rejects.toMatchObject({ code: "overloaded" });
  });

  it("give 4, 4 and 2 of ten groups to a trainer that asks for four", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 100 });
    await setVersion(0);
    await run.service.submit(named(10));
    await run.advance(10_000);
    const taken = [await lease({ max_groups: 4 }), await lease({ max_groups: 4 }), await lease({ max_groups: 4 }), await lease({ max_groups: 4 })].map(namesOf);
    expect(taken.map((names) => names.length)).toEqual([4, 4, 2, 0]);
    expect(taken.flat()).toEqual(named(10).map(({ group_id }) => group_id));
  });
});

describe("waiting", () => {
  it("is over when the time is, with what there is then", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9 }, () => 5);
    await setVersion(0);
    await run.service.submit(named(1));
    const began = run.runtime.now();
    const waiting = lease({ min_groups: 2, wait_ms: 20_000 }).then((taken) => ({ taken, after: run.runtime.now() - began }));
    await run.advance(60_000);
    const { taken, after } = await waiting;
    expect([namesOf(taken), after]).toEqual([["g0"], 20_000]);
  });

  it("is over at once when the run is dead, with the reason", async () => {
    await openRun({ fail_after_dead_groups: 3, admission: "at_lease" }, () => 13);
    await setVersion(0);
    const waiting = lease({ wait_ms: 60_000 });
    await run.service.submit(named(8));
    await run.advance(20_000);
    const { head } = await waiting;
    expect(head).toMatchObject({ lease_id: null, run_state: "failed", reason: expect.stringContaining("3 groups in a row") });
    expect(run.service.status()).toMatchObject({ state: "failed", groups: { waiting: 0, running: 0 }, credits: { groups: 1024 } });
    await expect(run.service.submit([{ group_id: "x", task: "/t" }])).rejects.toMatchObject({ code: "conflict" });
    await run.reopen();
    expect((await lease({ wait_ms: 60_000 })).head.run_state).toBe("failed");
  });

  it("for groups by name ends with them, whichever way they ended", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 9 }, (group) => (group === "g1" ? 13 : group === "g0" ? 30 : 1));
    await setVersion(0);
    await run.service.submit(named(3));
    const [first, second] = [lease({ group_ids: ["g0"], wait_ms: 60_000 }), lease({ group_ids: ["g1", "g0"], min_groups: 2, wait_ms: 60_000 })];
    await run.advance(14_000);
    expect((await second).head).toMatchObject({ lease_id: null, ended: [{ group_id: "g1", outcome: "failed" }] });
    await run.advance(30_000);
    expect(namesOf(await first)).toEqual(["g0"]);
    await expect(lease({ group_ids: ["nobody"] })).rejects.toMatchObject({ code: "not_found" });
    expect(namesOf(await lease())).toEqual(["g2"]);
  });

  it("serves many in the order in which they asked", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 1 });
    await setVersion(0);
    const waiting = ["a", "b", "c"].map((consumer) => lease({ consumer, max_groups: 1, wait_ms: 60_000 }));
    await run.service.submit(named(3));
    await run.advance(10_000);
    expect((await Promise.all(waiting)).map(namesOf)).toEqual([["g0"], ["g1"], ["g2"]]);
  });
});

describe("a mix", () => {
  const mix = [{ name: "few", tasks: ["/few/a"] }, { name: "many", tasks: ["/many/a", "/many/b", "/many/c"] }];
  const dataset = [{ name: "few", inputs: ["/few"] }, { name: "many", inputs: ["/many"], weight: 3, group_size: 2 }];

  it("is drawn by weight, however long its parts take, and the same for the same seed", async () => {
    const drawn: string[][] = [];
    for (let round = 0; round < 2; round++) {
      await openRun({ dataset, admission: "at_lease", max_staleness: 99, concurrency: 4, seed: "s" }, (group) => (group.startsWith("many") ? 50 : 1), { mix });
      await setVersion(0);
      for (let at = 0; at < 30; at++) {
        await run.advance(60_000);
        await consume({ max_groups: 100 });
      }
      const { datasets } = run.service.status();
      expect(Math.abs((datasets["many"]?.begun ?? 0) - 3 * (datasets["few"]?.begun ?? 0))).toBeLessThanOrEqual(3);
      expect(datasets["many"]).toMatchObject({ mean_reward: 1, failed: 0 });
      const log = await run.service.terminal(0, 1000);
      expect(log.filter(({ group }) => group.dataset === "many").every(({ group }) => group.expected === 2)).toBe(true);
      drawn.push(run.worker.started.map(({ groupId, task }) => `${groupId} ${task}`));
      await run.close();
    }
    expect(drawn[0]).toEqual(drawn[1]);
    await openRun({});
  });

  it("leaves out tasks that fail again and again or cannot be run, and is over without any", async () => {
    await openRun({ dataset, admission: "at_lease", max_staleness: 99, concurrency: 1, quarantine_after: 2 }, (group) => (group.startsWith("few") ? 13 : 1), { mix });
    run.worker.broken.add("/many/b");
    await setVersion(0);
    for (let at = 0; at < 20; at++) {
      await run.advance(20_000);
      await consume({ max_groups: 100 });
    }
    expect([...run.service.status().quarantined].sort()).toEqual(["/few/a", "/many/b"]);
    expect(run.service.status().datasets["few"]?.failed).toBe(2);
    expect(new Set(run.worker.started.slice(-10).map(({ task }) => task))).toEqual(new Set(["/many/a", "/many/c"]));
    await expect(run.service.submit([{ group_id: "x", task: "/few/a" }])).rejects.toMatchObject({ code: "unsupported" });
    for (const task of ["/many/a", "/many/c"]) run.worker.broken.add(task);
    await run.reopen();
    for (const task of ["/many/a", "/many/b", "/many/c"]) run.worker.broken.add(task);
    await run.advance(60_000);
    await consume({ max_groups: 100 });
    await run.advance(60_000);
    expect(run.service.status()).toMatchObject({ state: "failed", reason: expect.stringContaining("no task is left") });
  });
});

describe("going back", () => {
  it("brings back what was consumed since, with the same bytes, and lets versions begin there again", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 9 });
    await setVersion(0);
    await run.service.submit(named(6));
    await run.advance(10_000);
    await consume({ max_groups: 2 });
    const checkpoint = await run.service.checkpoint();
    await setVersion(3);
    const before = await lease({ max_groups: 3 });
    await run.service.ack(before.head.lease_id ?? "", { consumed: ["g2", "g3"], rejected: [] });
    await run.kill();
    const status = await run.service.restore(checkpoint);
    expect(status.groups).toMatchObject({ consumed: 2, ready: 4, leased: 0 });
    await setVersion(0);
    const after = await lease({ max_groups: 9 });
    expect(namesOf(after)).toEqual(["g2", "g3", "g4", "g5"]);
    expect(after.groups.slice(0, 3)).toEqual(before.groups);
    expect((await run.service.terminal(2, 9)).map(({ group_id, outcome }) => [group_id, outcome])).toEqual([["g2", "consumed"], ["g3", "consumed"], ["g2", "restored"], ["g3", "restored"]]);
    // A lease from before is over.
    await expect(run.service.ack(before.head.lease_id ?? "", { consumed: ["g4"], rejected: [] })).rejects.toMatchObject({ code: "not_found" });
    await expect(run.service.restore({ ...checkpoint, digest: "other" })).rejects.toMatchObject({ code: "conflict" });
  });

  it("to the older of two checkpoints between which nothing was consumed lets versions begin at that one's", async () => {
    await openRun({});
    await setVersion(0);
    const older = await run.service.checkpoint();
    await setVersion(5);
    await run.service.checkpoint();
    await run.service.restore(older);
    await setVersion(0);
    expect(run.service.status().policy.version).toBe(0);
  });

  it("is bounded: what two checkpoints no longer need goes, and so does what is too much", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 9, retain_bytes: 500 });
    await setVersion(0);
    await run.service.submit(named(30));
    await run.advance(10_000);
    const checkpoints = [];
    for (let round = 0; round < 3; round++) {
      checkpoints.push(await run.service.checkpoint());
      await consume({ max_groups: 2 });
    }
    await run.advance(0);
    const files = (): number => readdirSync(join(run.directory, "groups")).length;
    expect(files()).toBe(24 + 4);
    const [first, , last] = checkpoints;
    if (first === undefined || last === undefined) throw new Error("three checkpoints");
    await expect(run.service.restore(first)).rejects.toMatchObject({ code: "conflict" });
    await consume({ max_groups: 24 });
    await run.advance(0);
    // 81 bytes each: the last six are kept.
    expect(files()).toBe(6);
    await expect(run.service.restore(last)).rejects.toMatchObject({ code: "conflict", fix: expect.stringContaining("retain_bytes") });
  });
});

describe("a stored group", () => {
  it("whose file is gone or changed ends as failed, and is not given out", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 9 });
    await setVersion(0);
    await run.service.submit(named(2));
    await run.advance(10_000);
    const file = join(run.directory, "groups", "0.safetensors");
    expect(existsSync(file)).toBe(true);
    rmSync(file);
    expect(namesOf(await lease())).toEqual(["g1"]);
    expect((await run.service.terminal(0, 9)).map(({ group_id, outcome }) => [group_id, outcome])).toEqual([["g0", "failed"]]);
  });
});

describe("a full disk", () => {
  it("stops a run that can promise nothing any more; opened again it is what was promised", async () => {
    let isFull = false;
    const openFile: SimulatedRunOptions["openFile"] = async (path, flags) => {
      const file = await open(path, flags);
      const write = file.write.bind(file);
      file.write = ((...args: Parameters<typeof write>) => (isFull ? Promise.reject(Object.assign(new Error("no space left"), { code: "ENOSPC" })) : write(...args))) as typeof file.write;
      return file;
    };
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 9 }, () => 5, { openFile });
    await setVersion(0);
    await run.service.submit(named(2));
    const waiting = lease({ wait_ms: 60_000 });
    isFull = true;
    await expect(run.service.submit([{ group_id: "lost", task: "/t" }])).rejects.toMatchObject({ code: "host_exhausted" });
    await expect(waiting).rejects.toMatchObject({ code: "host_exhausted" });
    await expect(run.service.checkpoint().catch((error: unknown) => Promise.reject(error))).rejects.toMatchObject({ code: "host_exhausted" });
    isFull = false;
    await run.reopen();
    await run.advance(10_000);
    expect(namesOf(await lease({ max_groups: 9 }))).toEqual(["g0", "g1"]);
    await run.service.submit([{ group_id: "lost", task: "/t" }]);
  });
});

describe("deadlines that never come", () => {
  it("are not held for the groups that are over", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 50 });
    await setVersion(0);
    const alarms = new Alarms(run.runtime);
    for (let at = 0; at < 10_000; at++) alarms.takeBack(alarms.set(run.runtime.now() + 86_400_000 + at, () => undefined));
    expect(alarms.size).toBeLessThan(2_100);
    let rung = 0;
    alarms.set(run.runtime.now() + 86_405_000, () => rung++);
    await run.advance(90_000_000);
    expect([rung, alarms.size]).toEqual([1, 0]);
    alarms.close();
  });
});

describe("a worker", () => {
  it("is told of every group of which no member is asked for again, also of those that ended in an earlier process", async () => {
    await openRun({ admission: "at_lease", max_staleness: 9, concurrency: 4 }, (group) => (group === "g1" ? 13 : group === "g2" ? 5_000 : 1));
    await setVersion(0);
    await run.service.submit(named(4));
    expect(run.worker.forgotten).toEqual([]);
    await run.advance(60_000);
    // Ready, failed and ready; the slow one may still be asked for.
    expect(new Set(run.worker.forgotten)).toEqual(new Set(["g0", "g1", "g3"]));
    await consume({ max_groups: 1 });
    await run.reopen();
    expect(new Set(run.worker.forgotten)).toEqual(new Set(["g0", "g1", "g3"]));
    await run.service.cancel({ group_ids: ["g2"] });
    expect(run.worker.forgotten).toContain("g2");
  });
});

describe("a finished run", () => {
  it("begins nothing more, and is finished when all is consumed", async () => {
    await openRun({ concurrency: 2, admission: "at_lease", max_staleness: 9 }, () => 5);
    await setVersion(0);
    await run.service.submit(named(5));
    await run.advance(1_000);
    const finishing = run.service.finish();
    await run.advance(10_000);
    expect(run.service.status()).toMatchObject({ state: "draining", groups: { ready: 2, cancelled: 3 } });
    expect(await consume()).toEqual(["g0", "g1"]);
    expect((await finishing).state).toBe("finished");
  });
});
