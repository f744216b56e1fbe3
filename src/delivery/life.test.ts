/** Everything that a trainer, its host and time can do to a run, in any order, with deaths in between; then what must hold. */
import { createHash } from "node:crypto";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { failedEnd, scoredEnd } from "../../test/support/delivery/simulated-worker.ts";
import { SimulatedRun } from "../../test/support/delivery/simulated-run.ts";
import { leaseRequestSchema, type DeliveryCheckpoint, type GroupSubmission, type TerminalRecord } from "./contract.ts";
import type { DeliveredGroup } from "./delivery.ts";
import type { MemberJob } from "./worker.ts";

const never = new AbortController().signal;
const STALENESS = 2;
const CREDITS = { groups: 40, bytes: 20_000 };

const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant("submit" as const), count: fc.integer({ min: 1, max: 6 }), size: fc.integer({ min: 1, max: 4 }), extra: fc.constantFrom({}, { priority: 3 }, { deadline_s: 400 }, { min_version: 2 }) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("submit_and_die" as const), count: fc.integer({ min: 1, max: 6 }) }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant("wait" as const), seconds: fc.integer({ min: 0, max: 400 }) }) },
  { weight: 4, arbitrary: fc.constant({ do: "step" as const }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant("lease" as const), max: fc.integer({ min: 1, max: 8 }), tight: fc.boolean() }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant("ack" as const), share: fc.double({ min: 0, max: 1, noNaN: true }), reject: fc.boolean(), twice: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("extend" as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("release" as const) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("train" as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("cancel" as const), which: fc.integer({ min: 0, max: 100 }) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("checkpoint" as const) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("restore" as const), which: fc.constantFrom(1, 1, 1, 2, 3, 9) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("die" as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("reopen" as const) }) },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

describe("the life of a run", () => {
  it("loses no group, delivers none with two contents, counts none twice, keeps its bounds", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 60 }), fc.constantFrom("by_admission" as const, "at_lease" as const), fc.constantFrom("windowed" as const, "fifo" as const), async (steps, admission, order) => {
        const trainer = await Trainer.begin({ admission, order });
        try {
          for (const one of steps) await trainer.do(one);
          await trainer.finish();
        } finally {
          await trainer.run.close();
        }
      }),
      { numRuns: 40 },
    );
  });
});

/** What the trainer believes, step by step beside what the service says. */
class Trainer {
  readonly run: SimulatedRun;
  version = 0;
  readonly accepted = new Map<string, GroupSubmission>();
  readonly content = new Map<string, string>();
  consumed = new Set<string>();
  readonly leases = new Map<string, Set<string>>();
  readonly checkpoints: { readonly checkpoint: DeliveryCheckpoint; readonly consumed: ReadonlySet<string>; readonly version: number }[] = [];
  #names = 0;

  static async begin(request: object): Promise<Trainer> {
    const run = await SimulatedRun.open({
      request: { max_staleness: STALENESS, batch_groups: 3, concurrency: 12, credits: CREDITS, lease_s: 600, window: 3, quarantine_after: null, fail_after_dead_groups: null, deadlines: { group_s: 5000 }, retain_bytes: 30_000, ...request },
      keptBytes: 2_000,
      draw: (job: MemberJob, random) => {
        const [duration, fate] = [random(), random()];
        return {
          durationMs: Math.floor(duration * duration * 300_000),
          end: ({ startedAt, endedAt, version }) =>
            fate < 0.16 ? failedEnd(job, "sandbox_error", "sandbox_gone", startedAt, endedAt) : scoredEnd(job, { startedAt, endedAt, reward: fate < 0.2 ? Number.NaN : fate, prompt: 3, sampled: 4, versionMin: version, versionMax: version }),
        };
      },
    });
    const trainer = new Trainer(run);
    await trainer.#tellPolicy();
    return trainer;
  }

  private constructor(run: SimulatedRun) {
    this.run = run;
  }

