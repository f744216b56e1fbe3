/** Rollouts that are killed in the middle and go on from their last checkpoint: as if nothing had happened, with nothing done twice. */
import { appendFileSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine, type Engine, type EngineRequest, type Reply } from "../support/engine/index.ts";
import { killWhen, Missed, RunFiles, startCli } from "../support/killed-run.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-checkpoint-"));
const home = join(place, "home");
beforeAll(async () => {
  // It takes longer to prepare than a rollout to run; the kills are meant for the rollout.
  expect((await mw(["image", "pull", "host"], { env: { MW_HOME: home } })).code).toBe(0);
});
afterAll(() => rmSync(place, { recursive: true, force: true }));

/** Everything is there once, the shell's directory and variables too. */
const TEST = `[ "$(cat /work/log | tr '\\n' ' ')" = "1 2 3 4 " ] && [ "$(cat /work/deep/where)" = "/work/deep kept" ] && [ "$(stat -c %a /work/log)" = 640 ] && echo 1 > /logs/verifier/reward.txt || { cat /work/log; echo 0 > /logs/verifier/reward.txt; }`;
const COMMANDS = ["mkdir -p /work/deep; echo 1 > /work/log; chmod 640 /work/log; cd /work/deep; export KEPT=kept", "echo 2 >> /work/log", 'sleep 2; echo 3 >> /work/log; head -c 60000000 /dev/urandom > /work/big', 'echo 4 >> /work/log; echo "$PWD $KEPT" > where; rm /work/big'];

const script = ({ turn, body }: EngineRequest): Reply => {
  const command = COMMANDS[turn];
  return !("tools" in body) || command === undefined ? { content: "done" } : { reasoning: `step ${turn}`, content: null, calls: [{ id: `call-of-turn-${turn}`, command }] };
};
const asked = (engine: Engine): number => engine.requests.filter(({ body }) => "tools" in body).length;

interface Exported {
  readonly turns: number;
  readonly completionTokens: number;
  readonly promptTokens: number;
  readonly reward: number;
  readonly tries: number;
  readonly messages: readonly { at: string; role: string; content: string }[];
  readonly calls: readonly { number: number; status: string; tokens: { promptIds: number[]; completionIds: number[]; logprobs: number[] } }[];
  readonly commands: readonly { number: number; command: string }[];
  readonly samples: { readonly samples: readonly { tokenIds: number[]; lossMask: number[] }[]; readonly ledger: unknown };
}

/** What must not depend on deaths. */
async function essence(run: string): Promise<unknown> {
  const { stdout } = await mw(["export", run], { env: { MW_HOME: home } });
  const { turns, completionTokens, promptTokens, reward, messages, calls, commands, samples } = JSON.parse(stdout) as Exported;
  return {
    turns,
    completionTokens,
    promptTokens,
    reward,
    messages: messages.map(({ at: _at, ...message }) => message),
    // The engine's logprobs depend on how much it was asked before.
    calls: calls.map(({ number, status, tokens: { promptIds, completionIds } }) => ({ number, status, promptIds, completionIds })),
    commands: commands.map(({ number, command }) => ({ number, command })),
    samples: samples.samples.map(({ tokenIds, lossMask }) => ({ tokenIds, lossMask })),
    ledger: samples.ledger,
  };
}

const runArguments = (task: string, engine: Engine, more: readonly string[] = ["--checkpoint", "every-turn"]): readonly string[] => ["run", task, "--harness", "bash", "--upstream", `vllm=${engine.root}`, "--model", "m", "--require-tokens", "--seed", "1", "--json", "--quiet", ...more];

let undisturbed: Promise<unknown> | null = null;
const task = writeTask(join(place, "task"), { name: "test/checkpoint", test: TEST });

