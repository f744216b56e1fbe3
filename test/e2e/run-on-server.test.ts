/** `mw run --server`: the run is the server's, and whoever asked for it sees it as their own, whatever becomes of connections, of the client and of the server. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "../../src/core/ids.ts";
import { systemRuntime } from "../../src/core/runtime.ts";
import { plansDocument } from "../../src/server/plans/index.ts";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { RunFiles } from "../support/killed-run.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-run-on-server-"));
const home = join(place, "home");
const KEY = "the-first-key-of-all";
// The client has a data directory of its own, where nothing comes to be.
const env = { MW_HOME: join(place, "client"), MW_API_KEY: KEY };
let server: Served;
beforeAll(async () => {
  expect((await mw(["image", "pull", "host"], { env: { MW_HOME: home } })).code).toBe(0);
  server = await serve({ home, key: KEY, args: ["--warm", "0"] });
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  expect(readdirSync(join(home, "plans"))).toEqual([]);
  rmSync(place, { recursive: true, force: true });
});

const task = writeTask(join(place, "task"), { name: "test/served" });
const recordedIn = (files: RunFiles): readonly Readonly<Record<string, unknown>>[] => files.events.filter(({ type }) => type === "rollout_recorded");

interface Listed {
  readonly run: string;
  readonly status: string;
  readonly outcomes: unknown;
  readonly rollouts: readonly { readonly rollout: string; readonly reward: number; readonly tries: number }[];
}

async function post(path: string, body: unknown): Promise<{ readonly status: number; readonly body: Record<string, unknown> }> {
  const response = await fetch(`${server.url}${path}`, { method: "POST", headers: { "x-api-key": KEY, "content-type": "application/json" }, body: JSON.stringify(body) });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

describe("a run on a server", () => {
  it("looks as one of one's own: table, progress, exit code; and is there to be shown", async () => {
    const { code, stdout, stderr } = await mw(["run", task, "--harness", "oracle,nop", "-n", "4", "--seed", "1", "--price", "machine=3600", "--server", server.url], { env });
    expect([code, stderr]).toEqual([0, expect.stringContaining(`at ${server.url}`)]);
    const run = /run (run\w+) \(finished, 4\/4 rollouts\)/.exec(stdout)?.[1] ?? "";
    const shown = await mw(["show", run], { env: { MW_HOME: home } });
    for (const begin of ["pass@1", "cost: $"]) expect(shown.stdout).toContain(stdout.split("\n").find((line) => line.startsWith(begin)) ?? "no line");
    // Whoever follows it later was not told its prices.
    expect((await mw(["resume", run, "--server", server.url], { env })).stdout).toBe(stdout);
    expect(stderr).toContain("4/4 done");
    expect(readdirSync(place)).not.toContain("client");
  });

  it("refuses what would be refused here, before anything exists", async () => {
    const before = readdirSync(join(home, "runs"));
    const missing = await mw(["run", join(place, "no-task"), "--harness", "oracle", "--server", server.url], { env });
    expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining("no-task")]);
    for (const [more, said] of [[["--server", "nonsense"], "is no address"], [["--server", "http://127.0.0.1:1"], "nothing answers at"], [["--interrupt", "detach"], "not a server's"], [["--server", server.url, "--backend", "remote:http://127.0.0.1:1"], "the server's own"]] as const) {
      const answer = await mw(["run", task, "--harness", "oracle", ...more], { env });
      expect([answer.code, answer.stderr], said).toEqual([expect.toSatisfy((code: number) => code === 2 || code === 3), expect.stringContaining(said)]);
    }
    const wrongKey = await mw(["run", task, "--harness", "oracle", "--server", server.url], { env: { ...env, MW_API_KEY: "another" } });
    expect([wrongKey.code, wrongKey.stderr]).toEqual([3, expect.stringContaining("not one of this server's")]);
    const broken = await mw(["run", task, join(place, "no-task"), "--harness", "oracle", "--server", server.url], { env });
    expect([broken.code, broken.stderr]).toEqual([1, expect.stringContaining("no-task")]);
    expect(readdirSync(join(home, "runs")).length).toBe(before.length + 1);
  });

  it("is one run for its id; another request is a conflict, and fields that are not known are refused", async () => {
    const plan = {
      run: newId("run", systemRuntime), inputs: [task], attempts: 2, seed: "1", harnesses: ["oracle"], script: null, upstream: null, budgets: { turns: 5, tokens: null, commandMs: 60_000, outputBytes: 16_384 },
      network: null, image: null, ignoreLimits: false, timeoutMultiplier: 1, concurrency: 2, durability: "process", rules: (JSON.parse(readFileSync(join(home, "runs", readdirSync(join(home, "runs"))[0] ?? "", "run.json"), "utf8")) as { rules: unknown }).rules,
    };
    const answers = await Promise.all([1, 2, 3].map(() => post("/v1/runs", plan)));
    expect(answers.map(({ status }) => status).toSorted()).toEqual([200, 200, 201]);
    expect((await post("/v1/runs", { ...plan, attempts: 3 })).status).toBe(409);
    expect((await post("/v1/runs", { ...plan, run: newId("run", systemRuntime), apiKeyFile: "/etc/passwd" })).status).toBe(422);
    expect((await post("/v1/runs", { ...plan, run: "latest" })).status).toBe(422);
    const followed = await mw(["resume", plan.run, "--server", server.url, "--json"], { env });
    expect(JSON.parse(followed.stdout)).toMatchObject({ run: plan.run, status: "finished", outcomes: { scored: 2 } });
    expect((await post(`/v1/runs/${plan.run}/stop`, {})).status).toBe(409);
    expect((await post(`/v1/runs/${newId("run", systemRuntime)}/resume`, {})).status).toBe(404);
  });

  it("is followed over connections that break, from where they broke", async () => {
    const slow = writeTask(join(place, "slow"), { name: "test/slow", solve: "sleep 0.5; mkdir -p /work && echo hello > /work/out" });
    const sockets = new Set<Socket>();
    let cuts = 0;
    const proxy: Server = createServer((socket) => {
      const to = connect(server.port, "127.0.0.1");
      for (const each of [socket, to]) each.on("error", () => undefined).on("close", () => [socket, to].forEach((one) => one.destroy()));
      sockets.add(socket);
      socket.on("close", () => sockets.delete(socket));
      socket.pipe(to).pipe(socket);
    });
    await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    const files = new RunFiles(home);
    const cutter = setInterval(() => {
      if (!attempt(() => recordedIn(files).length > 3 * cuts)) return;
      cuts++;
      for (const socket of sockets) socket.destroy();
    }, 100);
    try {
      const { code, stdout, stderr } = await mw(["run", slow, "--harness", "oracle", "-n", "12", "-j", "2", "--server", `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, "--json"], { env });
      expect([code, stderr]).toEqual([0, expect.stringContaining("is lost: trying again")]);
      expect(cuts).toBeGreaterThan(1);
      expect((JSON.parse(stdout) as Listed).rollouts).toHaveLength(12);
      expect(JSON.parse(stdout)).toMatchObject({ status: "finished", outcomes: { scored: 12 } });
    } finally {
      clearInterval(cutter);
      proxy.close();
    }
  });

  it("Ctrl-C stops it, and a resume goes on; or leaves it to the server", async () => {
    const waiting = writeTask(join(place, "waiting"), { name: "test/waiting", solve: "sleep 2; mkdir -p /work && echo hello > /work/out" });
    const args = (...more: string[]): string[] => ["run", waiting, "--harness", "oracle", "-n", "4", "-j", "1", "--server", server.url, "--json", ...more];
    const interruptOnce = async (times: number, ...more: string[]): Promise<{ readonly code: number; readonly stderr: string; readonly run: string }> => {
      const files = new RunFiles(home);
      let send = (): void => undefined;
      const running = mw(args(...more), { env, interrupt: (given) => (send = given) });
      await expect.poll(() => attempt(() => recordedIn(files).length >= 1), { timeout: 120_000 }).toBe(true);
      for (let at = 0; at < times; at++) send();
      const { code, stderr } = await running;
      return { code, stderr, run: files.run };
    };
    const stopped = await interruptOnce(2);
    expect([stopped.code, stopped.stderr]).toEqual([130, expect.stringContaining(`mw resume ${stopped.run} --server ${server.url}`)]);
    const resumed = await mw(["resume", stopped.run, "--server", server.url, "--json"], { env });
    expect(resumed.code, resumed.stderr).toBe(0);
    expect((JSON.parse(resumed.stdout) as Listed).rollouts.map(({ reward }) => reward)).toEqual([1, 1, 1, 1]);
    const detached = await interruptOnce(1, "--interrupt", "detach");
    expect([detached.code, detached.stderr]).toEqual([130, expect.stringContaining("the run goes on at")]);
    const again = await mw(["resume", detached.run, "--server", server.url, "--json"], { env });
    expect((JSON.parse(again.stdout) as Listed).rollouts.map(({ reward, tries }) => [reward, tries])).toEqual([[1, 1], [1, 1], [1, 1], [1, 1]]);
  });

  it("has checkpoints and branches, and a server that is started anew after kill -9 goes on in the middle: nothing is done twice", async () => {
    const counted = writeTask(join(place, "counted"), { name: "test/counted", test: '[ "$(head -2 /work/log | tr "\\n" " ")" = "1 2 " ] && [ "$(wc -l < /work/log)" = 3 ] && echo 1 > /logs/verifier/reward.txt || { cat /work/log; echo 0 > /logs/verifier/reward.txt; }' });
    const files = new RunFiles(home);
    let held = true;
    const engine = await startEngine(({ body, turn }) => {
      if (!("tools" in body) || turn > 2) return { content: "done" };
      // One branch hangs at its model when its server dies.
      const hangs = held && turn === 2 && attempt(() => recordedIn(files).length > 0);
      return { content: null, calls: [{ command: turn === 2 ? "echo last >> /work/log" : `mkdir -p /work; echo ${turn + 1} >> /work/log` }], ...(hangs ? { delayMs: 600_000 } : {}) };
    });
    try {
      const args = ["run", counted, "--harness", "bash", "--upstream", `vllm=${engine.root}`, "--model", "m", "--seed", "1", "--checkpoint", "every-turn", "--branch", "3", "--branch-turn", "1", "-j", "1", "--server", server.url, "--json"];
      const running = mw(args, { env });
      await expect.poll(() => attempt(() => recordedIn(files).length === 1 && files.events.filter(({ type }) => type === "rollout_restored").length === 1 && files.events.at(-1)?.["type"] === "rollout_checkpointed"), { timeout: 120_000 }).toBe(true);
      await server.stop("SIGKILL");
      const unanswered = engine.requests.at(-1)?.promptIds.length ?? 0;
      const finished = recordedIn(files);
      expect(await leftoversAfter(home, (of) => machines(of).filter((text) => !text.startsWith("gateway socket")))).toEqual([]);
      held = false;
      server = await serve({ home, key: KEY, port: server.port, args: ["--warm", "0"] });
      await expect.poll(() => server.stderr()).toContain("going on with");
      const { code, stdout, stderr } = await running;
      expect(code, stderr).toBe(0);
      const listed = JSON.parse(stdout) as Listed;
      expect(listed).toMatchObject({ status: "finished", outcomes: { scored: 3 } });
      expect(listed.rollouts.map(({ reward }) => reward)).toEqual([1, 1, 1]);
      expect(recordedIn(files).slice(0, finished.length)).toEqual(finished);
      expect(new Set(recordedIn(files).map(({ rollout }) => rollout)).size).toBe(3);
      expect(recordedIn(files)).toHaveLength(3);
      // The one in the middle went on from its own checkpoint, behind its second turn.
      expect(files.events.filter(({ type }) => type === "rollout_restored").map(({ turn, parent }) => [turn, parent === null])).toEqual([[1, false], [2, true], [1, false]]);
      // What was answered once is paid for once, whoever goes on with it.
      const asked = engine.requests.flatMap(({ body, promptIds }) => ("tools" in body ? [promptIds.length] : []));
      const { tokens } = JSON.parse((await mw(["show", files.run, "--json"], { env: { MW_HOME: home } })).stdout) as { tokens: unknown };
      expect(tokens).toMatchObject({ promptTokens: asked.reduce((sum, length) => sum + length, 0) - unanswered, thrownAway: { tries: 1, promptTokens: 0, completionTokens: 0, uncounted: 0 } });
      expect(files.snapshots).toEqual([]);
    } finally {
      await engine.close();
    }
  });
});

it("its OpenAPI document is the committed one", async () => {
  await expect(`${JSON.stringify(plansDocument(), null, 2)}\n`).toMatchFileSnapshot("../../docs/openapi/plans.json");
});

function attempt(when: () => boolean): boolean {
  try {
    return when();
  } catch {
    return false;
  }
}
