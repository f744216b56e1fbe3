import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { unpack } from "msgpackr";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { startDeliveryServer, type DeliveryServer } from "../../../test/support/delivery/delivery-server.ts";
import { scoredEnd, SimulatedWorker } from "../../../test/support/delivery/simulated-worker.ts";
import { systemRuntime } from "../../core/runtime.ts";
import { readSafetensorsHead } from "../../delivery/safetensors-head.ts";
import { deliveryDocument } from "./openapi.ts";

/** Of a sampled token in safetensors: id, logprob, version, mask. */
const BYTES_A_TOKEN = 13;
/** Of bodies that are read slowly, or not at all: longer than a machine with much to do stands still. */
const LEASE_S = 6;

let directory = "";
let server: DeliveryServer;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "mw-delivery-http-"));
  server = await startDeliveryServer(directory);
});
afterEach(async () => {
  await server.close();
  rmSync(directory, { recursive: true, force: true });
});

interface Answer {
  readonly status: number;
  readonly headers: Headers;
  // oxlint-disable-next-line typescript/no-explicit-any -- what a server answers is looked at field by field
  readonly body: any;
}

async function ask(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Answer> {
  const response = await fetch(`${server.url}${path}`, { method, headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  const text = await response.text();
  return { status: response.status, headers: response.headers, body: text === "" ? null : (JSON.parse(text) as unknown) };
}

const json = { accept: "application/json" };

async function startRun(request: object = {}): Promise<void> {
  expect((await ask("PUT", "/v1/runs/r", { group_size: 2, ...request })).status).toBe(200);
  expect((await ask("PUT", "/v1/runs/r/policy", { version: 0, model: "m", endpoints: [{ url: "http://127.0.0.1:1" }] })).body).toEqual({ version: 0, state: "live", model: "m" });
}

describe("delivery over HTTP", () => {
  it("is described by the committed document", async () => {
    await expect(`${JSON.stringify(deliveryDocument(), null, 2)}\n`).toMatchFileSnapshot(resolve(import.meta.dirname, "../../../docs/openapi/delivery.json"));
  });

  it("goes from a submission to the terminal log", async () => {
    await startRun();
    expect((await ask("POST", "/v1/runs/r/groups", { groups: [{ group_id: "a", task: "/t" }] })).body).toMatchObject({ groups: [{ group_id: "a", status: "accepted" }], credits: { groups: 1023 } });
    const { body: lease } = await ask("POST", "/v1/runs/r/lease", { wait_ms: 60_000 }, json);
    expect(lease.groups[0]).toMatchObject({ group_id: "a", usable: 2, samples: [{ member: 0, reward: 0, loss_mask: [0, 0, 0, 1, 1, 1, 1, 1] }, { member: 1, reward: 1 }] });
    expect((await ask("POST", `/v1/leases/${lease.lease_id}/extend`)).body.expires_at).toBeGreaterThanOrEqual(lease.expires_at);
    for (let again = 0; again < 2; again++) expect((await ask("POST", `/v1/leases/${lease.lease_id}/ack`, { consumed: ["a"], trained_version: 1 })).body).toEqual({ groups: 1024, bytes: 1024 ** 3 });
    expect((await ask("GET", "/v1/runs/r/terminal?after=0")).body).toMatchObject({ records: [{ seq: 1, group_id: "a", outcome: "consumed", trained_version: 1, lease_id: lease.lease_id }], next: 1 });
    expect((await ask("GET", "/v1/runs/r/status")).body.groups).toMatchObject({ consumed: 1, leased: 0 });
    expect((await ask("GET", "/v1/delivery")).body.runs.map(({ name }: { name: string }) => name)).toEqual(["r"]);
  });

  it("gives the same lease as safetensors, msgpack and JSON", async () => {
    await startRun();
    await ask("POST", "/v1/runs/r/groups", { groups: [{ group_id: "a", task: "/t" }, { group_id: "b", task: "/t", size: 3 }] });
    const take = async (accept: string): Promise<Buffer> => {
      const response = await fetch(`${server.url}/v1/runs/r/lease`, { method: "POST", headers: { "content-type": "application/json", accept }, body: JSON.stringify({ min_groups: 2, wait_ms: 60_000 }) });
      expect(response.headers.get("content-type")).toBe(accept === "*/*" ? "application/x-safetensors" : accept);
      return Buffer.from(await response.arrayBuffer());
    };
    const release = async (lease: string): Promise<void> => expect((await ask("POST", `/v1/leases/${lease}/release`)).status).toBe(204);
    const plain = JSON.parse((await take("application/json")).toString()) as { lease_id: string; groups: { samples: Record<string, unknown>[] }[] };
    await release(plain.lease_id);
    const packed = unpack(await take("application/msgpack")) as typeof plain;
    await release(packed.lease_id);
    const file = await take("*/*");
    // Array by array, msgpack says what JSON says.
    for (const group of packed.groups) group.samples = group.samples.map((sample) => Object.fromEntries(Object.entries(sample).map(([key, value]) => [key, numbersOf(value) ?? value])));
    expect(packed.groups).toEqual(plain.groups);
    const { metadata, tensors, start } = readSafetensorsHead(file);
    expect(start % 8).toBe(0);
    const samples = plain.groups.flatMap((group) => group.samples);
    const head = JSON.parse(metadata["lease"] ?? "") as { groups: { sample_facts: object[] }[] };
    expect(head.groups.flatMap((group) => group.sample_facts)).toEqual(samples.map(({ token_ids: _1, loss_mask: _2, logprobs: _3, versions: _4, ...facts }) => facts));
    const tensor = (name: string): number[] => {
      const [from, to] = tensors[name]?.data_offsets ?? [0, 0];
      const bytes = file.subarray(start + from, start + to);
      return numbersOf({ dtype: { I32: "int32", F32: "float32", U8: "uint8", I64: "int64" }[tensors[name]?.dtype ?? ""], data: bytes }) ?? [];
    };
    for (const name of ["token_ids", "loss_mask", "logprobs", "versions"]) expect(tensor(name)).toEqual(samples.flatMap((sample) => sample[name]));
    expect(tensor("offsets")).toEqual([0, 8, 16, 24, 32, 40]);
  });

  it("refuses what cannot be used, by field, and says how to go on", async () => {
    await startRun();
    expect(await ask("PUT", "/v1/runs/r", { group_size: 3 })).toMatchObject({ status: 409, body: { code: "conflict" } });
    expect((await ask("PUT", "/v1/runs/r", { group_size: 2 })).status).toBe(200);
    expect((await ask("PUT", "/v1/runs/b", { group_size: 0 })).body).toMatchObject({ status: 422, code: "invalid_input", detail: expect.stringContaining("group_size") });
    expect((await ask("PUT", "/v1/runs/b", { groupsize: 1 })).body.detail).toContain("groupsize");
    expect((await ask("PUT", "/v1/runs/b", { prices: { input: 1, output: 2 } })).body.detail).toContain("prices");
    expect((await ask("PUT", "/v1/runs/no%2Fslash", {})).status).toBe(422);
    expect((await ask("GET", "/v1/runs/none/status")).body).toMatchObject({ status: 404, code: "not_found", fix: expect.any(String) });
    expect((await ask("POST", "/v1/leases/r~1.99/ack", {})).status).toBe(404);
    expect((await ask("POST", "/v1/leases/whatever/extend")).status).toBe(404);
    expect((await ask("POST", "/v1/runs/r/lease", {}, { accept: "text/csv" })).status).toBe(422);
    expect((await ask("POST", "/v1/runs/r/lease", { wait_ms: 61_000 }, json)).body.detail).toContain("wait_ms");
    expect((await ask("PUT", "/v1/runs/r/policy", { version: 3 })).status).toBe(200);
    expect((await ask("PUT", "/v1/runs/r/policy", { version: 2 })).body.fix).toContain("restore");
    await ask("POST", "/v1/runs/r/groups", { groups: [{ group_id: "a", task: "/t" }] });
    expect((await ask("POST", "/v1/runs/r/groups", { groups: [{ group_id: "a", task: "/other" }] })).status).toBe(409);
  });

  it("answers 429 with what is free when there is no room", async () => {
    await startRun({ credits: { groups: 2 } });
    const groups = (names: string[]): object => ({ groups: names.map((group_id) => ({ group_id, task: "/t" })) });
    const refused = await ask("POST", "/v1/runs/r/groups", groups(["a", "b", "c"]));
    expect(refused).toMatchObject({ status: 429, body: { code: "overloaded", credits: { groups: 2 } } });
    expect(refused.headers.get("retry-after")).not.toBeNull();
    // Nothing of it was accepted.
    expect((await ask("POST", "/v1/runs/r/groups", groups(["c", "d"]))).body.groups.map(({ status }: { status: string }) => status)).toEqual(["accepted", "accepted"]);
  });

  it("lets a waiting client go, and gives what it would have had to the next", async () => {
    await startRun();
    const leaving = new AbortController();
    const gone = fetch(`${server.url}/v1/runs/r/lease`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ wait_ms: 60_000 }), signal: leaving.signal });
    leaving.abort();
    await expect(gone).rejects.toThrow(/abort/);
    await ask("POST", "/v1/runs/r/groups", { groups: [{ group_id: "a", task: "/t" }] });
    const { body } = await ask("POST", "/v1/runs/r/lease", { wait_ms: 60_000 }, json);
    expect(body.groups).toHaveLength(1);
  });

  it("lets many wait at once, without a warning about it", async () => {
    await startRun({ admission: "at_lease" });
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning);
    process.on("warning", onWarning);
    const waiting = Array.from({ length: 40 }, () => ask("POST", "/v1/runs/r/lease", { wait_ms: 60_000, max_groups: 1 }, json));
    await ask("POST", "/v1/runs/r/groups", { groups: Array.from({ length: 40 }, (_, at) => ({ group_id: `g${at}`, task: "/t" })) });
    const given = (await Promise.all(waiting)).map(({ body }) => body.groups as unknown[]);
    process.off("warning", onWarning);
    expect(given.every((groups) => groups.length === 1)).toBe(true);
    expect(warnings).toEqual([]);
  });

  it("breaks off a body that nobody has read by the end of its lease, and gives its groups to the next", async () => {
    await server.close();
    // More than sockets hold: what both ends' buffers may grow to, and then the same again.
    const [receive, send] = ["rmem", "wmem"].map((name) => Number(readFileSync(`/proc/sys/net/ipv4/tcp_${name}`, "utf8").trim().split(/\s+/).at(-1)));
    const sampled = Math.ceil((2 * (Number(receive) + Number(send))) / BYTES_A_TOKEN);
    server = await startDeliveryServer(directory, () =>
      Promise.resolve(
        new SimulatedWorker(systemRuntime, (job) => ({
          durationMs: 0,
          end: ({ startedAt, endedAt, version }) => scoredEnd(job, { startedAt, endedAt, reward: 1, prompt: 3, sampled, versionMin: version, versionMax: version }),
        })),
      ),
    );
    await startRun({ lease_s: LEASE_S, group_size: 1, samples: { max_tokens: null } });
    await ask("POST", "/v1/runs/r/groups", { groups: [{ group_id: "a", task: "/t" }] });
    const brokenOff = new Promise((resolve) => server.http.once("connection", (socket) => socket.once("close", resolve)));
    const idle = connect(Number(new URL(server.url).port), "127.0.0.1");
    idle.pause();
    const body = JSON.stringify({ wait_ms: 60_000 });
    idle.write(`POST /v1/runs/r/lease HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
    const service = await server.registry.get("r");
    while (service.status().groups.leased === 0) await sleep(20);
    const ended = new Promise((resolve) => idle.once("close", resolve).on("error", resolve));
    const next = await fetch(`${server.url}/v1/runs/r/lease`, { method: "POST", headers: { "content-type": "application/json" }, body });
    const whole = (await next.arrayBuffer()).byteLength;
    expect(whole).toBeGreaterThan(sampled * BYTES_A_TOKEN);
    // Read on, it has less than that, and its end. The next one may have all of it before the server looks at the first.
    await brokenOff;
    let read = 0;
    idle.on("data", (data: Buffer) => void (read += data.length)).resume();
    await ended;
    expect(read).toBeLessThan(whole);

    // One that reads slowly, longer than two leases last, gets all of it; then what is left lies in the sockets.
    await ask("POST", "/v1/runs/r/groups", { groups: [{ group_id: "b", task: "/t" }] });
    const slow = await fetch(`${server.url}/v1/runs/r/lease`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ wait_ms: 60_000, max_groups: 1, group_ids: ["b"] }) });
    const parts: Uint8Array[] = [];
    const begun = performance.now();
    // oxlint-disable-next-line typescript/no-non-null-assertion -- an answer that is a lease has a body
    for await (const part of slow.body!) {
      parts.push(part);
      if (performance.now() - begun < 2500 * LEASE_S) await sleep(12 * LEASE_S);
    }
    const file = Buffer.concat(parts);
    expect(file.length).toBeGreaterThan(sampled * BYTES_A_TOKEN);
    const { lease_id: lease } = JSON.parse(readSafetensorsHead(file).metadata["lease"] ?? "") as { lease_id: string };
    expect(await ask("POST", `/v1/leases/${lease}/ack`, { consumed: ["b"] })).toMatchObject({ status: 200 });
    expect(service.status().groups.consumed).toBe(1);
  });

  it("tells whoever waits that the server ends", async () => {
    await startRun();
    const waiting = ask("POST", "/v1/runs/r/lease", { wait_ms: 60_000 }, json);
    const service = await server.registry.get("r");
    server.draining.abort(Object.assign(new Error("ending"), { name: "AbortError" }));
    expect((await waiting).status).toBeGreaterThanOrEqual(500);
    expect(service.status().groups.leased).toBe(0);
  });

  it("gives a name free with the run, and counts its lives", async () => {
    await startRun();
    expect((await ask("DELETE", "/v1/runs/r")).status).toBe(204);
    expect((await ask("GET", "/v1/runs/r/status")).status).toBe(404);
    expect((await ask("PUT", "/v1/runs/r", { group_size: 5 })).body).toMatchObject({ epoch: 2, groups: { waiting: 0 } });
  });
});

function numbersOf(value: unknown): number[] | null {
  if (typeof value !== "object" || value === null || !("dtype" in value) || !("data" in value)) return null;
  const bytes = new Uint8Array(value.data as Uint8Array);
  switch (value.dtype) {
    case "int32":
      return [...new Int32Array(bytes.buffer)];
    case "float32":
      return [...new Float32Array(bytes.buffer)];
    case "int64":
      return Array.from(new BigInt64Array(bytes.buffer), Number);
    default:
      return [...bytes];
  }
}
