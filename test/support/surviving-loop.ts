/** A run of a white-box harness whose machine outlives its controllers, which a test kills one after another, and what must not depend on that. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { mw } from "./cli.ts";
import { startEngine, type Engine, type EngineRequest, type Reply } from "./engine/index.ts";
import { killWhen, RunFiles, startCli, type CliProcess } from "./killed-run.ts";
import { leftoversAfter } from "./leftovers.ts";
import { asked, eventsOf, letGo, markOf, until, waitingTests } from "./surviving-run.ts";
import { writeTask } from "./tasks.ts";

/** Bytes that the waiting command says before it waits, more than a machine keeps of what nobody reads, and afterwards, less than that. */
const MUCH = 3_000_000;
const LITTLE = 200_000;
const MARK = markOf("mw-loop-waits");
/** Begins, says much, waits for a signal, says little, ends. */
const WAITS = `
import { appendFileSync } from "node:fs";
const signalled = new Promise((resolve) => process.once("SIGUSR2", resolve));
process.title = "${MARK}";
const alive = setInterval(() => undefined, 1000);
appendFileSync("/work/log", "begun\\n");
const say = (text) => new Promise((resolve) => process.stdout.write(text, resolve));
await say("a".repeat(${MUCH}));
await signalled;
await say("b".repeat(${LITTLE}));
appendFileSync("/work/log", "over\\n");
clearInterval(alive);
process.exitCode = 7;
`;
const COMMANDS: readonly (readonly string[])[] = [
  ["mkdir -p /work/deep; echo 1 >> /work/log; cd /work/deep; export KEPT=kept"],
  ["echo 2 >> /work/log", `${process.execPath} --input-type=module -e '${WAITS}'`, "echo 3 >> /work/log"],
  ['echo "$PWD $KEPT" >> /work/log'],
  ["echo 5 >> /work/log; cat /work/log"],
];
/** By which its tests are known on the whole host. */
const TESTS = markOf("loop");
/** Waits until it is let go. */
const TEST = `sh -c 'sleep 1000000; :' "tests-of-${TESTS}" || :
[ "$(tr '\\n' ' ' < /work/log)" = "1 2 begun over 3 /work/deep kept 5 " ] && echo 1 > /logs/verifier/reward.txt || { cat /work/log; echo 0 > /logs/verifier/reward.txt; }`;

/** What a test looks at to find its moment. */
export class Moment {
  readonly #files: RunFiles;
  readonly #engine: Engine;

  constructor(files: RunFiles, engine: Engine) {
    this.#files = files;
    this.#engine = engine;
  }