/** The same run without checkpoints and deaths. */
function expected(): Promise<unknown> {
  return (undisturbed ??= (async () => {
    const engine = await startEngine(script);
    try {
      const { code, stdout, stderr } = await mw(runArguments(task, engine, []), { env: { MW_HOME: home } });
      expect(code, stderr).toBe(0);
      return await essence((JSON.parse(stdout) as { run: string }).run);
    } finally {
      await engine.close();
    }
  })());
}

type Moment = readonly [what: string, when: (files: RunFiles, engine: Engine) => boolean];

interface Disturbance {
  readonly slow?: (request: EngineRequest) => boolean;
  readonly spoil?: (files: RunFiles) => void;
  readonly more?: readonly string[];
}

interface Disturbed {
  readonly files: RunFiles;
  readonly asked: number;
  readonly stderr: string;
  readonly rollout: { readonly outcome: string; readonly reward: number | null; readonly tries: number };
}

/** Kills a run at a moment, spoils what it left if asked to, and resumes it. Another one where the moment was missed. */
async function disturbed(moment: Moment, options: Disturbance = {}, tries = 3): Promise<Disturbed> {
  return disturbedOnce(moment, options).catch((error: unknown) => (error instanceof Missed && tries > 1 ? disturbed(moment, options, tries - 1) : Promise.reject(error as Error)));
}

async function disturbedOnce(moment: Moment, options: Disturbance): Promise<Disturbed> {
  const files = new RunFiles(home);
  let killed = false;
  const engine = await startEngine((request) => ({ ...script(request), ...(options.slow?.(request) === true && !killed ? { delayMs: 600_000 } : {}) }));
  try {
    await killWhen(startCli(home, runArguments(task, engine, options.more)), moment[0], () => moment[1](files, engine));
    killed = true;
    // The next controller takes the dead one's gateway's place.
    expect(await leftoversAfter(home, (of) => machines(of).filter((text) => !text.startsWith("gateway socket")))).toEqual([]);
    options.spoil?.(files);
    const { code, stdout, stderr } = await startCli(home, ["resume", files.run, "--json"]).ended;
    expect(code, stderr).toBe(0);
    const [rollout] = (JSON.parse(stdout) as { rollouts: { outcome: string; reward: number; tries: number }[] }).rollouts;
    if (rollout === undefined) throw new Error("no rollout");
    expect(await leftoversAfter(home)).toEqual([]);
    return { files, asked: asked(engine), stderr, rollout };
  } finally {
    await engine.close();
  }
}

const checkpoints = (files: RunFiles): number => files.events.filter(({ type }) => type === "rollout_checkpointed").length;
const acts = (files: RunFiles): number => files.file("history.jsonl").filter((line) => line.startsWith('{"act"')).length;
const restored = (files: RunFiles): readonly unknown[] => files.events.filter(({ type }) => type === "rollout_restored").map(({ turn, answered, parent }) => ({ turn, answered, parent }));

