import { spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../support/engine/tokenizer.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";
import { mortal } from "../support/mortal.ts";

const place = mkdtempSync(join(tmpdir(), "mw-outside-"));
const home = join(place, "home");
const KEY = "a-key-of-the-trainers-own-0123456789";
afterAll(() => rmSync(place, { recursive: true, force: true }));

const MAIN = join(import.meta.dirname, "../../dist/cli/main.js");

interface Head {
  readonly lease_id: string | null;
  readonly groups: readonly { readonly group_id: string; readonly dataset: string; readonly usable: number }[];
}

interface Status {
  readonly run: string;
  readonly state: string;
  readonly groups: Readonly<Record<"running" | "ready" | "leased", number>>;
  readonly datasets: Readonly<Record<string, { readonly consumed: number; readonly mean_reward: number | null }>>;
}

describe("mw train --trainer URL", () => {
  it("delivers a mix of parts to a trainer that comes for it, accounts for each, goes on after an interrupt, and ends with the run", async () => {
    mkdirSync(home);
    const easy = writeTask(join(place, "easy", "one"), { name: "test/easy" });
    const never = writeTask(join(place, "never", "one"), { name: "test/never", test: "echo 0 > /logs/verifier/reward.txt" });
    const engine = await startEngine([{ content: null, calls: [{ command: "mkdir -p /work; echo hello > /work/out" }] }, { content: "done" }], { flavour: "sglang" });
    engine.version = "1";
    const start = async (): Promise<{ readonly child: ChildProcess; readonly url: string; readonly over: Promise<{ readonly code: number | null; readonly stdout: string }> }> => {
      const child = mortal(spawn(process.execPath, [MAIN, "train", `easy=${join(easy, "..")}@3`, join(never, ".."), "--trainer", "http://127.0.0.1:0/v1/runs/mix", "--group-size", "2", "--max-staleness", "4", "--concurrency", "4", "--checkpoint", "every-turn", "--seed", "1", "--json"], {
        env: { ...process.env, MW_HOME: home, MW_API_KEY: KEY, MW_TOKENIZER: MODEL_DIRECTORY, MW_PRICE: "input=100,output=400" },
        stdio: ["ignore", "pipe", "pipe"],
      }));
      let [stdout, stderr] = ["", ""];
      child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
      const over = new Promise<{ readonly code: number | null; readonly stdout: string }>((resolve) => child.once("close", (code) => resolve({ code, stdout })));
      const url = await new Promise<string>((resolve, reject) => {
        child.stderr.on("data", (chunk: Buffer) => {
          stderr += chunk.toString();
          const found = /rollouts for a trainer at (\S+), run mix/.exec(stderr)?.[1];
          if (found !== undefined) resolve(found);
        });
        void over.then(({ code }) => reject(new Error(`ended with ${code}: ${stderr}`)));
      });
      return { child, url, over };
    };
    const ask = async <T>(url: string, method: string, path: string, body: unknown): Promise<T> => {
      const response = await fetch(`${url}/v1${path}`, { method, headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json", accept: "application/json" }, ...(body === null ? {} : { body: JSON.stringify(body) }) });
      expect(response.ok, `${path}: ${response.status}`).toBe(true);
      return (await response.json()) as T;
    };
    const consume = async (url: string, step: number): Promise<number> => {
      const { lease_id: lease, groups } = await ask<Head>(url, "POST", "/runs/mix/lease", { max_groups: 4, min_groups: 1, wait_ms: 30_000 });
      if (lease === null) return 0;
      expect(groups.every(({ usable, dataset }) => usable === 2 && ["easy", "never"].includes(dataset))).toBe(true);
      await ask(url, "POST", `/leases/${lease}/ack`, { consumed: groups.map(({ group_id }) => group_id), step });
      return groups.length;
    };

    const first = await start();
    await ask(first.url, "PUT", "/runs/mix/policy", { version: 1, model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" }] });
    let consumed = 0;
    for (let step = 1; consumed < 4; step++) consumed += await consume(first.url, step);
    first.child.kill("SIGINT");
    const interrupted = await first.over;
    expect(interrupted.code).toBe(130);
    expect(await leftoversAfter(home)).toEqual([]);

    const second = await start();
    // The policy is known, and so is what was consumed.
    const known = await ask<Status>(second.url, "GET", "/runs/mix/status", null);
    expect(Object.values(known.datasets).reduce((sum, part) => sum + part.consumed, 0)).toBe(consumed);
    for (let step = 10; consumed < 12; step++) consumed += await consume(second.url, step);
    const { groups } = await ask<Status>(second.url, "POST", "/runs/mix/finish", {});
    // No question after the last one is consumed: the server ends with the run.
    for (let left = groups.running + groups.ready + groups.leased; left > 0; ) left -= await consume(second.url, 20);
    const { code, stdout } = await second.over;
    expect(code).toBe(0);
    const status = JSON.parse(stdout) as Status;
    expect(status.state).toBe("finished");
    expect(status.datasets["easy"]?.mean_reward).toBe(1);
    // A part of a third of the weight is drawn less often, and never wins.
    expect(status.datasets["easy"]?.consumed).toBeGreaterThan(status.datasets["never"]?.consumed ?? 0);
    expect(status.datasets["never"]?.mean_reward ?? 0).toBe(0);
    const { cost, tokens } = JSON.parse((await mw(["show", status.run, "--json"], { env: { MW_HOME: home } })).stdout) as { readonly cost: Readonly<Record<string, number>>; readonly tokens: Readonly<Record<string, number>> };
    expect(cost["output"]).toBeGreaterThan(0);
    expect(cost["output"]).toBeCloseTo(((tokens["completionTokens"] ?? 0) * 400) / 1e6, 9);
    await engine.close();
    expect(await leftoversAfter(home)).toEqual([]);
  });

  it("says what it does not understand", async () => {
    for (const [args, words] of [
      [["--trainer", "ftp://x"], "http://"],
      [["--trainer", "nonsense"], "neither embedded nor an address"],
      [["--trainer", "http://127.0.0.1:1/elsewhere"], "names no run"],
      [["--trainer", "http://127.0.0.1:0", "--kl", "0.1"], "kl"],
      [["--trainer", "http://127.0.0.1:0", "--checkpoint", "30s", "--harness", "bash,codex"], "the harness codex cannot go on in the middle of its work"],
      [["--checkpoint", "every-turn"], "a single turn"],
    ] as const) {
      const { code, stderr } = await mw(["train", place, ...args], { env: { MW_HOME: home } });
      expect([code, stderr]).toEqual([2, expect.stringContaining(words)]);
    }
    const heavy = await mw(["train", "x=@0", "--trainer", "http://127.0.0.1:0"], { env: { MW_HOME: home } });
    expect(heavy.code).toBe(2);
  });
});