  async do(step: Step): Promise<void> {
    const { service } = this.run;
    switch (step.do) {
      case "submit":
        await this.#submit(step.count, { size: step.size, ...step.extra });
        break;
      case "submit_and_die": {
        const groups = this.#newGroups(step.count, {});
        void service.submit(groups).catch(() => undefined);
        await this.run.kill();
        // Whether it was accepted is not known: asked again it is, once.
        await this.#submitAll(groups);
        break;
      }
      case "wait":
        await this.run.advance(step.seconds * 1000);
        break;
      case "lease":
        await this.#lease(step.max, step.tight);
        break;
      case "ack":
        await this.#ack(step);
        break;
      case "extend":
      case "release": {
        const [lease] = this.leases.keys();
        if (lease === undefined) break;
        if (step.do === "extend") await service.extend(lease).catch(notFound);
        else {
          service.release(lease);
          this.leases.delete(lease);
        }
        break;
      }
      case "step":
        // What a trainer that is well does.
        await this.#submit(3, { size: 2 });
        await this.run.advance(200_000);
        await this.#lease(3, false);
        await this.#ack({ share: 1, reject: false, twice: false });
        break;
      case "train":
        this.version++;
        await this.#tellPolicy();
        break;
      case "cancel": {
        const name = [...this.accepted.keys()][step.which % Math.max(1, this.accepted.size)];
        if (name !== undefined) await service.cancel({ group_ids: [name] });
        break;
      }
      case "checkpoint":
        this.checkpoints.push({ checkpoint: await service.checkpoint(), consumed: new Set(this.consumed), version: this.version });
        break;
      case "restore":
        await this.#restore(step.which);
        break;
      case "die":
        await this.run.kill();
        break;
      case "reopen":
        await this.run.reopen();
    }
    this.#check();
  }

  async finish(): Promise<void> {
    for (let round = 0; round < 200 && this.#open() > 0; round++) {
      await this.run.advance(700_000);
      await this.#lease(100, false);
      await this.#ack({ share: 1, reject: false, twice: false });
      this.version++;
      await this.#tellPolicy();
    }
    await this.run.advance(0);
    const status = await this.run.service.finish();
    expect(status.state).toBe("finished");
    const log = await this.#terminalLog();
    const last = new Map(log.map((record) => [record.group_id, record]));
    expect([...last.keys()].sort()).toEqual([...this.accepted.keys()].sort());
    expect([...last.values()].filter(({ outcome }) => outcome === "consumed").map(({ group_id }) => group_id).sort()).toEqual([...this.consumed].sort());
    // No group is over twice without having been brought back in between.
    for (const name of this.accepted.keys()) {
      const own = log.filter(({ group_id }) => group_id === name).map(({ outcome }) => outcome);
      expect(own.join().replaceAll("consumed,restored,", "")).toMatch(/^(consumed|rejected|failed|cancelled|expired)$/);
    }
    expect(status.credits).toEqual(CREDITS);
    expect(status.ready_bytes).toBe(0);
  }