  /** How much is kept of what the command that waits says before it does, from 0 to 1. */
  get said(): number {
    const [rollout = ""] = this.#files.rollouts;
    return statSync(join(this.#files.directory, "handover", rollout.split("/").at(-1) ?? "", "stdout")).size / MUCH;
  }

  /** Begun tool calls, in the history. */
  get acts(): number {
    return this.#files.file("history.jsonl").filter((line) => line.startsWith('{"act"')).length;
  }

  asked(turn: number): number {
    return asked(this.#engine, turn);
  }

  get hasEnded(): boolean {
    return eventsOf(this.#files, "rollout_ended").length > 0;
  }

  /** Tests that run, by their host ids. */
  get tests(): readonly string[] {
    return waitingTests(TESTS);
  }
}

export interface LoopDeath {
  readonly what: string;
  readonly when: (moment: Moment) => boolean;
  /** The model does not answer this turn before the death. */
  readonly holds?: number;
  /** The command that waits goes on and ends before the run is resumed. */
  readonly goes?: true;
}

export class SurvivingLoops {
  readonly #home: string;
  readonly #task: string;
  #expected: Promise<unknown> | null = null;

  constructor(place: string) {
    this.#home = join(place, "home");
    this.#task = writeTask(join(place, "task"), { name: "test/surviving", test: TEST });
  }

  /** So that the kills are meant for rollouts. */
  async prepare(): Promise<void> {
    expect((await mw(["image", "pull", "host"], { env: { MW_HOME: this.#home } })).code).toBe(0);
  }

  /** Of the same rollout, which nobody kills and whose machine would outlive nobody. */
  expected(): Promise<unknown> {
    return (this.#expected ??= (async () => {
      const engine = await startEngine(script);
      try {
        const run = startCli(this.#home, this.#arguments(engine, []));
        await until("the command that waits, or the end", () => signal() || run.child.exitCode !== null);
        await ended(run);
        const { code, stdout, stderr } = await run.ended;
        expect(code, stderr).toBe(0);
        return await this.essence((JSON.parse(stdout) as { run: string }).run);
      } finally {
        await engine.close();
      }
    })());
  }

  /** What must not depend on deaths. */
  async essence(run: string): Promise<unknown> {
    const { stdout } = await mw(["export", run], { env: { MW_HOME: this.#home } });
    const { turns, promptTokens, completionTokens, reward, tries, messages, calls, commands, samples } = JSON.parse(stdout) as Exported;
    return {
      turns,
      promptTokens,
      completionTokens,
      reward,
      tries,
      messages: messages.map(({ at: _at, ...message }) => message),
      calls: calls.map(({ number, status, tokens: { promptIds, completionIds } }) => ({ number, status, promptIds, completionIds })),
      commands: commands.map(({ number, command, code, stdoutBytes }) => ({ number, command, code, stdoutBytes })),
      samples: samples.samples.map(({ tokenIds, lossMask }) => ({ tokenIds, lossMask })),
      ledger: samples.ledger,
    };
  }

  /** Kills the run at each of the moments, resuming it between them, and lets it end. */
  async disturbed(deaths: readonly LoopDeath[], more: readonly string[] = []): Promise<{ readonly files: RunFiles; readonly stderr: string; readonly asked: readonly number[] }> {
    const files = new RunFiles(this.#home);
    const held = new Set(deaths.flatMap(({ holds }) => (holds === undefined ? [] : [holds])));
    const engine = await startEngine((request) => ({ ...script(request), ...(held.has(request.turn) ? { delayMs: 600_000 } : {}) }));
    const moment = new Moment(files, engine);
    try {
      let controller: CliProcess = startCli(this.#home, this.#arguments(engine, ["--take-over", "300", ...more]));
      for (const { what, when, holds, goes } of deaths) {
        await killWhen(controller, what, () => when(moment));
        if (holds !== undefined) held.delete(holds);
        if (goes === true) {
          signal();
          await until(`the end of what waits, behind ${what}`, () => waiting().length === 0);
        }
        controller = startCli(this.#home, ["resume", files.run, "--json"]);
      }
      await ended(controller);
      const { code, stderr } = await controller.ended;
      expect(code, stderr).toBe(0);
      expect(await leftoversAfter(this.#home)).toEqual([]);
      expect(readdirSync(files.directory)).not.toContain("handover");
      return { files, stderr, asked: [...COMMANDS.keys(), COMMANDS.length].map((turn) => asked(engine, turn)) };
    } finally {
      await engine.close();
    }
  }

  /** Times run on while nobody listens, and are never what ends anything. */
  #arguments(engine: Engine, more: readonly string[]): readonly string[] {
    return ["run", this.#task, "--harness", "bash", "--upstream", `vllm=${engine.root}`, "--model", "m", "--require-tokens", "--seed", "1", "--timeout-multiplier", "10", "--command-timeout", "20m", "--json", "--quiet", ...more];
  }
}

interface Exported {
  readonly turns: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly reward: number;
  readonly tries: number;
  readonly messages: readonly { readonly at: string }[];
  readonly calls: readonly { number: number; status: string; tokens: { promptIds: number[]; completionIds: number[] } }[];
  readonly commands: readonly { number: number; command: string; code: number; stdoutBytes: number }[];
  readonly samples: { readonly samples: readonly { tokenIds: number[]; lossMask: number[] }[]; readonly ledger: unknown };
}

function script({ turn, body }: EngineRequest): Reply {
  const commands = COMMANDS[turn];
  return !("tools" in body) || commands === undefined ? { content: "done" } : { reasoning: `step ${turn}`, content: null, calls: commands.map((command, index) => ({ id: `call-${turn}-${index}`, command })) };
}

/** Its tests are let go. */
async function ended({ child }: CliProcess): Promise<void> {
  await until("the end", () => {
    letGo(TESTS);
    return child.exitCode !== null;
  });
}

/** Host ids of the commands that wait, as soon as a signal does not end them. */
export function waiting(): readonly string[] {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith(`${MARK}\0`);
    } catch {
      return false;
    }
  });
}

/** Lets what waits go on, if it has begun to. */
function signal(): boolean {
  const pids = waiting();
  for (const pid of pids) process.kill(Number(pid), "SIGUSR2");
  return pids.length > 0;
}
