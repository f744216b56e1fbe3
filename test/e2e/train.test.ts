/** `mw train` as a user runs it: a small budget, killed in the middle, interrupted, gone on with. What it learns is the demonstration's to show. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, it } from "vitest";
import { z } from "zod";
import { TaskDraw } from "../../src/trainer/draw.ts";
import { mw } from "../support/cli.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { mortal } from "../support/mortal.ts";

const TASKS = resolve("worlds/errands/train");
const MW = resolve("dist/cli/main.js");
const place = mkdtempSync(join(tmpdir(), "mw-train-"));
const home = join(place, "home");
const directory = join(place, "training");
const env = { ...process.env, MW_HOME: home };
beforeAll(() => {
  mkdirSync(home);
  // The host's own programs are enough for these tasks, and need no bootstrapping.
  writeFileSync(join(place, "manyworlds.toml"), '[image.aliases]\n"manyworlds/terminal" = "host"\n');
});
afterAll(async () => {
  expect(await leftoversAfter(home, machines)).toEqual([]);
  rmSync(place, { recursive: true, force: true });
});

const SIZE = ["--steps", "5", "--group-size", "2", "--batch", "2", "--concurrency", "4", "--seed", "7", "--ignore-limits"];
const terminalSchema = z.looseObject({ type: z.literal("terminal"), id: z.string(), outcome: z.string() });
const acceptedSchema = z.looseObject({ type: z.literal("accepted"), spec: z.looseObject({ group_id: z.string(), task: z.string() }) });
const shownSchema = z.looseObject({ cost: z.looseObject({ total: z.number() }), tokens: z.looseObject({ promptTokens: z.number(), completionTokens: z.number() }) });
const documentSchema = z.looseObject({ run: z.string(), ended: z.string(), steps: z.number(), rollouts: z.number(), stalenessMax: z.number(), meanFirst: z.number(), meanLast: z.number() });

function start(args: readonly string[]): ChildProcess {
  return mortal(spawn(process.execPath, [MW, "train", ...args], { cwd: place, env, stdio: ["ignore", "pipe", "pipe"] }));
}

async function stepped(child: ChildProcess, step: number): Promise<void> {
  while (!existsSync(join(directory, `step-${String(step).padStart(6, "0")}`))) {
    if (child.exitCode !== null) throw new Error(`it ended with ${child.exitCode} before step ${step}`);
    await sleep(20);
  }
}

function events(): readonly unknown[] {
  return readFileSync(join(directory, "delivery/events.jsonl"), "utf8").trim().split("\n").map((line) => (JSON.parse(line) as { readonly event: unknown }).event);
}

it("goes on after a kill and after an interrupt: the draw is the seed's, and every group is trained on once", async () => {
  const killed = start([TASKS, "--dir", directory, ...SIZE, "--price", "input=100,output=400"]);
  const gone = once(killed, "exit");
  await stepped(killed, 2);
  killed.kill("SIGKILL");
  await gone;
  const interrupted = start(["--resume", "--dir", directory]);
  const ended = once(interrupted, "exit");
  await stepped(interrupted, 3);
  interrupted.kill("SIGINT");
  // An interrupt that comes when the last step is done finds nothing to stop.
  const [code] = (await ended) as [number];
  expect([130, 0, 1]).toContain(code);
  const last = await mw(["train", "--resume", "--dir", directory, "--json"], { cwd: place, env });
  expect(last.stdout, last.stderr).toMatch(/^{/);
  const document = documentSchema.parse(JSON.parse(last.stdout));
  expect(document, last.stderr).toMatchObject({ ended: "done", steps: 5, rollouts: 20 });
  expect(document.stalenessMax).toBeLessThanOrEqual(2);
  expect(last.code).toBe(document.meanLast > document.meanFirst ? 0 : 1);
  // Its policy costs nothing but what somebody has said, which holds for all of the training.
  const again = await mw(["train", "--resume", "--dir", directory], { cwd: place, env });
  const { cost, tokens } = shownSchema.parse(JSON.parse((await mw(["show", document.run, "--json"], { cwd: place, env })).stdout));
  expect(tokens.completionTokens).toBeGreaterThan(0);
  expect(cost.total).toBeCloseTo((tokens.promptTokens * 100 + tokens.completionTokens * 400) / 1e6, 9);
  for (const { stdout } of [again, await mw(["show", document.run], { cwd: place, env })]) expect(stdout).toMatch(/^cost: \$[\d.]+ \(prompts \$[\d.]+, sampled \$/m);
  const consumed = events().flatMap((event) => terminalSchema.safeParse(event).data ?? []).filter(({ outcome }) => outcome === "consumed");
  expect(consumed.length).toBe(10);
  expect(new Set(consumed.map(({ id }) => id)).size).toBe(10);
  const accepted = events().flatMap((event) => acceptedSchema.safeParse(event).data ?? []);
  const draw = new TaskDraw(readdirSync(TASKS).sort().map((name) => join(TASKS, name)), "7");
  for (const { spec } of accepted) expect(spec.task).toBe(draw.task(Number(spec.group_id.slice(1))));
  expect(accepted.map(({ spec }) => spec.group_id)).toEqual(accepted.map((_, index) => `g${index}`));
}, 300_000);

it("refuses what contradicts itself, before anything is made", async () => {
  const none = join(place, "none");
  for (const [args, words] of [
    [["--dir", none], "no tasks are named"],
    [[join(place, "missing"), "--dir", none], "missing"],
    [[TASKS, "--dir", directory], "holds a training already"],
    [["--resume"], "needs the directory"],
    [["--resume", "--dir", none], "no training in"],
    [["--resume", "--dir", directory, "--seed", "8"], "goes on as it was begun"],
    [["--resume", "--dir", directory, "--price", "input=1,output=1"], "goes on as it was begun"],
    [[TASKS, "--dir", none, "--price", "input=1"], "of tokens both input and output"],
    [[TASKS, "--trainer", "mine", "--dir", none], "--dir is for the embedded trainer"],
    [[TASKS, "--trainer", "mine"], "mine"],
  ] as const) {
    const { code, stderr } = await mw(["train", ...args], { cwd: place, env });
    expect({ code, said: stderr.includes(words) }, stderr).toEqual({ code: 2, said: true });
  }
  expect(existsSync(none)).toBe(false);
  const elsewhere = await mw(["train", "--resume", "--dir", directory], { cwd: place, env: { ...env, MW_HOME: join(place, "other") } });
  expect(elsewhere.stderr).toContain(`MW_HOME=${home}`);
});