describe("kill -9 of the controller of a rollout that is kept behind every turn", () => {
  it.each([
    { phase: "while the model answers", when: ["the third question", (_files: RunFiles, engine: Engine) => asked(engine) === 3], slow: ({ turn }: EngineRequest) => turn === 2, turn: 2, answered: false, asked: 6 },
    { phase: "while a tool call runs", when: ["the third tool call", (files: RunFiles) => acts(files) === 3], turn: 2, answered: true, asked: 5 },
    { phase: "while a snapshot is made", when: ["the snapshot behind turn 3", (files: RunFiles) => checkpoints(files) === 2 && acts(files) === 3 && files.work.length > 0], turn: 2, answered: true, asked: 5 },
    { phase: "while the tests run", when: ["the end of the agent", (files: RunFiles) => files.events.some(({ type }) => type === "rollout_collected")], turn: 4, answered: true, asked: 5 },
  ] as const)("$phase", async ({ when: [what, when], turn, answered, asked: questions, ...options }) => {
    const { files, rollout, asked: all } = await disturbed([what, when], options);
    expect(rollout).toMatchObject({ outcome: "scored", reward: 1, tries: 2 });
    expect(restored(files)).toEqual([{ turn, answered, parent: null }]);
    expect(await essence(files.run)).toEqual(await expected());
    expect(all).toBe(questions);
    // Nobody will go on from them.
    expect(files.snapshots).toEqual([]);
  });

  it("between the snapshot and its record", async () => {
    const before: { record?: string; text?: string } = {};
    const moment = (files: RunFiles, engine: Engine): boolean => {
      if (before.record === undefined && checkpoints(files) === 2 && acts(files) === 3) {
        const [record = ""] = files.snapshots;
        Object.assign(before, { record, text: readFileSync(join(home, "snapshots/records", record), "utf8") });
      }
      return asked(engine) === 4;
    };
    const { files, rollout, asked: questions } = await disturbed(["the fourth question", moment], {
      slow: ({ turn }) => turn === 3,
      // As it was a moment earlier: the new snapshot is durable, its record is not, and the one before has not been removed.
      spoil: (killed) => {
        const log = join(killed.directory, "events.jsonl");
        const whole = readFileSync(log);
        const last = whole.lastIndexOf("\n", whole.length - 2) + 1;
        expect(whole.subarray(last).toString()).toContain("rollout_checkpointed");
        truncateSync(log, last);
        expect(killed.snapshots.length).toBe(1);
        writeFileSync(join(home, "snapshots/records", before.record ?? ""), before.text ?? "");
      },
    });
    expect(restored(files)).toEqual([{ turn: 2, answered: true, parent: null }]);
    expect(rollout).toMatchObject({ outcome: "scored", reward: 1, tries: 2 });
    expect(await essence(files.run)).toEqual(await expected());
    // Three answers and the question that was open, then the fourth again and the last.
    expect(questions).toBe(6);
    expect(files.snapshots).toEqual([]);
  });

  it("with a process that the agent left running: it is there again where processes can be kept, else the rollout goes on from before it", async () => {
    const files = new RunFiles(home);
    let slow = true;
    const left = `i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo $i > /work/ticks; sleep 0.1; done`;
    const commands = ["mkdir -p /work; echo 1 > /work/log", `(${left}) > /dev/null 2>&1 & echo $! > /work/pid`, "kill -0 $(cat /work/pid) && echo alive > /work/state"];
    const engine = await startEngine(({ turn, body }) => {
      const command = commands[turn];
      if (!("tools" in body) || command === undefined) return { content: "done" };
      return { content: null, calls: [{ command }], ...(slow && turn === 2 ? { delayMs: 600_000 } : {}) };
    });
    try {
      const task = writeTask(join(place, "process"), { name: "test/process", test: "cat /work/log /work/state; echo 1 > /logs/verifier/reward.txt" });
      await killWhen(startCli(home, runArguments(task, engine)), "the third question", () => asked(engine) === 3);
      slow = false;
      const keeps = files.events.findLast(({ type }) => type === "rollout_checkpointed") as { readonly checkpoint: { readonly turn: number; readonly memory: boolean } } | undefined;
      const { code, stderr } = await startCli(home, ["resume", files.run, "--json"]).ended;
      expect(code, stderr).toBe(0);
      expect(keeps?.checkpoint.turn).toBe(keeps?.checkpoint.memory === true ? 2 : 1);
      expect(restored(files)).toEqual([{ turn: keeps?.checkpoint.turn, answered: keeps?.checkpoint.memory !== true, parent: null }]);
      expect(readFileSync(join(files.rollouts[0] ?? "", "verifier/test-stdout.txt"), "utf8")).toBe("1\nalive\n");
    } finally {
      await engine.close();
    }
  });

  it("in a machine with a network: a tool call that had begun does not begin again, and the model is told", async () => {
    // Counts, outside of everything that is put back.
    let hits = 0;
    const counter = createServer((socket) => {
      hits++;
      socket.on("error", () => undefined).end();
    });
    await new Promise<void>((resolve) => counter.listen(0, "0.0.0.0", resolve));
    const outside = Object.values(networkInterfaces()).flatMap((list) => (list ?? []).filter(({ family, internal }) => family === "IPv4" && !internal))[0]?.address;
    expect(outside, "this host has no address of its own").toBeDefined();
    const hit = `exec 3<>/dev/tcp/${outside}/${(counter.address() as AddressInfo).port}; echo 2 >> /work/log; sleep 600`;
    const files = new RunFiles(home);
    const engine = await startEngine(({ turn, body }) => ({ content: "tools" in body && turn < 2 ? null : "done", ...("tools" in body && turn < 2 ? { calls: [{ command: ["mkdir -p /work; echo 1 > /work/log", hit][turn] ?? "" }, { command: "echo second >> /work/log" }] } : {}) }));
    try {
      const task = writeTask(join(place, "public"), { name: "test/public", environment: 'docker_image = "host"', test: 'cat /work/log; echo 1 > /logs/verifier/reward.txt' });
      // Whatever interval is asked for.
      await killWhen(startCli(home, runArguments(task, engine, ["--checkpoint", "1h", "--network", "public"])), "the counted call", () => hits === 1);
      const { code, stderr } = await startCli(home, ["resume", files.run, "--json"]).ended;
      expect(code, stderr).toBe(0);
      expect(hits).toBe(1);
      expect(restored(files)).toEqual([{ turn: 1, answered: true, parent: null }]);
      const results = files.file("transcript.jsonl").map((line) => JSON.parse(line) as { role: string; content: string }).filter(({ role }) => role === "tool");
      expect(results.map(({ content }) => content.slice(0, 26))).toEqual(["Exit code: 0\n(no output)", "Exit code: 0\n(no output)", "Error: the machine was los", "Exit code: 0\n(no output)"]);
      // The call that had begun left nothing in the machine; the one behind it had not begun.
      expect(readFileSync(join(files.rollouts[0] ?? "", "verifier/test-stdout.txt"), "utf8")).toBe("1\nsecond\nsecond\n");
    } finally {
      await engine.close();
      counter.close();
    }
  });
});

