/** The gateway in a process of its own, killed while it serves: what any client has seen the end of is in the log. */
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { request as httpRequest } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine, type Engine } from "../support/engine/index.ts";
import { readAll, until } from "../support/gateway.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";
import { mortal } from "../support/mortal.ts";

const MAIN = join(import.meta.dirname, "../../src/cli/main.ts");
const place = mkdtempSync(join(tmpdir(), "mw-gateway-kill-"));
let engine: Engine;
beforeAll(async () => {
  engine = await startEngine(({ body }) => ({ content: `answer to ${String(body["user"])} ${"word ".repeat(20)}` }), { forgetful: true });
});
afterAll(async () => {
  await engine.close();
  rmSync(place, { recursive: true, force: true });
});

interface Gateway {
  readonly child: ChildProcess;
  readonly url: string;
  readonly sessions: readonly { readonly session: string; readonly token: string }[];
}

async function start(directory: string, sessions: readonly string[]): Promise<Gateway> {
  const args = ["gateway", "--upstream", `vllm=${engine.url}`, "--port", "0", "--dir", directory, "--json", "--quiet", ...sessions.flatMap((name) => ["--session", name])];
  const child = mortal(spawn(process.execPath, ["--import", import.meta.resolve("tsx"), MAIN, ...args], { env: { ...process.env, MW_HOME: join(place, "home") }, stdio: ["ignore", "pipe", "inherit"] }));
  let stdout = "";
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  await until(() => stdout.includes("\n}\n") || child.exitCode !== null);
  const { url, sessions: opened } = JSON.parse(stdout) as { url: string; sessions: { session: string; token: string }[] };
  return { child, url, sessions: opened };
}

/** Whether the whole answer arrived. */
function ask(url: string, token: string, user: string, stream: boolean): Promise<boolean> {
  return new Promise((resolve) => {
    const request = httpRequest(`${url}/v1/chat/completions`, { method: "POST", headers: { authorization: `Bearer ${token}`, "content-type": "application/json" } }, (response) => {
      let text = "";
      response.on("data", (chunk: Buffer) => {
        text += chunk.toString();
        // The terminal event is the answer's end, whatever becomes of the connection.
        if (stream && text.includes('"finish_reason":"stop"')) resolve(true);
      });
      response.on("end", () => resolve(response.statusCode === 200 && (!stream || text.includes('"finish_reason":"stop"'))));
      response.on("error", () => resolve(false));
      response.on("close", () => resolve(false));
    });
    request.on("error", () => resolve(false));
    request.end(JSON.stringify({ model: "m", user, stream, messages: [{ role: "user", content: `Question ${user}` }] }));
  });
}

describe("kill -9 of the gateway", () => {
  it("loses no call whose end a client has seen, at any moment", async () => {
    for (let round = 0; round < 5; round++) {
      const directory = join(place, `round-${round}`);
      const { child, url, sessions } = await start(directory, ["a", "b", "c"]);
      const seen = new Map(sessions.map(({ session }) => [session, new Set<string>()]));
      const load = { over: false, answered: 0 };
      const clients = sessions.flatMap(({ session, token }) =>
        [0, 1, 2, 3].map(async (client) => {
          for (let n = 0; !load.over; n++) {
            const user = `${client}-${n}`;
            if (!(await ask(url, token, user, n % 2 === 0))) continue;
            load.answered++;
            seen.get(session)?.add(user);
          }
        }),
      );
      const wanted = 10 + round * 7;
      await until(() => load.answered >= wanted);
      child.kill("SIGKILL");
      load.over = true;
      await Promise.all(clients);
      for (const { session } of sessions) {
        const recorded = (await readAll(join(directory, session, "calls.jsonl"))).filter(({ status, tokens }) => status === "complete" && tokens !== null).map(({ request }) => (request as { user: string }).user);
        expect([...(seen.get(session) ?? [])].filter((user) => !recorded.includes(user))).toEqual([]);
        expect(new Set(recorded).size).toBe(recorded.length);
      }
    }
  }, 300_000);
});

describe("kill -9 of a run in the middle of its model calls", () => {
  it("costs the calls in flight; the run goes on, with whole logs and nothing left", async () => {
    const home = join(place, "run-home");
    const task = writeTask(join(place, "task"));
    let slow = true;
    const model = await startEngine(({ turn, body }) => {
      if (!("tools" in body)) return { content: "x" };
      return turn === 0 ? { calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] } : { content: "done and well", ...(slow ? { breakOff: "never" as const } : {}) };
    });
    try {
      const args = ["run", task, "-n", "4", "--concurrency", "4", "--harness", "bash", "--upstream", `vllm=${model.url}`, "--model", "m", "--quiet"];
      const child = mortal(spawn(process.execPath, ["--import", import.meta.resolve("tsx"), MAIN, ...args], { env: { ...process.env, MW_HOME: home }, stdio: "ignore" }));
      await until(() => model.requests.filter(({ turn }) => turn === 1).length === 4 || child.exitCode !== null);
      child.kill("SIGKILL");
      await until(() => child.signalCode !== null);
      slow = false;
      const [run = ""] = readdirSync(join(home, "runs"));
      // The spawner of the dead controller ends by itself.
      await until(async () => (await mw(["resume", run, "--quiet"], { env: { MW_HOME: home } })).code === 0);
      const { rollouts } = JSON.parse((await mw(["show", run, "--json"], { env: { MW_HOME: home } })).stdout) as { rollouts: { rollout: string; reward: number; tries: number }[] };
      expect(rollouts.map(({ reward }) => reward)).toEqual([1, 1, 1, 1]);
      for (const { rollout } of rollouts) {
        const directory = join(home, "runs", run, "rollouts", rollout);
        expect((await readAll(join(directory, "calls.jsonl"))).map(({ status }) => status)).toEqual(["complete", "complete"]);
        expect((await readAll(join(directory, "tries/1/calls.jsonl"))).map(({ status }) => status)).toEqual(["complete"]);
      }
    } finally {
      await model.close();
    }
    expect(await leftoversAfter(home)).toEqual([]);
  }, 300_000);
});

describe.runIf(process.getuid?.() === 0)("a disk that is full", () => {
  it("gives clients errors instead of ends, and the log stays whole", async () => {
    const disk = join(place, "disk");
    mkdirSync(disk);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=64k", "mw-test", disk]);
    try {
      const { child, url, sessions } = await start(join(disk, "traces"), ["a"]);
      const [{ session, token } = { session: "", token: "" }] = sessions;
      const ends: boolean[] = [];
      // Failures may come and go, as smaller calls still fit.
      for (let n = 0; n < 400 && ends.filter((end) => !end).length < 5; n++) ends.push(await ask(url, token, `${n} ${"x".repeat(500)}`, n % 2 === 0));
      const recorded = await readAll(join(disk, "traces", session, "calls.jsonl"));
      expect(ends.filter((end) => !end).length).toBe(5);
      expect(recorded.filter(({ status }) => status === "complete").length).toBe(ends.filter((end) => end).length);
      expect(child.exitCode).toBeNull();
      child.kill("SIGTERM");
      await until(() => child.exitCode !== null);
      expect(child.exitCode).toBe(0);
      expect(readdirSync(disk)).toEqual(["traces"]);
    } finally {
      execFileSync("umount", ["-l", disk]);
    }
  }, 120_000);
});
