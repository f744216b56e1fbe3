/** The read API over run directories, as a client of it sees them. */
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { writeLongRollout } from "../../../test/support/dashboard/long-rollout.ts";
import { end, writeRun, type RunFixture } from "../../../test/support/run-fixture.ts";
import { systemRuntime } from "../../core/runtime.ts";
import { rolloutDirectory, runDirectory } from "../../store/run-directory.ts";
import { openReader, type Reader } from "../reader.ts";
import { runsDocument } from "./routes.ts";
import { conversationSchema, rolloutReportSchema } from "./contract/rollout.ts";
import { groupReportSchema, groupsPageSchema, rolloutsPageSchema } from "./contract/lists.ts";
import { runReportSchema, runsPageSchema, statisticsSchema } from "./contract/run.ts";
import { samplesSchema, tokensPageSchema, traceSchema } from "./contract/calls.ts";
import { searchLineSchema } from "./contract/search.ts";
import { tasksPageSchema } from "./contract/tasks.ts";

const home = mkdtempSync(join(tmpdir(), "mw-read-"));
let reader: Reader;
let fixture: RunFixture;

beforeAll(async () => {
  fixture = await writeRun({ home, tasks: 10, attempts: 4, seed: "a", unfinished: 3 });
  reader = await openReader({ home, version: "test", runtime: systemRuntime, env: {}, log: () => undefined });
});
afterAll(async () => {
  await reader.close();
  await fixture.close();
  rmSync(home, { recursive: true, force: true });
});

const get = (path: string, headers: Record<string, string> = {}): Promise<Response> => fetch(reader.url + path, { headers });
const json = async (path: string): Promise<unknown> => (await get(path)).json();

