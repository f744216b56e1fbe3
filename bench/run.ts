/**
 * The run bench: rollouts per second of the real CLI with a harness that does nothing on a trivial task, verification in a second machine included, log durable.
 * Timed from the run's own log, so that starting Node does not count.
 */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { round } from "./statistics.ts";
import { busyboxRoot } from "./setup.ts";

const ATTEMPTS = process.argv.includes("--quick") ? 40 : 400;
const TARGET_PER_SECOND = 20;

export function runBench(json: boolean): boolean {
  const work = mkdtempSync(join(tmpdir(), "mw-bench-run-"));
  try {
    busyboxRoot(join(work, "root"));
    const task = join(work, "trivial");
    writeTask(task, join(work, "root"));
    const output = execFileSync(
      process.execPath,
      [resolve("dist/cli/main.js"), "run", task, "--harness", "nop", "-n", String(ATTEMPTS), "--concurrency", "8", "--seed", "1", "--json"],
      { encoding: "utf8", env: { ...process.env, MW_HOME: join(work, "home") }, stdio: ["ignore", "pipe", "inherit"], maxBuffer: 64 << 20 },
    );
    const result = JSON.parse(output) as { run: string; outcomes: Record<string, number> };
    const events = readFileSync(join(work, "home/runs", result.run, "events.jsonl"), "utf8").trim().split("\n");
    const at = (line: string | undefined): number => Date.parse(/"at":"([^"]+)"/.exec(line ?? "")?.[1] ?? "");
    const seconds = (at(events.at(-1)) - at(events[0])) / 1000;
    const perSecond = round(ATTEMPTS / seconds);
    const scored = result.outcomes["scored"] ?? 0;
    const holds = perSecond >= TARGET_PER_SECOND && scored === ATTEMPTS;
    if (json) console.log(JSON.stringify({ rollouts: ATTEMPTS, scored, seconds: round(seconds), perSecond, target: `>= ${TARGET_PER_SECOND}/s`, holds }));
    else console.log(`${holds ? "holds " : "MISSED"}  ${perSecond} rollouts/s (${ATTEMPTS} in ${round(seconds)} s, ${scored} scored; target >= ${TARGET_PER_SECOND}/s)`);
    return holds;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

function writeTask(directory: string, root: string): void {
  for (const name of ["environment", "tests"]) mkdirSync(join(directory, name), { recursive: true });
  writeFileSync(
    join(directory, "task.toml"),
    `schema_version = "1.4"\n[task]\nname = "bench/trivial"\n[environment]\ndocker_image = "dir:${root}"\nnetwork_mode = "no-network"\n[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = 60\n`,
  );
  writeFileSync(join(directory, "instruction.md"), "Do nothing.\n");
  writeFileSync(join(directory, "tests/test.sh"), "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n");
}
