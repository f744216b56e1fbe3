/** A run of the real CLI as a process of its own, which a test kills at a moment that it reads off the run's files. */
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { mortal } from "./mortal.ts";

const MAIN = join(import.meta.dirname, "../../dist/cli/main.js");

export interface CliProcess {
  readonly child: ChildProcess;
  /** Resolves when it is over. */
  readonly ended: Promise<{ readonly code: number | null; readonly stdout: string; readonly stderr: string }>;
}

export function startCli(home: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): CliProcess {
  if (!existsSync(MAIN)) throw new Error(`${MAIN} is missing: run npm run build first`);
  const child = mortal(spawn(process.execPath, [MAIN, ...args], { env: { ...process.env, MW_HOME: home, ...env }, stdio: ["ignore", "pipe", "pipe"] }));
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (stderr += chunk.toString()));
  return { child, ended: new Promise((resolve) => child.once("close", (code) => resolve({ code, stdout, stderr }))) };
}

/** The run of a data directory that begins after this is made. */
export class RunFiles {
  readonly #home: string;
  readonly #before: ReadonlySet<string>;

  constructor(home: string) {
    this.#home = home;
    this.#before = new Set(names(join(home, "runs")));
  }

  get run(): string {
    const run = names(join(this.#home, "runs")).find((name) => name.startsWith("run") && !this.#before.has(name));
    if (run === undefined) throw new Error("it has not begun");
    return run;
  }

  get directory(): string {
    return join(this.#home, "runs", this.run);
  }

  /** Events of the log, whole ones. */
  get events(): readonly Readonly<Record<string, unknown>>[] {
    return lines(join(this.directory, "events.jsonl")).map((line) => (JSON.parse(line) as { event: Readonly<Record<string, unknown>> }).event);
  }

  /** Directories of the rollouts. */
  get rollouts(): readonly string[] {
    return names(join(this.directory, "rollouts")).map((name) => join(this.directory, "rollouts", name));
  }

  /** Of the only rollout. */
  file(name: string): readonly string[] {
    return lines(join(this.rollouts[0] ?? "", name));
  }

  get snapshots(): readonly string[] {
    return names(join(this.#home, "snapshots", "records"));
  }

  /** What a snapshot that is being made has on disk. */
  get work(): readonly string[] {
    return names(join(this.#home, "snapshots", "work"));
  }
}

/** A run went through before it could be killed: whoever kills was kept from it for longer than the rest of the run took. */
export class Missed extends Error {}

/** Kills the process with SIGKILL at the moment that `when` is true for the first time. */
export async function killWhen({ child, ended }: CliProcess, what: string, when: () => boolean): Promise<void> {
  for (const end = Date.now() + 120_000; ; ) {
    if (child.exitCode !== null || child.signalCode !== null) throw new (child.exitCode === 0 ? Missed : Error)(`the run ended before ${what}: ${(await ended).stderr}`);
    if (attempt(when)) break;
    if (Date.now() > end) throw new Error(`never came: ${what}`);
    // As often as it can: some of the moments last for milliseconds only.
    await new Promise(setImmediate);
  }
  child.kill("SIGKILL");
  await ended;
}

function attempt(when: () => boolean): boolean {
  try {
    return when();
  } catch {
    // What is looked at is not there yet.
    return false;
  }
}

function names(directory: string): readonly string[] {
  return existsSync(directory) ? readdirSync(directory) : [];
}

function lines(path: string): readonly string[] {
  return existsSync(path) ? readFileSync(path, "utf8").split("\n").slice(0, -1) : [];
}