  #open(): number {
    const { waiting, running, ready, leased } = this.run.service.status().groups;
    return waiting + running + ready + leased;
  }

  async #tellPolicy(): Promise<void> {
    await this.run.service.setPolicy({ version: this.version, state: "live", model: "m", endpoints: [{ url: "http://127.0.0.1:1" }] });
  }

  #newGroups(count: number, about: object): GroupSubmission[] {
    return Array.from({ length: count }, () => ({ group_id: `g${this.#names++}`, task: "/t", ...about }));
  }

  async #submit(count: number, about: object): Promise<void> {
    await this.#submitAll(this.#newGroups(count, about));
  }

  async #submitAll(groups: GroupSubmission[]): Promise<void> {
    const before = this.run.service.status().credits.groups;
    try {
      const result = await this.run.service.submit(groups);
      expect(result.groups.length).toBe(groups.length);
      for (const group of groups) this.accepted.set(group.group_id, group);
    } catch (error) {
      expect(error).toMatchObject({ code: "overloaded" });
      expect(before < groups.length || this.run.service.status().credits.bytes <= 0).toBe(true);
    }
  }

  async #lease(max: number, tight: boolean): Promise<void> {
    const request = leaseRequestSchema.parse({ max_groups: max, current_version: this.version, ...(tight ? { max_bytes: 1 } : {}) });
    const { head, groups } = await this.run.service.lease(request, never);
    if (tight) expect(groups.length).toBeLessThanOrEqual(1);
    expect(groups.length).toBeLessThanOrEqual(max);
    if (head.lease_id === null) return;
    this.leases.set(head.lease_id, new Set(groups.map(({ facts }) => facts.group_id)));
    for (const group of groups) {
      // It was given out once, and is with nobody else and in no weights.
      expect(this.consumed.has(group.facts.group_id)).toBe(false);
      expect(this.version - (group.facts.version_min ?? 0)).toBeLessThanOrEqual(STALENESS);
      const content = digestOf(group);
      expect(this.content.get(group.facts.group_id) ?? content).toBe(content);
      this.content.set(group.facts.group_id, content);
    }
  }

  async #ack({ share, reject, twice }: { readonly share: number; readonly reject: boolean; readonly twice: boolean }): Promise<void> {
    for (const [lease, groups] of this.leases) {
      const names = [...groups].slice(0, Math.ceil(groups.size * share));
      const request = reject ? { consumed: [], rejected: names.map((group_id) => ({ group_id, reason: "filtered" as const })) } : { consumed: names, rejected: [] };
      for (let again = 0; again < (twice ? 2 : 1); again++) {
        try {
          await this.run.service.ack(lease, request);
        } catch (error) {
          notFound(error);
          // Nothing of it counts: it is delivered again.
          this.leases.delete(lease);
          break;
        }
        if (!reject) for (const name of names) this.consumed.add(name);
      }
      for (const name of names) groups.delete(name);
      if (groups.size === 0) this.leases.delete(lease);
    }
  }

  async #restore(which: number): Promise<void> {
    const saved = this.checkpoints.at(-which);
    if (saved === undefined) return;
    try {
      await this.run.service.restore(saved.checkpoint);
    } catch (error) {
      expect(error).toMatchObject({ code: "conflict" });
      return;
    }
    this.consumed = new Set(saved.consumed);
    this.leases.clear();
    this.version = saved.version;
    await this.#tellPolicy();
  }

  #check(): void {
    const { service, directory } = this.run;
    const { groups, credits } = service.status();
    const over = groups.consumed + groups.rejected + groups.failed + groups.cancelled + groups.expired;
    expect(groups.consumed).toBe(this.consumed.size);
    expect(over + this.#open()).toBe(this.accepted.size);
    expect(credits.groups).toBe(CREDITS.groups - this.#open());
    // Files of what could be delivered or restored, and what is on its way in or out.
    expect(readdirSync(join(directory, "groups")).length).toBeLessThanOrEqual(this.accepted.size);
  }

  async #terminalLog(): Promise<TerminalRecord[]> {
    const log: TerminalRecord[] = [];
    for (;;) {
      const records = await this.run.service.terminal(log.length, 7);
      log.push(...records);
      if (records.length < 7) break;
    }
    expect(log.map(({ seq }) => seq)).toEqual(log.map((_, index) => index + 1));
    return log;
  }
}

function notFound(error: unknown): void {
  expect(error).toMatchObject({ code: "not_found" });
}

function digestOf({ facts, samples, flat }: DeliveredGroup): string {
  const hash = createHash("sha256").update(JSON.stringify([facts, samples.map((sample) => sample.facts)]));
  for (const array of [flat.tokenIds, flat.logprobs, flat.versions, flat.lossMask]) hash.update(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
  return hash.digest("hex");
}
