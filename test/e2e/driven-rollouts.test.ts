/** Rollouts whose agent is outside, over HTTP: as a trainer that samples by itself drives them. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { rolloutsOpenApi } from "../../src/server/rollouts/index.ts";
import { mw } from "../support/cli.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { writeTask } from "../support/tasks.ts";

const base = mkdtempSync(join(tmpdir(), "mw-driven-"));
const home = join(base, "home");
let server: Served;
let task = "";
beforeAll(async () => {
  task = writeTask(join(base, "task"), { name: "test/hello" });
  server = await serve({ home });
});
afterAll(async () => {
  await server.stop();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

type Document = Readonly<Record<string, unknown>>;

async function call(method: string, path: string, body?: unknown, key?: string): Promise<{ readonly status: number; readonly body: Document }> {
  const answer = await fetch(`${server.url}${path}`, {
    method,
    headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(key === undefined ? {} : { "x-api-key": key }) },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: answer.status, body: (await answer.json()) as Document };
}

async function begin(fields: Document = {}): Promise<string> {
  const { status, body } = await call("POST", "/v1/rollouts", { task, ...fields });
  expect(status, JSON.stringify(body)).toBe(201);
  return String(body["rollout_id"]);
}

describe("a rollout that is driven from outside", () => {
  it("has a machine of its own, is graded elsewhere, and is recorded like any other", async () => {
    const begun = await call("POST", "/v1/rollouts", { task, group: "g" });
    expect(begun.status).toBe(201);
    expect(String(begun.body["instruction"])).toContain("hello");
    const rollout = String(begun.body["rollout_id"]);
    expect((await call("POST", `/v1/rollouts/${rollout}/exec`, { command: "mkdir -p /work && cat > /work/out", stdin: "hello\n" })).body).toMatchObject({ code: 0, ended: "exited" });
    expect((await call("GET", `/v1/sandboxes/${String(begun.body["sandbox_id"])}`)).body).toMatchObject({ metadata: { rollout } });
    expect((await call("POST", `/v1/rollouts/${rollout}/exec`, { command: ["cat", "/work/out"] })).body).toMatchObject({ stdout: "hello\n", stdout_bytes: 6 });
    expect((await call("POST", `/v1/rollouts/${rollout}/exec`, { command: "sleep 60", timeout_s: 0.1 })).body).toMatchObject({ ended: "timed_out" });
    const ended = await call("POST", `/v1/rollouts/${rollout}/end`, { completion_tokens: 12 });
    expect(ended.body).toMatchObject({ rollout_id: rollout, outcome: "scored", reward: 1, stop_reason: "finished", error: null });
    // Asked again it is the same end, and the machine is gone.
    expect((await call("POST", `/v1/rollouts/${rollout}/end`, {})).body).toEqual(ended.body);
    expect((await call("POST", `/v1/rollouts/${rollout}/exec`, { command: "true" })).status).toBe(409);
    const shown = await mw(["show", rollout, "--json"], { env: { MW_HOME: home } });
    expect(JSON.parse(shown.stdout)).toMatchObject({ harness: "outside", reward: 1, turns: 3, completionTokens: 12 });
  });

  it("of one group are members of it, and idle ones score nothing", async () => {
    const [first, second] = [await begin({ group: "pair" }), await begin({ group: "pair" })];
    expect(first).not.toBe(second);
    const ends = await Promise.all([first, second].map((rollout) => call("POST", `/v1/rollouts/${rollout}/end`, {})));
    expect(ends.map(({ body }) => body["reward"])).toEqual([0, 0]);
    const shown = await Promise.all([first, second].map(async (rollout) => JSON.parse((await mw(["show", rollout, "--json"], { env: { MW_HOME: home } })).stdout) as Document));
    expect(shown[0]?.["group"]).toBe(shown[1]?.["group"]);
    expect(shown.map((document) => document["attempt"])).toEqual([1, 2]);
  });

  it("ends when its driver is gone, or says so", async () => {
    const silent = await begin({ ttl_s: 1 });
    const cancelled = await begin();
    expect((await call("DELETE", `/v1/rollouts/${cancelled}`)).body).toMatchObject({ outcome: "cancelled", reward: null });
    const watch = async (): Promise<Document> => JSON.parse((await mw(["show", silent, "--json"], { env: { MW_HOME: home } })).stdout) as Document;
    await expect.poll(async () => (await watch())["outcome"], { timeout: 60_000 }).toBe("cancelled");
    expect((await call("POST", `/v1/rollouts/${silent}/exec`, { command: "true" })).status).toBe(409);
  });

  it("is nobody else's", async () => {
    const { stdout } = await mw(["key", "add", "other", "--data", home], { env: { MW_HOME: home } });
    const key = /e2b_[0-9a-f]+/.exec(stdout)?.[0] ?? "";
    const rollout = await begin();
    for (const [method, path] of [["POST", "exec"], ["POST", "extend"], ["POST", "end"], ["DELETE", ""]] as const) {
      expect((await call(method, `/v1/rollouts/${rollout}/${path}`.replace(/\/$/, ""), method === "POST" ? (path === "exec" ? { command: "true" } : {}) : undefined, key)).status, path).toBe(404);
    }
    expect((await call("DELETE", `/v1/rollouts/${rollout}`)).status).toBe(200);
  });

  it("is refused with words that say what is wrong", async () => {
    expect(await call("POST", "/v1/rollouts", { task: join(base, "none") })).toMatchObject({ status: 409, body: { detail: expect.stringContaining("none") as string } });
    expect(await call("POST", "/v1/rollouts", { tusk: task })).toMatchObject({ status: 422, body: { code: "invalid_input" } });
    expect(await call("POST", "/v1/rollouts/ro000/exec", { command: "true" })).toMatchObject({ status: 404 });
    expect(await call("POST", "/v1/rollouts/ro000/exec", { command: [] })).toMatchObject({ status: 422, body: { field: "command" } });
  });

  it("loses its machine with the server, and is finished by the next one", async () => {
    const rollout = await begin();
    await server.stop("SIGKILL");
    server = await serve({ home });
    const shown = JSON.parse((await mw(["show", rollout, "--json"], { env: { MW_HOME: home } })).stdout) as Document;
    expect(shown["outcome"]).toBe("cancelled");
    expect((await call("POST", `/v1/rollouts/${rollout}/end`, {})).status).toBe(404);
  });

  it("is described by the committed document", () => {
    const committed = JSON.parse(readFileSync(fileURLToPath(new URL("../../docs/openapi/rollouts.json", import.meta.url)), "utf8")) as unknown;
    expect(JSON.parse(JSON.stringify(rolloutsOpenApi("1")))).toEqual(committed);
  });
});
