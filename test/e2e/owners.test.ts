/** What belongs to one owner is not there for another, on every route of the server; and nothing that listens answers without a key. */
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, readdirSync, readlinkSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { WebSocket } from "ws";
import { otherOwner } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { serverRoutes, type ServerRoute, type ServerRoutes } from "../support/server-routes.ts";
import { writeTask } from "../support/tasks.ts";

const base = mkdtempSync(join(tmpdir(), "mw-owners-"));
const home = join(base, "home");
const KEY = `e2b_${"d4".repeat(20)}`;
let server: Served;
let otherKey = "";
let all: ServerRoutes;
/** What `local` has; `other` is to see none of it. */
const mine = { native: "", e2b: "", snapshot: "", template: "", build: "", rollout: "", rolloutSandbox: "" };
const NAMES = { snapshot: "mine-frozen", template: "mine-built", exec: "mine-exec", run: "mine-run", metadata: "mine-secret" };

interface Answer {
  readonly status: number;
  readonly text: string;
  // oxlint-disable-next-line typescript/no-explicit-any -- documents of the interface under test
  readonly body: any;
}

function ask(method: string, path: string, body: unknown, headers: Readonly<Record<string, string>>): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const text = body === undefined ? null : JSON.stringify(body);
    const sent = request({ host: "127.0.0.1", port: server.port, path, method, agent: false, headers: { ...(text === null ? {} : { "content-type": "application/json", "content-length": Buffer.byteLength(text) }), ...headers } }, (response) => {
      let got = "";
      response.on("data", (data: Buffer) => {
        got += data.toString("latin1");
        // Streams have no end of their own.
        if (response.headers["content-type"]?.includes("event-stream") === true) response.destroy();
      });
      response.on("close", () => resolve({ status: response.statusCode ?? 0, text: got, body: parsed(got) }));
    });
    sent.on("error", reject).end(text ?? undefined);
  });
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const local = (method: string, path: string, body?: unknown): Promise<Answer> => ask(method, path, body, { "x-api-key": KEY });
const other = (method: string, path: string, body?: unknown): Promise<Answer> => ask(method, path, body, { "x-api-key": otherKey });

