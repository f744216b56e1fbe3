/**
 * One verification in one machine: services started, tests in, test.sh run with the image's own interpreter and a clean environment, everything killed, reward
 * files read. Says what happened; judging whose fault it was is the caller's.
 */
import { posix } from "node:path";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import { diedOfMemory } from "../../sandbox/died.ts";
import type { ExecExit, FileStat, Sandbox, SandboxFiles } from "../../sandbox/sandbox.ts";
import type { TaskService } from "../task.ts";
import type { ImageUser } from "./image-users.ts";
import { readRewards, type RewardFile, type RewardReading } from "./reward.ts";
import { startServices } from "./services.ts";
import { uploadTests, type TestFiles } from "./test-files.ts";

const LOGS = "/logs/verifier";

export interface TestRun {
  /** Null when the image brings its own /tests. */
  readonly tests: TestFiles | null;
  /** argv in front of /tests/test.sh. */
  readonly runner: readonly string[];
  readonly user: ImageUser;
  readonly workdir: string;
  readonly env: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly services: readonly TaskService[];
  /** Kills what still runs before the rewards are read; false while declared survivors are at work. */
  readonly killAfter: boolean;
  readonly runtime: Runtime;
  readonly signal: AbortSignal;
}

export interface TestOutcome {
  readonly reading: RewardReading;
  readonly exit: ExecExit;
  /** What test.sh printed, both streams in order, bounded. */
  readonly output: Buffer;
  readonly writtenAt: string;
  readonly notes: readonly string[];
}

/** Rejects only when the machine fails. */
export async function runTests(sandbox: Sandbox, run: TestRun): Promise<TestOutcome> {
  // Services are the agent's programs: they start in a machine that has no tests yet, and those that are not root find the tests closed.
  const services = await startServices(sandbox, run.services, run);
  const notes = [...services.notes];
  await prepareLogs(sandbox, run.user);
  if (run.tests !== null) notes.push(...(await uploadTests(sandbox, run.tests, run.services.length > 0 ? run.user : null, run.signal)));
  const { exit, output } = await runScript(sandbox, run);
  if (exit.ended === "lost" && (await diedOfMemory(sandbox, run.runtime))) {
    const error = { kind: "crashed", message: "the machine ended while the tests ran: they and what they started used up its memory" } as const;
    return { reading: { kind: "error", error }, exit, output, writtenAt: new Date(run.runtime.now()).toISOString(), notes };
  }
  if (exit.ended === "lost") throw new MwError("sandbox_failed", `The verifier's machine ${sandbox.id} ended while the tests ran`, { facts: { sandbox: sandbox.id } });
  // From here on nobody can write: what is read is what the tests left.
  if (run.killAfter) await sandbox.killProcesses();
  await services.stop();
  const writtenAt = new Date(run.runtime.now()).toISOString();
  if (exit.truncated) notes.push(`the output of test.sh was cut: ${exit.stdoutBytes + exit.stderrBytes} bytes were written`);
  const expected = run.tests?.mentions ?? { json: true, text: true };
  const reading = exit.ended === "exited" ? await readFiles(sandbox, exit, expected) : timedOut(run, exit);
  if (exit.cause !== null) notes.push(`a limit was hit while the tests ran: ${exit.cause}`);
  return { reading, exit, output, writtenAt, notes };
}

/** An empty directory in place of whatever was there, also behind a link. */
async function prepareLogs({ files }: Sandbox, user: ImageUser): Promise<void> {
  const parent = await files.stat("/logs");
  if (parent !== null && parent.type !== "directory") await files.remove("/logs");
  await files.mkdir("/logs", { mode: 0o755, owner: "0:0" });
  await files.remove(LOGS);
  await files.mkdir(LOGS, { mode: 0o755, owner: user.exec });
}

async function runScript(sandbox: Sandbox, run: TestRun): Promise<{ exit: ExecExit; output: Buffer }> {
  const exec = await sandbox.exec({
    command: [...run.runner, "/tests/test.sh"],
    cwd: run.workdir,
    env: run.env,
    user: run.user.exec,
    timeoutMs: run.timeoutMs,
    maxOutputBytes: LIMITS.verifierOutputBytes,
    signal: run.signal,
  });
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const { data } of exec.output) {
    const room = LIMITS.verifierOutputBytes - length;
    if (room <= 0) continue;
    chunks.push(data.subarray(0, room));
    length += Math.min(room, data.length);
  }
  const exit = await exec.exit;
  run.signal.throwIfAborted();
  await exec.acknowledge().catch(() => undefined);
  return { exit, output: Buffer.concat(chunks) };
}

async function readFiles(sandbox: Sandbox, exit: ExecExit, expected: { readonly json: boolean; readonly text: boolean }): Promise<RewardReading> {
  const { files } = sandbox;
  const directory = await files.stat(LOGS);
  if (directory?.type !== "directory") return { kind: "error", error: { kind: "tampered", message: `${LOGS} is ${directory === null ? "gone" : `a ${directory.type}`}` } };
  const entries = new Map((await files.list(LOGS)).map((entry) => [posix.basename(Buffer.from(entry.path).toString("utf8")), entry]));
  const reading = readRewards(await readFile(files, "reward.json", entries), await readFile(files, "reward.txt", entries), expected);
  if (reading.kind === "rewards" || reading.error.kind !== "missing" || (exit.code === 0 && exit.cause === null)) return reading;
  const how = exit.signal !== null ? `was ended by ${exit.signal}` : `exited with ${exit.code}`;
  return { kind: "error", error: { kind: "crashed", message: `test.sh ${how}${exit.cause === null ? "" : ` (${exit.cause})`} and wrote no reward file` } };
}

async function readFile(files: SandboxFiles, name: string, entries: ReadonlyMap<string, FileStat>): Promise<RewardFile> {
  const info = entries.get(name);
  if (info === undefined) return null;
  if (info.type !== "file") return { fault: `is a ${info.type}, not a regular file` };
  if (info.size > LIMITS.rewardFileBytes) return { fault: `has ${info.size} bytes, more than ${LIMITS.rewardFileBytes}` };
  return { bytes: await files.read(posix.join(LOGS, name), { maxBytes: LIMITS.rewardFileBytes }) };
}

function timedOut(run: TestRun, exit: ExecExit): RewardReading {
  return { kind: "error", error: { kind: "timeout", message: `test.sh did not end within ${run.timeoutMs / 1000} seconds (${exit.ended}); what it had written by then does not count` } };
}