describe("runs", () => {
  it("are asked for by the routes of the committed OpenAPI document", async () => {
    await expect(`${JSON.stringify(runsDocument(), null, 2)}\n`).toMatchFileSnapshot(resolve(import.meta.dirname, "../../../docs/openapi/runs.json"));
  });

  it("answers with the documents of the contract", async () => {
    const { run, groups } = fixture;
    expect(runsPageSchema.parse(await json("/v1/runs")).runs.map((row) => row.run)).toContain(run);
    const report = runReportSchema.parse(await json(`/v1/runs/${run}`));
    expect(report).toMatchObject({ run, status: "running", counts: { rollouts: 40, running: 3, recorded: 37 } });
    expect(report.active.length).toBe(3);
    expect(statisticsSchema.parse(await json(`/v1/runs/${run}/statistics`)).overall.rollouts).toBe(40);
    expect(groupsPageSchema.parse(await json(`/v1/runs/${run}/groups`)).total).toBe(10);
    const group = groupReportSchema.parse(await json(`/v1/runs/${run}/groups/${groups[0]?.group}`));
    const advantages = group.attempts.flatMap(({ advantage }) => advantage ?? []);
    expect(advantages.reduce((sum, value) => sum + value, 0)).toBeCloseTo(0);
    expect(rolloutReportSchema.parse(await json(`/v1/rollouts/${groups[0]?.rollouts[0]}`)).events[0]?.type).toBe("admitted");
    const { tasks, total } = tasksPageSchema.parse(await json("/v1/tasks"));
    expect(total).toBe(10);
    // Every scored rollout counts for one version of its run's policy.
    for (const { versions, scored, passed } of tasks) {
      expect([versions.reduce((sum, one) => sum + one.scored, 0), versions.reduce((sum, one) => sum + one.passed, 0)]).toEqual([scored, passed]);
      expect(versions.map(({ version }) => Number(version))).toEqual(versions.map(({ version }) => Number(version)).toSorted());
    }
    expect(new Set(tasks.flatMap(({ versions }) => versions.map(({ version }) => version)))).toEqual(new Set(["1", "2", "3"]));
  });

  it("filters, sorts and pages without losing or repeating a rollout", async () => {
    const { run } = fixture;
    const all = rolloutsPageSchema.parse(await json(`/v1/runs/${run}/rollouts?limit=1000&sort=reward&order=desc`)).rollouts;
    const paged: string[] = [];
    for (let offset = 0; offset < 40; offset += 7) paged.push(...rolloutsPageSchema.parse(await json(`/v1/runs/${run}/rollouts?limit=7&offset=${offset}&sort=reward&order=desc`)).rollouts.map(({ rollout }) => rollout));
    expect(paged).toEqual(all.map(({ rollout }) => rollout));
    expect(new Set(paged).size).toBe(40);
    const rewards = all.map(({ reward }) => reward);
    const scored = rewards.filter((reward) => reward !== null);
    expect(rewards).toEqual([...scored.toSorted((a, b) => b - a), ...rewards.slice(scored.length)]);
    expect(rewards.slice(scored.length).every((reward) => reward === null)).toBe(true);
    const passed = rolloutsPageSchema.parse(await json(`/v1/runs/${run}/rollouts?outcome=passed`)).total;
    const unsolved = rolloutsPageSchema.parse(await json(`/v1/runs/${run}/rollouts?outcome=unsolved`)).total;
    expect(passed + unsolved).toBe(scored.length);
    const csv = (await (await get(`/v1/runs/${run}/export?outcome=passed`)).text()).trim().split("\r\n");
    expect(csv.length).toBe(passed + 1);
  });

  it("say what they cost in all tries, and of that what was thrown away", async () => {
    const prices = { input: 2, cached: 1, output: 8, machine: 0.5 };
    const priced = await writeRun({ home, tasks: 40, attempts: 8, seed: "priced", config: { prices } });
    await priced.close();
    const { cost } = runReportSchema.parse(await json(`/v1/runs/${priced.run}`));
    const { rollouts } = rolloutsPageSchema.parse(await json(`/v1/runs/${priced.run}/rollouts?limit=1000`));
    const twice = rollouts.filter(({ tries }) => tries > 1);
    expect(twice.length).toBeGreaterThan(0);
    for (const { tries, thrownAway } of twice) expect(thrownAway).toMatchObject({ tries: tries - 1, promptTokens: 900, cachedTokens: 400, completionTokens: 70, uncounted: 0 });
    expect(cost.thrownAway).toMatchObject({ tries: twice.length, promptTokens: 900 * twice.length, completionTokens: 70 * twice.length, uncounted: 0 });
    const sum = (values: readonly (number | null)[]): number => values.reduce((total: number, value) => total + (value ?? Number.NaN), 0);
    expect(cost.promptTokens).toBe(sum(rollouts.map((one) => one.promptTokens + one.thrownAway.promptTokens)));
    expect(cost.dollars).toMatchObject({ total: expect.closeTo(sum(rollouts.map((one) => one.dollars)), 9) as number, thrownAway: expect.closeTo(sum(rollouts.map((one) => one.thrownAway.dollars)), 9) as number, unknown: 0 });
    // The list of runs says the same, and those of rollouts and groups are sorted by it.
    const { runs } = runsPageSchema.parse(await json("/v1/runs"));
    expect(runs.map((row) => [row.run === priced.run, row.dollars])).toEqual(expect.arrayContaining([[true, cost.dollars?.total], [false, null]]));
    for (const order of ["asc", "desc"] as const) {
      const sign = order === "asc" ? 1 : -1;
      const pages = await Promise.all([0, 100, 200, 300].map(async (offset) => rolloutsPageSchema.parse(await json(`/v1/runs/${priced.run}/rollouts?sort=cost&order=${order}&offset=${offset}`))));
      expect(pages.flatMap((page) => page.rollouts.map((one) => one.dollars))).toEqual(rollouts.map((one) => one.dollars).toSorted((a, b) => sign * ((a ?? 0) - (b ?? 0))));
      const { groups } = groupsPageSchema.parse(await json(`/v1/runs/${priced.run}/groups?sort=cost&order=${order}`));
      expect(groups.map((group) => group.dollars)).toEqual(groups.map((group) => group.dollars).toSorted((a, b) => sign * ((a ?? 0) - (b ?? 0))));
    }
    rmSync(runDirectory(home, priced.run), { recursive: true });
  });

  it("refuses what it does not understand, and says so by field", async () => {
    for (const [path, status] of [["/v1/runs/latest/rollouts?limit=0", 422], ["/v1/runs/latest/rollouts?sort=colour", 422], ["/v1/runs/nothing", 404], ["/v1/runs/..%2f..", 404], ["/v1/rollouts/ro00000000000000000000", 404], ["/v1/runs/latest/search?q=x", 422]] as const) {
      const response = await get(path);
      expect(response.status, path).toBe(status);
      expect(response.headers.get("content-type"), path).toContain("application/problem+json");
    }
  });

  it("follows a log that another process writes, and goes on where a reader was cut off", async () => {
    const live = await writeRun({ home, tasks: 1, attempts: 4, seed: "live", unfinished: 4 });
    const [first, second, third, fourth] = live.groups[0]?.rollouts ?? [];
    const follow = await stream(`/v1/runs/${live.run}/stream`);
    // Its first event says how things stand.
    await follow.next();
    await live.append(end(first as never, 1, 1));
    const update = await follow.until(({ data }) => data.recorded === 1);
    expect(update.data.changed.map(({ rollout }) => rollout)).toEqual([first]);
    follow.stop();
    await live.append(end(second as never, 1, 0));
    await live.append(end(third as never, 1, 0));
    const again = await stream(`/v1/runs/${live.run}/stream`, { "last-event-id": update.id });
    const missed = await again.until(({ data }) => data.recorded === 3);
    expect(missed.data.changed.map(({ rollout }) => rollout).sort()).toEqual([second, third].sort());
    await live.append([...end(fourth as never, 1, 1), { type: "run_finished" }]);
    const last = await again.until(({ data }) => data.status === "finished");
    expect(last.data.mean).toBe(0.5);
    again.stop();
    await live.close();
  });

  it("shows a damaged log up to the damage, and a run that is taken away as gone", async () => {
    const damaged = await writeRun({ home, tasks: 2, attempts: 2, seed: "damaged" });
    await damaged.close();
    appendFileSync(join(home, "runs", damaged.run, "events.jsonl"), "this is no event\n");
    const report = runReportSchema.parse(await json(`/v1/runs/${damaged.run}`));
    expect(report).toMatchObject({ status: "damaged", counts: { recorded: 4 } });
    expect(report.error).toContain("is damaged at byte");
    rmSync(join(home, "runs", damaged.run), { recursive: true });
    expect((await get(`/v1/runs/${damaged.run}`)).status).toBe(404);
  });

  it("keeps marks and notes in the run's directory, whatever was half-written there", async () => {
    const [rollout] = fixture.groups[0]?.rollouts ?? [];
    const file = join(home, "runs", fixture.run, "annotations.jsonl");
    writeFileSync(file, '{"target":"torn');
    const put = (target: string, body: unknown): Promise<Response> => fetch(`${reader.url}/v1/runs/${fixture.run}/marks/${target}`, { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    expect((await put(rollout ?? "", { mark: "bad", note: "wrote\nits own score" })).status).toBe(200);
    expect((await put("ro00000000000000000000", { mark: "bad" })).status).toBe(404);
    expect((await put(rollout ?? "", { mark: "gold" })).status).toBe(422);
    expect(await json(`/v1/runs/${fixture.run}/marks`)).toMatchObject({ marks: [{ target: rollout, mark: "bad", note: "wrote\nits own score" }] });
    expect(rolloutsPageSchema.parse(await json(`/v1/runs/${fixture.run}/rollouts?marked=bad`)).rollouts.map((row) => row.rollout)).toEqual([rollout]);
    expect((await put(rollout ?? "", { mark: null })).status).toBe(200);
    expect(await json(`/v1/runs/${fixture.run}/marks`)).toEqual({ marks: [] });
    expect(readFileSync(file, "utf8").split("\n").length).toBe(4);
    // A page of another site is no reader, and no writer.
    expect((await get("/v1/runs", { origin: "http://evil.example" })).status).toBe(401);
    expect((await get("/v1/runs", { "x-api-key": "wrong-key" })).status).toBe(401);
  });
});

describe("a rollout", () => {
  it("of half a million tokens gives its conversation, trace, samples and tokens in pages", async () => {
    const long = await writeRun({ home, tasks: 1, attempts: 1, seed: "long" });
    await long.close();
    const rollout = long.groups[0]?.rollouts[0];
    await writeLongRollout(home, long.run, rollout as never, { calls: 250, tokens: 500_000, conversations: 5 });
    expect(rolloutReportSchema.parse(await json(`/v1/rollouts/${rollout}`))).toMatchObject({ calls: 250, commands: 250, damage: null });
    const talk = conversationSchema.parse(await json(`/v1/rollouts/${rollout}/conversation?offset=90&limit=5`));
    expect(talk.messages.map(({ index }) => index)).toEqual([90, 91, 92, 93, 94]);
    const trace = traceSchema.parse(await json(`/v1/rollouts/${rollout}/trace`));
    expect(trace.nodes.filter(({ kind }) => kind === "compaction").length).toBe(4);
    const samples = samplesSchema.parse(await json(`/v1/rollouts/${rollout}/samples`));
    expect(samples.ledger.tokens).toBeGreaterThan(480_000);
    expect(samples.ledger.sampled).toBe(samples.ledger.trained);
    const [from, to] = [40_000, 44_096];
    const page = tokensPageSchema.parse(await json(`/v1/rollouts/${rollout}/samples/2/tokens?from=${from}&to=${to}&text=1`));
    const bytes = await (await get(`/v1/rollouts/${rollout}/samples/2/tokens?from=${from}&to=${to}`)).arrayBuffer();
    const count = to - from;
    expect(bytes.byteLength).toBe(13 * count);
    expect([...new Int32Array(bytes, 0, count)]).toEqual(page.ids);
    expect([...new Float32Array(bytes, 4 * count, count)]).toEqual(page.logprobs);
    expect([...new Int32Array(bytes, 8 * count, count)]).toEqual(page.versions);
    expect([...new Uint8Array(bytes, 12 * count, count)]).toEqual(page.mask);
    const lines = (await (await get(`/v1/runs/${long.run}/search?q=STEP%20137`)).text()).trim().split("\n").map((line) => searchLineSchema.parse(JSON.parse(line)));
    expect(lines.some((line) => line.type === "hit" && line.hit.match === "step 137")).toBe(true);
    expect(lines.at(-1)).toMatchObject({ type: "end", stopped: "complete" });
  });

  it("gives out files of its own directory, and follows no link out of it", async () => {
    const rollout = fixture.groups[1]?.rollouts[0];
    const directory = rolloutDirectory(home, fixture.run, rollout as never);
    mkdirSync(join(directory, "artifacts"), { recursive: true });
    writeFileSync(join(directory, "artifacts", "good.txt"), "good");
    symlinkSync("/etc/passwd", join(directory, "artifacts", "passwd"));
    symlinkSync("/etc", join(directory, "artifacts", "etc"));
    const file = (path: string): Promise<Response> => get(`/v1/rollouts/${rollout}/file?path=${encodeURIComponent(path)}`);
    const good = await file("artifacts/good.txt");
    expect(await good.text()).toBe("good");
    expect(good.headers.get("content-type")).toBe("application/octet-stream");
    for (const path of ["artifacts/passwd", "artifacts/etc/passwd", "../../run.json", "/etc/passwd", "artifacts/../../../run.json", "artifacts", "artifacts/good.txt\0"]) expect((await file(path)).status, path).toBe(404);
  });
});

interface Update {
  readonly id: string;
  readonly data: { readonly recorded: number; readonly status: string; readonly mean: number | null; readonly changed: readonly { readonly rollout: string }[] };
}

/** Reads server-sent events one by one. */
async function stream(path: string, headers: Record<string, string> = {}): Promise<{ next(): Promise<Update>; until(test: (update: Update) => boolean): Promise<Update>; stop(): void }> {
  const ended = new AbortController();
  const response = await fetch(reader.url + path, { headers, signal: ended.signal });
  const chunks = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  const next = async (): Promise<Update> => {
    for (;;) {
      const cut = rest.indexOf("\n\n");
      if (cut !== -1) {
        const block = rest.slice(0, cut);
        rest = rest.slice(cut + 2);
        const data = /^data: (.*)$/m.exec(block)?.[1];
        if (data !== undefined) return { id: /^id: (.*)$/m.exec(block)?.[1] ?? "", data: JSON.parse(data) as Update["data"] };
        continue;
      }
      const part = await chunks?.read();
      if (part === undefined || part.done) throw new Error("the stream ended");
      rest += part.value;
    }
  };
  return {
    next,
    until: async (test) => {
      for (;;) {
        const update = await next();
        if (test(update)) return update;
      }
    },
    stop: () => ended.abort(),
  };
}