beforeAll(async () => {
  all = await serverRoutes();
  server = await serve({ home, key: KEY });
  otherKey = otherOwner(home)["x-api-key"];
  const made = async (answer: Promise<Answer>): Promise<Answer["body"]> => {
    const { status, body, text } = await answer;
    expect(status, text).toBeLessThan(300);
    return body;
  };
  mine.native = (await made(local("POST", "/v1/sandboxes", { image: "host", ttl_ms: 3_600_000, metadata: { note: NAMES.metadata } }))).id;
  mine.e2b = (await made(local("POST", "/v2/sandboxes", { templateID: "host", timeout: 3600, metadata: { note: NAMES.metadata }, network: { allowPublicTraffic: false } }))).sandboxID;
  await made(local("POST", `/v1/sandboxes/${mine.native}/execs`, { id: NAMES.exec, command: "sleep 3600" }));
  mine.snapshot = (await made(local("POST", `/v1/sandboxes/${mine.native}/snapshots`, { name: NAMES.snapshot }))).id;
  ({ templateID: mine.template, buildID: mine.build } = await made(local("POST", "/v3/templates", { name: NAMES.template })));
  await made(local("PUT", `/v1/runs/${NAMES.run}`, {}));
  ({ rollout_id: mine.rollout, sandbox_id: mine.rolloutSandbox } = await made(local("POST", "/v1/rollouts", { task: writeTask(join(base, "task")) })));
});
afterAll(async () => {
  expect(await server.stop()).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

/** A body with which the route's owner would be served, where `{}` is none. */
const BODIES: Readonly<Record<string, unknown>> = {
  "POST /v1/sandboxes/:id/renew": { ttl_ms: 1000 },
  "PUT /v1/sandboxes/:id/network": { allow: [] },
  "POST /v1/sandboxes/:id/ports": { port: 80 },
  "POST /v1/sandboxes/:id/run": { command: "true" },
  "POST /v1/sandboxes/:id/execs": { command: "true" },
  "POST /v1/sandboxes/:id/execs/:exec/resize": { columns: 80, rows: 24 },
  "POST /v1/sandboxes/:id/files/move": { from: "/etc/hostname", to: "/tmp/x" },
  "POST /v1/sandboxes/:id/files/mkdir": { path: "/tmp/x" },
  "POST /v1/rollouts/:rollout/exec": { command: "true" },
  "POST /sandboxes/:id/timeout": { timeout: 1 },
  "POST /templates/tags": { target: NAMES.template, tags: ["x"] },
  "DELETE /templates/tags": { name: NAMES.template, tags: ["default"] },
  "POST /v1/runs/:name/groups": { groups: [{ group_id: "g", task: "x" }] },
  "PUT /v1/runs/:name/policy": { version: 1, state: "live", model: "m", endpoints: [{ url: "http://127.0.0.1:1", kind: "sglang" }] },
  "POST /v2/templates/:id/builds/:build": { fromImage: "host" },
  "POST /v1/runs/:name/cancel": { all: true },
  "POST /v1/runs/:name/restore": { run: "r", epoch: 0, cursor: 0, consumed: 0, version: null, digest: "" },
  "PUT /v1/runs/:run/marks/:target": { note: "x" },
};
/** Queries that a route wants. */
const QUERIES: Readonly<Record<string, string>> = {
  "GET /v1/sandboxes/:id/files": "path=/etc/hostname",
  "PUT /v1/sandboxes/:id/files": "path=/tmp/x",
  "DELETE /v1/sandboxes/:id/files": "path=/tmp/x",
  "GET /v1/sandboxes/:id/files/stat": "path=/etc/hostname",
  "GET /v1/sandboxes/:id/files/list": "path=/etc",
  "GET /v1/sandboxes/:id/tree": "path=/etc",
  "PUT /v1/sandboxes/:id/tree": "path=/tmp",
};
/** Routes that make or take up something of whoever asks, or list what is theirs: by no id of another's. */
const OWN = new Set(["POST /v1/sandboxes", "GET /v1/sandboxes", "GET /v1/snapshots", "POST /v1/rollouts", "POST /run", "GET /v1/delivery", "PUT /v1/runs/:name", "POST /sandboxes", "POST /v2/sandboxes", "GET /sandboxes", "GET /v2/sandboxes", "GET /snapshots", "GET /sandboxes/metrics", "GET /teams", "POST /v3/templates", "POST /v2/templates", "POST /templates", "GET /templates", "GET /v2/templates", "GET /v1/site"]);
/** Refused to everybody alike. */
const NOT_OFFERED = /^\/(volumes|secrets|api-keys|access-tokens|nodes|admin)(\/|$)/;
/** Asked without a key. Each is somebody's decision. */
const OPEN = ["GET /", "GET /ui", "GET /ui/*", "GET /ui/assets/:name", "PUT /e2b-uploads/:token"];

const nameOf = ({ method, url }: Pick<ServerRoute, "method" | "url">): string => `${method} ${url}`;

/** Its address with what is `local`'s in place of the parameters. */
function addressesOf(route: ServerRoute): readonly string[] {
  const query = QUERIES[nameOf(route)];
  const sandboxes = route.url.includes("/sandboxes/:id") ? [mine.native, mine.e2b, mine.rolloutSandbox] : [""];
  const templates = route.url.includes("/templates/:id") ? [mine.template, NAMES.template, mine.snapshot, NAMES.snapshot] : [""];
  const references = route.url.includes(":reference") ? [mine.snapshot, NAMES.snapshot] : [""];
  return sandboxes.flatMap((sandbox) => templates.flatMap((template) => references.map((reference) => {
    const values: Readonly<Record<string, string>> = { exec: NAMES.exec, port: "80", reference, build: mine.build, hash: "0".repeat(64), alias: NAMES.template, rollout: mine.rollout, name: NAMES.run, run: NAMES.run, id: sandbox || template || "lease", group: "g", index: "0", number: "1", stream: "stdout", side: "request", sample: "0", target: "t", token: "x" };
    return `${route.url.replaceAll(/:(\w+)/g, (_, key: string) => values[key] ?? "?")}${query === undefined ? "" : `?${query}`}`;
  })));
}

describe("one owner", () => {
  it("finds nothing of another's on any route", async () => {
    const before = await state();
    const walked: string[] = [];
    const wrong: string[] = [];
    for (const route of all.routes) {
      if (route.open || OWN.has(nameOf(route)) || NOT_OFFERED.test(route.url)) continue;
      for (const address of addressesOf(route)) {
        const raw = route.method === "PUT" && (route.url.endsWith("/files") || route.url.endsWith("/tree"));
        const { status, text } = raw ? await ask(route.method, address, undefined, { "x-api-key": otherKey, "content-type": route.url.endsWith("/tree") ? "application/x-tar" : "application/octet-stream" }) : await other(route.method, address, route.method === "GET" ? undefined : (BODIES[nameOf(route)] ?? (route.method === "DELETE" ? undefined : {})));
        if (status !== 404 || text.includes(NAMES.metadata)) wrong.push(`${nameOf(route)} at ${address}: ${status} ${text.slice(0, 300)}`);
        walked.push(nameOf(route));
      }
    }
    expect(wrong).toEqual([]);
    expect(walked.length).toBeGreaterThan(100);
    // Nothing of it was touched either.
    expect(await state()).toEqual(before);
  });

  it("lists what is its own, and takes up nothing of another's by name", async () => {
    for (const path of ["/v1/sandboxes", "/v1/snapshots", "/sandboxes", "/v2/sandboxes", `/v2/sandboxes?metadata=note%3D${NAMES.metadata}`, "/snapshots", `/snapshots?name=${NAMES.snapshot}`, "/templates", "/v1/delivery"]) {
      const { status, text } = await other("GET", path);
      expect(status, path).toBe(200);
      for (const secret of [...Object.values(mine), ...Object.values(NAMES)]) expect(text, `${path} for ${secret}`).not.toContain(secret);
    }
    expect((await other("GET", `/sandboxes/metrics?sandbox_ids=${mine.e2b}`)).status).toBe(404);
    for (const templateID of [mine.snapshot, NAMES.snapshot, `${NAMES.snapshot}:default`, mine.template, NAMES.template, `manyworlds-template/${mine.template}:default`, `docker.io/manyworlds-template/${mine.template}:default`]) expect((await other("POST", "/v2/sandboxes", { templateID })).status, templateID).toBe(404);
    for (const snapshot of [mine.snapshot, NAMES.snapshot]) expect((await other("POST", "/v1/sandboxes", { snapshot })).status).toBe(404);
    expect((await other("POST", "/v1/sandboxes", { image: `manyworlds-template/${mine.template}:default` })).status).toBe(404);
    const { templateID, buildID } = (await other("POST", "/v3/templates", { name: "theirs" })).body;
    expect((await other("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromTemplate: mine.template })).status).toBe(202);
    await expect.poll(async () => (await other("GET", `/templates/${templateID}/builds/${buildID}/status`)).body.status as string, { timeout: 60_000 }).toBe("error");
    expect((await other("DELETE", `/templates/${templateID}`)).status).toBe(204);
  });

  it("may give the names that another has given, and each means its own", async () => {
    const { id } = (await other("POST", "/v1/sandboxes", { image: "host" })).body;
    const theirs = (await other("POST", `/v1/sandboxes/${id}/snapshots`, { name: NAMES.snapshot })).body.id as string;
    expect(theirs).not.toBe(mine.snapshot);
    expect((await other("GET", `/v1/snapshots/${NAMES.snapshot}`)).body.id).toBe(theirs);
    expect((await local("GET", `/v1/snapshots/${NAMES.snapshot}`)).body).toMatchObject({ id: mine.snapshot, name: NAMES.snapshot });
    expect((await other("DELETE", `/v1/snapshots/${NAMES.snapshot}`)).status).toBe(204);
    expect((await local("GET", `/v1/snapshots/${NAMES.snapshot}`)).body.id).toBe(mine.snapshot);
    expect((await other("POST", "/v3/templates", { name: NAMES.template })).body.templateID).not.toBe(mine.template);
    expect((await other("DELETE", `/v1/sandboxes/${id}`)).status).toBe(204);
  });

  it("reaches no terminal and no port of another's", async () => {
    for (const pattern of all.upgrades) {
      const path = pattern.source.replaceAll(/[\^$\\]/g, "").replaceAll(/\(\?<(\w+)>[^)]*\)/g, (_, name: string) => (name === "id" ? mine.native : NAMES.exec));
      const socket = new WebSocket(`ws://127.0.0.1:${server.port}${path}`, { headers: { "x-api-key": otherKey } });
      expect(((await once(socket, "error")) as [Error])[0].message, path).toContain("404");
    }
    await local("POST", `/v1/sandboxes/${mine.native}/execs`, { command: "python3 -m http.server 8000 --directory /etc" });
    for (const id of [mine.native, mine.e2b, mine.rolloutSandbox]) {
      for (const headers of [{ host: `8000-${id}.localhost` }, { "e2b-sandbox-id": id, "e2b-sandbox-port": "8000" }, { host: `8000-${id}.localhost`, "x-api-key": otherKey }, { host: `8000-${id}.localhost`, "e2b-traffic-access-token": "guess" }] as const) {
        expect((await ask("GET", "/hostname", undefined, headers)).status, JSON.stringify(headers)).toBe(403);
      }
      for (const path of ["/files?path=/etc/hostname", "/metrics", "/envs"]) expect((await ask("GET", path, undefined, { host: `49983-${id}.localhost`, "x-api-key": otherKey })).status).toBe(401);
    }
  });

  it("has tokens that open no other sandbox, not even a fork of the same one", async () => {
    const parent = (await other("POST", "/v2/sandboxes", { templateID: "host" })).body;
    const [child] = (await other("POST", `/sandboxes/${parent.sandboxID}/fork`, { count: 1 })).body;
    expect(child.sandbox.envdAccessToken).not.toBe(parent.envdAccessToken);
    const listing = (id: string, token: string): Promise<Answer> => ask("GET", "/files?path=/etc/hostname", undefined, { "e2b-sandbox-id": id, "x-access-token": token });
    expect((await listing(child.sandbox.sandboxID, child.sandbox.envdAccessToken)).status).toBe(200);
    expect((await listing(child.sandbox.sandboxID, parent.envdAccessToken)).status).toBe(401);
    expect((await listing(parent.sandboxID, child.sandbox.envdAccessToken)).status).toBe(401);
    for (const id of [parent.sandboxID, child.sandbox.sandboxID]) await other("DELETE", `/sandboxes/${id}`);
  });
});

describe("without a key", () => {
  it("no route answers but those that are open by decision", async () => {
    expect(all.routes.filter(({ open }) => open).map(nameOf).sort()).toEqual([...OPEN].sort());
    const elsewhere = { host: "manyworlds.example" };
    for (const route of all.routes) {
      if (route.open) continue;
      const [address = ""] = addressesOf(route);
      for (const headers of [elsewhere, { "x-api-key": "wrong" }, { authorization: "Bearer wrong" }, { authorization: "Basic d3Jvbmc6" }, { "x-api-key": "" }] as const) {
        expect((await ask(route.method, address, undefined, headers)).status, `${nameOf(route)} ${JSON.stringify(headers)}`).toBe(401);
      }
    }
    for (const path of ["/version", "/metrics"]) expect((await ask("GET", path, undefined, elsewhere)).status).toBe(401);
  });

  it("nothing else of the server listens on the network", () => {
    const ports = listeningPortsOf(server.process.pid ?? 0);
    expect(ports).toEqual([`127.0.0.1:${server.port}`]);
  });
});

/** What `local` has, as it sees it. */
async function state(): Promise<unknown> {
  const paths = [`/v1/sandboxes/${mine.native}`, `/sandboxes/${mine.e2b}`, `/v1/snapshots/${mine.snapshot}`, `/v1/snapshots/${NAMES.snapshot}`, "/templates", `/templates/${mine.template}/tags`, `/templates/${mine.template}/builds/${mine.build}/status`, `/v1/runs/${NAMES.run}/status`];
  const answers = await Promise.all(paths.map((path) => local("GET", path)));
  expect(answers.map(({ status }) => status), JSON.stringify(answers)).toEqual(paths.map(() => 200));
  return answers.map(({ body }) => JSON.parse(JSON.stringify(body).replaceAll(/"(?:updatedAt|createdAt|now|age_s|uptime_s)":("[^"]*"|[\d.]+)/g, '"t":0')) as unknown);
}

/** TCP sockets that a process and its descendants listen on, in the host's network namespace. */
function listeningPortsOf(root: number): readonly string[] {
  const children = new Map<number, number[]>();
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number)) {
    try {
      const parent = Number(/\) \S (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, "utf8"))?.[1]);
      children.set(parent, [...(children.get(parent) ?? []), pid]);
    } catch {
      // It has ended.
    }
  }
  const family = [root];
  for (let at = 0; at < family.length; at++) family.push(...(children.get(family[at] ?? 0) ?? []));
  // What has ended, or was closed meanwhile, listens on nothing.
  const orNothing = <T>(look: () => T, nothing: T): T => {
    try {
      return look();
    } catch {
      return nothing;
    }
  };
  const files = family.flatMap((pid) => orNothing(() => readdirSync(`/proc/${pid}/fd`), []).map((fd) => `/proc/${pid}/fd/${fd}`));
  const inodes = new Set(files.map((file) => /^socket:\[(\d+)\]$/.exec(orNothing(() => readlinkSync(file), ""))?.[1] ?? ""));
  return ["tcp", "tcp6"].flatMap((table) => readFileSync(`/proc/net/${table}`, "utf8").trim().split("\n").slice(1).map((line) => line.trim().split(/\s+/)).filter((fields) => fields[3] === "0A" && inodes.has(fields[9] ?? "")).map((fields) => addressOf(fields[1] ?? "")));
}

function addressOf(hex: string): string {
  const [address = "", port = ""] = hex.split(":");
  const bytes = address.match(/../g) ?? [];
  return `${bytes.length === 4 ? bytes.toReversed().map((byte) => Number.parseInt(byte, 16)).join(".") : address}:${Number.parseInt(port, 16)}`;
}
