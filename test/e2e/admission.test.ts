/** Owners share a server that is full: against `mw serve` with real machines, and the official E2B SDK. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RateLimitError, Sandbox } from "e2b";
import { afterAll, beforeAll, expect, it } from "vitest";
import { otherOwner } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { serve, type Served } from "../support/serve.ts";

const base = mkdtempSync(join(tmpdir(), "mw-admission-"));
const home = join(base, "home");
const LOCAL = `e2b_${"a1".repeat(20)}`;
const PLACES = 10;
let image: TestRoot;
let server: Served;
let other: string;
beforeAll(async () => {
  image = makeTestRoot(base);
  server = await serve({ home, key: LOCAL, args: ["--max-sandboxes", String(PLACES)], env: { MW_MAX_SANDBOXES_PER_OWNER: "9" } });
  other = otherOwner(home)["x-api-key"];
  // The image's name is known to all once its path was used.
  const { id } = await create(LOCAL);
  await end(LOCAL, id);
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

const ask = (key: string, method: string, path: string, body?: unknown): Promise<Response> =>
  fetch(`${server.url}${path}`, { method, headers: { "x-api-key": key, ...(body === undefined ? {} : { "content-type": "application/json" }) }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
const post = (key: string): Promise<Response> => ask(key, "POST", "/v1/sandboxes", key === LOCAL ? { image: `dir:${image.directory}` } : { image: "host" });
async function create(key: string): Promise<{ readonly id: string }> {
  const answer = await post(key);
  expect(answer.status).toBe(201);
  return (await answer.json()) as { id: string };
}
const end = async (key: string, id: string): Promise<void> => expect((await ask(key, "DELETE", `/v1/sandboxes/${id}`)).status).toBe(204);
const counted = async (name: string): Promise<number> => Number(new RegExp(`^${name} (\\d+)$`, "m").exec(await (await ask(LOCAL, "GET", "/metrics")).text())?.[1]);

it("an owner who asks for hundreds is held to its limit, and keeps nobody else from starting", async () => {
  const flood = await Promise.all(Array.from({ length: 300 }, () => post(LOCAL)));
  const ids: string[] = [];
  for (const answer of flood) {
    const body = (await answer.json()) as { id: string; code: string; refusal: string };
    if (answer.status === 201) ids.push(body.id);
    else {
      expect([answer.status, body.code, body.refusal]).toEqual([429, "overloaded", "owner_places"]);
      expect(answer.headers.get("retry-after")).toMatch(/^[1-9]\d?$/);
    }
  }
  expect(ids).toHaveLength(9);
  const { id } = await create(other);
  expect(await counted("mw_sandbox_places_taken")).toBe(PLACES);
  expect(await counted("mw_sandbox_places")).toBe(PLACES);
  expect(await counted('mw_creations_refused_total\\{reason="owner_places"\\}')).toBe(291);

  // Full: the next one waits until a place comes free. A paused sandbox has none.
  const late = create(other);
  while ((await counted("mw_creations_waiting")) === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  const [first = "", second = "", ...rest] = ids;
  expect((await ask(LOCAL, "POST", `/v1/sandboxes/${first}/pause`, {})).status).toBe(200);
  const made = await late;
  // The last place is not for an owner with more than its share: two have to end.
  for (const [key, one] of [[LOCAL, second], [other, made.id]] as const) await end(key, one);
  expect((await ask(LOCAL, "POST", `/v1/sandboxes/${first}/resume`, {})).status).toBe(200);
  expect(await counted("mw_sandbox_places_taken")).toBe(PLACES - 1);

  for (const left of [first, ...rest]) await end(LOCAL, left);
  await end(other, id);
  expect(await counted("mw_sandbox_places_taken")).toBe(0);
});

it("E2B's client hears that it has too many, in its own words", async () => {
  const options = { apiKey: other, apiUrl: server.url, sandboxUrl: server.url, requestTimeoutMs: 120_000 };
  const made = await Promise.all(Array.from({ length: 9 }, () => Sandbox.create("host", options)));
  const refused = await Sandbox.create("host", options).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(RateLimitError);
  const answer = await ask(other, "POST", "/v2/sandboxes", { templateID: "host" });
  expect(answer.status).toBe(429);
  expect(answer.headers.get("retry-after")).toMatch(/^[1-9]\d?$/);
  expect(await answer.json()).toMatchObject({ code: 429, message: expect.stringContaining("9 are the most"), error_code: "sandbox_placement_timeout" });
  const [last] = made;
  await last?.kill();
  // The client asks again by itself after Retry-After.
  const again = await Sandbox.create("host", options);
  for (const sandbox of [...made.slice(1), again]) await sandbox.kill();
});
