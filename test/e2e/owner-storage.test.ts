/** What one owner may keep on the server's disk, over both interfaces. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { type Answer, asking, otherOwner } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";

const base = mkdtempSync(join(tmpdir(), "mw-owner-storage-"));
const home = join(base, "home");
const KEY = "the-first-key-of-all";
const ask = asking(() => server, KEY);
const MiB = 1 << 20;
let server: Served;
let other: Record<string, string>;
beforeAll(async () => {
  server = await serve({ home, key: KEY, args: ["--warm", "0", "--max-snapshots-per-owner", "3", "--max-disk-per-owner", "200M"] });
  other = otherOwner(home);
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

const create = (diskBytes: number, key?: Record<string, string>): Promise<Answer> => ask("POST", "/v1/sandboxes", { disk_bytes: diskBytes, ttl_ms: 600_000 }, key);
const write = (id: string, mib: number): Promise<Answer> => ask("POST", `/v1/sandboxes/${id}/run`, { command: `head -c ${mib * MiB} /dev/urandom > /data` });

it("sandboxes promise their disk, and what is promised at once never exceeds the owner's", async () => {
  // Of seven that come at once, three have room.
  const answers = await Promise.all(Array.from({ length: 7 }, () => create(60 * MiB)));
  expect(answers.map(({ status }) => status).toSorted()).toEqual([201, 201, 201, 507, 507, 507, 507]);
  const refused = answers.find(({ status }) => status === 507);
  expect(refused?.body).toMatchObject({ code: "quota_exceeded", promised_bytes: 180 * MiB, limit_bytes: 200 * MiB, fix: expect.stringContaining("remove snapshots") });
  // Without a bound of its own a sandbox has one of 4 GiB, which is too much here; E2B's have that, too.
  expect((await ask("POST", "/v1/sandboxes", {})).status).toBe(507);
  expect((await ask("POST", "/v2/sandboxes", { templateID: "host" })).body).toMatchObject({ code: 507, message: expect.stringContaining("an owner has here") });
  const one = answers.find(({ status }) => status === 201);
  expect((await ask("POST", `/v1/sandboxes/${one?.body.id as string}/fork`, { count: 1 })).status).toBe(507);
  // Another owner has as much for itself.
  const theirs = await create(190 * MiB, other);
  expect(theirs.status).toBe(201);
  await ask("DELETE", `/v1/sandboxes/${theirs.body.id as string}`, undefined, other);
  for (const { status, body } of answers) if (status === 201) await ask("DELETE", `/v1/sandboxes/${body.id as string}`);
  const again = await create(190 * MiB);
  expect(again.status).toBe(201);
  await ask("DELETE", `/v1/sandboxes/${again.body.id as string}`);
});

it("snapshots count by number and by bytes, what they share once; what is removed makes room", async () => {
  const { id } = (await create(60 * MiB)).body as { id: string };
  await write(id, 20);
  const snapshot = (body: object = {}): Promise<Answer> => ask("POST", `/v1/sandboxes/${id}/snapshots`, body);
  const taken = [await snapshot(), await snapshot(), await snapshot()];
  expect(taken.map(({ status }) => status)).toEqual([201, 201, 201]);
  expect((await snapshot()).body).toMatchObject({ status: 429, code: "overloaded", detail: expect.stringContaining("you have 3 snapshots") });
  expect((await ask("POST", `/sandboxes/${id}/snapshots`, {})).body).toMatchObject({ code: 429 });
  for (const { body } of taken.slice(0, 2)) expect((await ask("DELETE", `/v1/snapshots/${body.id as string}`)).status).toBe(204);
  // Twice the same 20 MiB, and 60 promised: two more sandboxes of 55 have room, which they would not if they counted twice.
  expect((await snapshot()).status).toBe(201);
  const filler = await create(110 * MiB);
  expect(filler.status, JSON.stringify(filler.body)).toBe(201);
  await write(id, 30);
  const before = (await ask("GET", "/v1/snapshots")).body.snapshots as unknown[];
  expect((await snapshot()).body).toMatchObject({ status: 507, code: "quota_exceeded" });
  expect((await ask("POST", `/sandboxes/${id}/snapshots`, {})).body).toMatchObject({ code: 507 });
  expect((await ask("GET", "/v1/snapshots")).body.snapshots).toEqual(before);
  await ask("DELETE", `/v1/sandboxes/${filler.body.id as string}`);
  expect((await snapshot()).status).toBe(201);
  // A paused one keeps what it wrote, and promises nothing more; to go on it needs its promise again.
  expect((await ask("POST", `/v1/sandboxes/${id}/pause`, {})).status).toBe(200);
  const large = await create(100 * MiB);
  expect(large.status, JSON.stringify(large.body)).toBe(201);
  expect((await ask("POST", `/v1/sandboxes/${id}/resume`, {})).status).toBe(507);
  await ask("DELETE", `/v1/sandboxes/${large.body.id as string}`);
  expect((await ask("POST", `/v1/sandboxes/${id}/resume`, {})).status).toBe(200);
  await ask("DELETE", `/v1/sandboxes/${id}`);
  for (const { id: left } of (await ask("GET", "/v1/snapshots")).body.snapshots as { id: string }[]) await ask("DELETE", `/v1/snapshots/${left}`);
});
