/** More agents whose controller is killed: several at once, one that ends while nobody listens, and those that cannot be gone on with. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine, type Engine } from "../support/engine/index.ts";
import { RunFiles } from "../support/killed-run.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { steadyPort } from "../support/steady-port.ts";
import { agents, asked, begun, eventsOf, letGo, markOf, said, SurvivingRuns, until, waitingTests } from "../support/surviving-run.ts";

const place = mkdtempSync(join(tmpdir(), "mw-run-takeover-"));
const runs = new SurvivingRuns(place);
beforeAll(async () => {
  await runs.prepare();
  // While no server has the data directory.
  await runs.expected();
});
afterAll(() => rmSync(place, { recursive: true, force: true }));

const thirdQuestion = (agentsThere: number) => ({ what: "the third question", holds: 2, when: (of: RunFiles, to: Parameters<typeof asked>[0]) => begun(of) === agentsThere && asked(to, 2) === agentsThere }) as const;
const KEY = "the-first-key-of-all";
const attempt = (look: () => boolean): boolean => {
  try {
    return look();
  } catch {
    // It is not there yet.
    return false;
  }
};
const nobody = (mark: string): boolean => agents(mark).length === 0;

it("goes on with every one of several", async () => {
  const { files, pids } = await runs.disturbed("several", [thirdQuestion(3)], ["--take-over", "300", "-n", "3", "-j", "3"]);
  expect(pids.size).toBe(3);
  expect(eventsOf(files, "rollout_leased").length).toBe(3);
  expect(await runs.essence(files.run)).toEqual(await Promise.all([1, 2, 3].map(() => runs.expected())));
}, 180_000);

it("hears of one that ended while nobody listened", async () => {
  const { files, pids } = await runs.disturbed("ends", [{ what: "what the agent says of its last turn", when: (of) => said(of) > 500_000, signals: true, after: nobody }], ["--take-over", "300"], 4);
  expect(pids.size).toBe(1);
  expect(eventsOf(files, "rollout_taken_over").length).toBe(1);
  expect(await runs.essence(files.run)).toEqual([await runs.expected()]);
}, 180_000);

/** A server's run, whose server is killed at the moment that `when` is true. */
async function servedAndKilled(mark: string, when: (files: RunFiles, engine: Engine) => boolean): Promise<RunFiles> {
  const start = (port: number): Promise<Served> => serve({ home: runs.home, key: KEY, port, args: ["--warm", "0", "--take-over", "300"] });
  let held = true;
  const engine = await startEngine(({ turn }) => ({ content: `answer ${turn}`, ...(held && turn === 2 && !mark.startsWith("held-") ? { delayMs: 600_000 } : {}) }));
  let server = await start(await steadyPort());
  try {
    const files = new RunFiles(runs.home);
    let ended = false;
    const running = mw([...runs.arguments(engine, mark, []), "--server", server.url], { env: { MW_HOME: join(place, "client"), MW_API_KEY: KEY } }).finally(() => (ended = true));
    await until("the moment", () => attempt(() => when(files, engine)));
    await server.stop("SIGKILL");
    held = false;
    server = await start(server.port);
    await until("the end", () => {
      letGo(mark);
      return ended;
    });
    const { code, stderr } = await running;
    expect(code, stderr).toBe(0);
    expect(eventsOf(files, "rollout_leased").length).toBe(1);
    expect(eventsOf(files, "rollout_taken_over").length).toBe(1);
    expect(await runs.essence(files.run)).toEqual([await runs.expected()]);
    return files;
  } finally {
    await server.stop();
    await engine.close();
  }
}

it("goes on under the next server, where a server had the run", async () => {
  let before = 0;
  await servedAndKilled(markOf("served"), (files, engine) => {
    const { when } = thirdQuestion(1);
    if (!when(files, engine)) return false;
    before = agents(markOf("served")).length;
    return true;
  });
  expect(before).toBe(1);
  expect(await leftoversAfter(runs.home)).toEqual([]);
}, 180_000);

it("is verified under the next server, where its tests ran under a server", async () => {
  const mark = markOf("held-served");
  const files = await servedAndKilled(mark, () => waitingTests(mark).length > 0);
  for (const type of ["rollout_ended", "rollout_collected", "rollout_verified"]) expect(eventsOf(files, type).length, type).toBe(1);
  expect(await leftoversAfter(runs.home)).toEqual([]);
}, 180_000);

it("begins anew where nobody came in time, and says why", async () => {
  const over = (mark: string): boolean => nobody(mark) && machines(runs.home).every((text) => text.startsWith("gateway socket"));
  const { files, pids } = await runs.disturbed("late", [{ ...thirdQuestion(1), after: over }], ["--take-over", "1"]);
  expect(pids.size).toBe(2);
  expect(eventsOf(files, "rollout_taken_over")).toEqual([]);
  expect(eventsOf(files, "rollout_try_failed")).toMatchObject([{ try: 1, cause: "controller_lost", error: { message: expect.stringContaining("it cannot be taken over: its machine is gone") as unknown } }]);
  expect(await runs.essence(files.run, 1)).toEqual([await runs.expected()]);
}, 180_000);

it("begins anew where the agent gave up meanwhile, and says why", async () => {
  const { files, pids } = await runs.disturbed("impatient", [{ ...thirdQuestion(1), after: nobody }], ["--take-over", "300"]);
  expect(pids.size).toBe(2);
  expect(eventsOf(files, "rollout_try_failed")).toMatchObject([{ try: 1, cause: "controller_lost", error: { message: expect.stringContaining("its agent gave up while no controller answered it") as unknown } }]);
  expect(await runs.essence(files.run, 1)).toEqual([await runs.expected()]);
}, 180_000);