describe("a checkpoint that is no good", () => {
  const thirdQuestion = ["the third question", (_files: RunFiles, engine: Engine) => asked(engine) === 3] as const;
  const slow = ({ turn }: EngineRequest): boolean => turn === 2;

  it.each([
    { what: "its history is damaged", why: /missing or damaged/, spoil: (files: RunFiles) => writeFileSync(join(files.rollouts[0] ?? "", "history.jsonl"), readFileSync(join(files.rollouts[0] ?? "", "history.jsonl"), "utf8").replace("echo 1", "echo 9")) },
    { what: "its snapshot is gone", why: /snapshot/, spoil: () => rmSync(join(home, "snapshots"), { recursive: true }) },
  ])("$what: a new attempt, with the reason", async ({ why, spoil }) => {
    const { files, rollout, stderr } = await disturbed(thirdQuestion, { slow, spoil });
    expect(rollout).toMatchObject({ outcome: "scored", reward: 1, tries: 3 });
    const [lost] = files.events.filter(({ cause }) => cause === "checkpoint_lost") as unknown as readonly { readonly error: { readonly message: string } }[];
    expect(lost?.error.message).toMatch(why);
    expect(stderr).toContain("begins anew: the checkpoint after turn 2 cannot be gone on from");
    expect(await essence(files.run)).toEqual(await expected());
  });

  it("is refused where the task has changed since", async () => {
    const { files, rollout } = await disturbed(thirdQuestion, { slow, spoil: () => appendFileSync(join(task, "instruction.md"), "And more.\n") });
    writeFileSync(join(task, "instruction.md"), "Write hello to /work/out.\n");
    expect(rollout).toMatchObject({ outcome: "task_error", reward: null });
    expect(restored(files)).toEqual([]);
    expect(files.snapshots).toEqual([]);
  });
});
