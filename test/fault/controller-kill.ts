/** Kills the controller of a run at random moments and resumes it, again and again; then checks what must hold. */
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { seededRandom } from "../../src/core/runtime.ts";
import { Missed } from "../support/killed-run.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { mortal } from "../support/mortal.ts";

const MAIN = join(import.meta.dirname, "../../dist/cli/main.js");

export interface KillOptions {
  readonly home: string;
  readonly tasks: readonly string[];
  readonly attempts: number;
  readonly kills: number;
  readonly concurrency: number;
  readonly seed: string;
}

interface LoggedEvent {
  readonly epoch: number;
  readonly event: { readonly type: string; readonly rollout?: string };
}

export function killAndResume(options: KillOptions): Promise<void> {
  return untilHit(options, killControllers);
}

/** The controller goes on by itself: it starts another spawner, and tries again what the dead one took with it. */
export function killSpawners(options: KillOptions): Promise<void> {
  return untilHit(options, killSpawnersOf);
}

/** Once more, with a run twice as long in a data directory of its own, where the moment of a kill was missed. */
async function untilHit(options: KillOptions, kill: (options: KillOptions) => Promise<void>): Promise<void> {
  try {
    await kill(options);
  } catch (error) {
    if (!(error instanceof Missed) || options.attempts > 100) throw error;
    await untilHit({ ...options, home: `${options.home}-again`, attempts: options.attempts * 2 }, kill);
  }
}

async function killControllers(options: KillOptions): Promise<void> {
  const { home, tasks, attempts } = options;
  const random = seededRandom(options.seed);
  const args = runArguments(options);
  await prepare(home);
  let run: string | null = null;
  for (let kill = 0; kill < options.kills; kill++) {
    const child = start(home, run === null ? args : ["resume", run, "--json", "--quiet"]);
    await momentOf(kill, options, child, random);
    child.kill("SIGKILL");
    await ended(child);
    // Whoever kills early enough has killed a run that had not begun.
    run ??= runOf(home);
    expect(await leftoversAfter(home, machines)).toEqual([]);
  }
  await checkEnd(home, start(home, run === null ? args : ["resume", run, "--json", "--quiet"]), tasks.length * attempts);
}

async function killSpawnersOf(options: KillOptions): Promise<void> {
  const { home, tasks, attempts } = options;
  const random = seededRandom(options.seed);
  await prepare(home);
  const child = start(home, runArguments(options));
  const end = checkEnd(home, child, tasks.length * attempts, options.kills > 2);
  end.catch(() => undefined);
  for (let kill = 0; kill < options.kills; kill++) {
    await momentOf(kill, options, child, random);
    let victims = childrenOf(child);
    // A new spawner may be on its way.
    for (; victims.length === 0; victims = childrenOf(child)) await delay(10);
    for (const pid of victims) killOne(pid);
  }
  await end;
}

/**
 * Waits for the moment of one of the kills. They are spread over what the run records, not over time: so all of them hit it, however fast the machine is, and the first may come
 * before anything was recorded.
 */
async function momentOf(kill: number, { home, tasks, attempts, kills }: KillOptions, child: ChildProcess, random: () => number): Promise<void> {
  const wanted = Math.floor(((kill + random()) / (kills + 1)) * tasks.length * attempts);
  const live = (): boolean => child.exitCode === null && child.signalCode === null;
  // Where the moment has come already, the controller is killed while it starts.
  if (recordedIn(home) >= wanted) await delay(random() * 300);
  while (live() && recordedIn(home) < wanted) await delay(5);
  if (!live()) throw new (child.exitCode === 0 ? Missed : Error)(`the run ended with ${child.exitCode ?? child.signalCode} before kill ${kill + 1} of ${kills}, after ${recordedIn(home)} rollouts`);
}

function recordedIn(home: string): number {
  const run = runOf(home);
  const log = run === null ? "" : join(home, "runs", run, "events.jsonl");
  return existsSync(log) ? readFileSync(log, "utf8").split('"type":"rollout_recorded"').length - 1 : 0;
}

function runOf(home: string): string | null {
  return existsSync(join(home, "runs")) ? (readdirSync(join(home, "runs")).find((name) => name.startsWith("run")) ?? null) : null;
}

function runArguments({ tasks, attempts, concurrency }: KillOptions): readonly string[] {
  return ["run", ...tasks, "--harness", "oracle", "-n", String(attempts), "--concurrency", String(concurrency), "--seed", "1", "--json", "--quiet"];
}

/** The image takes longer to prepare than a rollout to run; the kills are meant for the run. */
async function prepare(home: string): Promise<void> {
  if (!existsSync(MAIN)) throw new Error(`${MAIN} is missing: run npm run build first`);
  expect(await ended(start(home, ["image", "pull", "host"]))).toBe(0);
}

async function checkEnd(home: string, child: ChildProcess, rollouts: number, mayGiveUp = false): Promise<void> {
  let stdout = "";
  child.stdout?.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  expect(await ended(child)).toBe(0);
  const document = JSON.parse(stdout) as { readonly run: string; readonly rollouts: readonly { readonly outcome: string; readonly reward: number; readonly error: unknown }[] };
  expect(document.rollouts.length).toBe(rollouts);
  for (const { outcome, reward, error } of document.rollouts) {
    // A machine that is lost more often than the rules try again has no reward. It never has a reward of 0.
    if (mayGiveUp && outcome === "sandbox_error") expect(reward).toBeNull();
    else expect({ outcome, reward, error }).toEqual({ outcome: "scored", reward: 1, error: null });
  }
  checkLog(join(home, "runs", document.run, "events.jsonl"), rollouts);
  expect(await leftoversAfter(home)).toEqual([]);
}

/** A helper beside the spawner may have ended by itself. */
function killOne(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

function childrenOf({ pid = 0, exitCode }: ChildProcess): readonly number[] {
  if (exitCode === 0) throw new Missed("the run ended before its spawner was killed");
  // Nobody's, of one whose end is not known here yet.
  if (!existsSync(`/proc/${pid}/task/${pid}`)) return [];
  return readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ").filter((text) => text !== "").map(Number);
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
  return mortal(spawn(process.execPath, [MAIN, ...args], { env: { ...process.env, MW_HOME: home }, stdio: ["ignore", "pipe", "inherit"] }));
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
