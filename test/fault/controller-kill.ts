/** Kills the controller of a run at random moments and resumes it, again and again; then checks what must hold. */
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { seededRandom } from "../../src/core/runtime.ts";
import { leftoversAfter } from "../support/leftovers.ts";

const MAIN = join(import.meta.dirname, "../../dist/cli/main.js");

export interface KillOptions {
  readonly home: string;
  readonly tasks: readonly string[];
  readonly attempts: number;
  readonly kills: number;
  readonly concurrency: number;
  readonly seed: string;
  /** Longest time between a start and its kill. */
  readonly withinMs: number;
}

interface LoggedEvent {
  readonly epoch: number;
  readonly event: { readonly type: string; readonly rollout?: string };
}

export async function killAndResume(options: KillOptions): Promise<void> {
  if (!existsSync(MAIN)) throw new Error(`${MAIN} is missing: run npm run build first`);
  const { home, tasks, attempts, concurrency } = options;
  const random = seededRandom(options.seed);
  const args = ["run", ...tasks, "--harness", "oracle", "-n", String(attempts), "--concurrency", String(concurrency), "--seed", "1", "--json", "--quiet"];
  let run: string | null = null;
  for (let kill = 0; kill < options.kills; kill++) {
    const child = start(home, run === null ? args : ["resume", run, "--json", "--quiet"]);
    await delay(50 + random() * options.withinMs);
    child.kill("SIGKILL");
    await ended(child);
    // Whoever kills early enough has killed a run that had not begun.
    run ??= readdirSync(join(home, "runs"), { withFileTypes: true }).find((entry) => entry.name.startsWith("run"))?.name ?? null;
    expect(await leftoversAfter(home, 10_000)).toEqual([]);
  }
  const child = start(home, run === null ? args : ["resume", run, "--json", "--quiet"]);
  let stdout = "";
  child.stdout?.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  expect(await ended(child)).toBe(0);
  const document = JSON.parse(stdout) as { readonly run: string; readonly rollouts: readonly { readonly outcome: string; readonly reward: number }[] };
  expect(document.rollouts.length).toBe(tasks.length * attempts);
  for (const { outcome, reward } of document.rollouts) expect({ outcome, reward }).toEqual({ outcome: "scored", reward: 1 });
  checkLog(join(home, "runs", document.run, "events.jsonl"), tasks.length * attempts);
  expect(await leftoversAfter(home, 10_000)).toEqual([]);
}

/** One terminal record each, and nothing of a rollout after it. */
function checkLog(path: string, rollouts: number): void {
  const lines = readFileSync(path, "utf8").trim().split("\n").map((line) => JSON.parse(line) as LoggedEvent);
  const recorded = new Set<string>();
  for (const { event } of lines) {
    if (event.rollout === undefined) continue;
    expect(recorded.has(event.rollout), `${event.type} after the record of ${event.rollout}`).toBe(false);
    if (event.type === "rollout_recorded") recorded.add(event.rollout);
  }
  expect(recorded.size).toBe(rollouts);
}

function start(home: string, args: readonly string[]): ChildProcess {
  return spawn(process.execPath, [MAIN, ...args], { env: { ...process.env, MW_HOME: home }, stdio: ["ignore", "pipe", "inherit"] });
}

function ended(child: ChildProcess): Promise<number | null> {
  return new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) resolve(child.exitCode);
    else child.once("exit", (code) => resolve(code));
  });
}

function delay(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
