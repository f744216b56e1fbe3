/** Processes of delivery killed with SIGKILL, again and again, while a trainer goes on. */
import { spawn, type ChildProcess } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { seededRandom } from "../../src/core/runtime.ts";
import { steadyPort } from "../support/steady-port.ts";

let directory = "";
let server: Server;
const children = new Set<ChildProcess>();
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "mw-delivery-kill-"));
  server = await startServer(await steadyPort());
});
afterEach(async () => {
  for (const child of children) await kill(child);
  rmSync(directory, { recursive: true, force: true });
});

interface Server {
  readonly process: ChildProcess;
  readonly port: number;
}

async function startServer(port: number): Promise<Server> {
  const child = start("server-main.ts", [join(directory, "runs"), String(port)]);
  if (child.stdout === null) throw new Error("its output is piped");
  const [line] = (await once(createInterface({ input: child.stdout }), "line")) as [string];
  return { process: child, port: Number(new URL((JSON.parse(line) as { url: string }).url).port) };
}

function start(script: string, args: readonly string[]): ChildProcess {
  const child = spawn(process.execPath, ["--import", "tsx", resolve(import.meta.dirname, "../support/delivery", script), ...args], { stdio: ["ignore", "pipe", "inherit"] });
  children.add(child);
  return child;
}

async function kill(child: ChildProcess): Promise<void> {
  children.delete(child);
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, "exit");
  child.kill("SIGKILL");
  await gone;
}

interface Answer {
  readonly lease_id: string | null;
  readonly run_state: string;
  readonly state: string;
  readonly groups: { readonly group_id: string }[];
  readonly records: { readonly seq: number; readonly group_id: string; readonly outcome: string }[];
}

async function ask(method: string, path: string, body?: unknown): Promise<Answer> {
  const response = await fetch(`http://127.0.0.1:${server.port}${path}`, { method, headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }) }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  const text = await response.text();
  // What was not held any more is delivered again.
  if (!response.ok && response.status !== 404) throw Object.assign(new Error(`${path}: ${text}`), { answered: true });
  return JSON.parse(text) as Answer;
}

/** Asks until it is answered, whoever is killed meanwhile. */
async function insist(method: string, path: string, body?: unknown): Promise<Answer> {
  for (;;) {
    try {
      return await ask(method, path, body);
    } catch (error) {
      if (error instanceof Error && "answered" in error) throw error;
      await restarted;
    }
  }
}

let restarted: Promise<void> = Promise.resolve();

async function replaceServer(): Promise<void> {
  await kill(server.process);
  server = await startServer(server.port);
}

async function terminalLog(): Promise<Answer["records"]> {
  const { records } = await insist("GET", "/v1/runs/r/terminal?limit=1000");
  return records;
}

const POLICY = { version: 1, model: "m", endpoints: [{ url: "http://127.0.0.1:1" }] };
const names = (count: number): string[] => Array.from({ length: count }, (_, at) => `g${at}`);

describe("a delivery service that is killed", () => {
  it("loses no group, gives none out with two contents, and counts none twice", async () => {
    const random = seededRandom("kills");
    await insist("PUT", "/v1/runs/r", { group_size: 3, concurrency: 24, admission: "at_lease", max_staleness: 4 });
    await insist("PUT", "/v1/runs/r/policy", POLICY);
    const all = names(60);
    const contents = new Map<string, string>();
    const trained = new Set<string>();
    let kills = 0;
    /** Now and then the process is gone while it works at the request. */
    const daring = async (method: string, path: string, body: unknown): Promise<Answer> => {
      if (kills < 8 && random() < 0.35) {
        kills++;
        const lost = ask(method, path, body).catch(() => null);
        // Some are killed at once, some after whatever a few turns of the event loop bring.
        for (let turn = Math.floor(random() * 40); turn > 0; turn--) await new Promise((wake) => setImmediate(wake));
        restarted = replaceServer();
        await restarted;
        await lost;
      }
      return insist(method, path, body);
    };
    for (let at = 0; at < all.length; at += 6) await daring("POST", "/v1/runs/r/groups", { groups: all.slice(at, at + 6).map((group_id) => ({ group_id, task: `/t/${group_id}` })) });
    for (;;) {
      const lease = await daring("POST", "/v1/runs/r/lease", { max_groups: 5, wait_ms: 2_000 });
      if (lease.lease_id === null) {
        const over = new Set((await terminalLog()).map(({ group_id }) => group_id));
        if (over.size === all.length) break;
        continue;
      }
      for (const group of lease.groups) {
        const content = createHash("sha256").update(JSON.stringify(group)).digest("hex");
        expect(contents.get(group.group_id) ?? content).toBe(content);
        contents.set(group.group_id, content);
      }
      await daring("POST", `/v1/leases/${lease.lease_id}/ack`, { consumed: lease.groups.map(({ group_id }) => group_id) });
      for (const { group_id: name } of lease.groups) trained.add(name);
    }
    expect(kills).toBe(8);
    const log = await terminalLog();
    expect(log.map(({ group_id }) => group_id).sort()).toEqual([...all].sort());
    expect(log.map(({ seq }) => seq)).toEqual(log.map((_, index) => index + 1));
    const consumed = log.filter(({ outcome }) => outcome === "consumed").map(({ group_id }) => group_id);
    expect([...trained].sort()).toEqual([...consumed].sort());
  });
});

describe("a trainer that is killed", () => {
  it("finds again what it had not acknowledged, and trains on nothing twice", async () => {
    const random = seededRandom("trainers");
    const notes = join(directory, "trained.txt");
    await insist("PUT", "/v1/runs/r", { group_size: 2, concurrency: 8, admission: "at_lease", max_staleness: 4, lease_s: 0.5 });
    await insist("PUT", "/v1/runs/r/policy", POLICY);
    const all = names(40);
    await insist("POST", "/v1/runs/r/groups", { groups: all.map((group_id) => ({ group_id, task: `/t/${group_id}` })) });
    const done = (): number => (existsSync(notes) ? readFileSync(notes, "utf8").trim().split("\n").length : 0);
    for (let round = 0; round < 6; round++) {
      const trainer = start("consumer-main.ts", [`http://127.0.0.1:${server.port}`, "r", notes]);
      const before = done();
      // It is killed in the middle of its work: between the note and the acknowledgement, as likely as not.
      while (done() < Math.min(before + 1 + Math.floor(random() * 4), all.length - 2)) await new Promise((wake) => setImmediate(wake));
      await kill(trainer);
    }
    const last = start("consumer-main.ts", [`http://127.0.0.1:${server.port}`, "r", notes]);
    const ended = once(last, "exit");
    while (new Set((await terminalLog()).map(({ group_id }) => group_id)).size < all.length) await new Promise((wake) => setTimeout(wake, 50));
    expect((await insist("POST", "/v1/runs/r/finish")).state).toBe("finished");
    await ended;
    const log = await terminalLog();
    const consumed = log.filter(({ outcome }) => outcome === "consumed").map(({ group_id }) => group_id);
    expect(log.length).toBe(all.length);
    const trained = readFileSync(notes, "utf8").trim().split("\n");
    expect(trained.sort()).toEqual(consumed.sort());
  });
});
