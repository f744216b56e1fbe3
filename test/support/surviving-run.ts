/** A run whose agents outlive its controllers, which a test kills one after another, and what must not depend on that. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { mw } from "./cli.ts";
import { startEngine, type Engine, type EngineRequest } from "./engine/index.ts";
import { killWhen, RunFiles, startCli, type CliProcess } from "./killed-run.ts";
import { leftoversAfter } from "./leftovers.ts";
import { writeTask } from "./tasks.ts";

/** Asks as often as it has to, as the clients of agent CLIs do, and acts once for each answer. Behind one of them it waits for a signal. */
const PROGRAM = `
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
const [, mark, waits] = process.argv;
const signalled = new Promise((resolve) => process.once("SIGUSR2", resolve));
setInterval(() => undefined, 1000);
for (const directory of ["/work", "/tests"]) mkdirSync(directory, { recursive: true });
writeFileSync("/work/mark", mark);
writeFileSync("/tests/planted", "what no verifier is shown");
appendFileSync("/work/begun", "begun\\n");
const messages = [{ role: "user", content: readFileSync(0, "utf8") }];
const ask = async () => {
  for (;;) {
    try {
      const answer = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", { method: "POST", headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY }, body: JSON.stringify({ model: "m", messages }) });
      if (answer.ok) return (await answer.json()).choices[0].message.content;
      if (answer.status !== 503) process.exit(9);
    } catch {
      if (mark.startsWith("impatient")) process.exit(3);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
for (let turn = 0; turn < 5; turn++) {
  const answer = await ask();
  messages.push({ role: "assistant", content: answer }, { role: "user", content: "go on" });
  appendFileSync("/work/log", answer + "\\n");
  console.log("turn", turn, "x".repeat(100_000));
  if (turn === Number(waits)) await signalled;
}
process.exit(0);
`;
/** Waits until it is let go, where the agent's mark says so. */
const TEST = `case "$(cat /work/mark)" in held-*) sh -c 'sleep 1000000; :' "tests-of-$(cat /work/mark)" || : ;; esac
[ "$(cat /work/begun)" = begun ] && [ "$(tr '\\n' ' ' < /work/log)" = "answer 0 answer 1 answer 2 answer 3 answer 4 " ] && echo 1 > /logs/verifier/reward.txt || { cat /work/begun /work/log; echo 0 > /logs/verifier/reward.txt; }`;

export interface Death {
  readonly what: string;
  readonly when: (files: RunFiles, engine: Engine) => boolean;
  /** The model does not answer this turn before the death. */
  readonly holds?: number;
  /** Holds from the death until the run is resumed. */
  readonly after?: (mark: string, files: RunFiles) => boolean | Promise<boolean>;
  /** What waits goes on then. */
  readonly signals?: true;
}

export interface Survived {
  readonly files: RunFiles;
  /** Of the last controller. */
  readonly stderr: string;
  readonly engine: Engine;
  /** Of all agents that were ever seen, on the host. */
  readonly pids: ReadonlySet<string>;
}

export class SurvivingRuns {
  readonly #home: string;
  readonly task: string;
  #expected: Promise<unknown> | null = null;

  constructor(place: string) {
    this.#home = join(place, "home");
    this.task = writeTask(join(place, "task"), { name: "test/surviving", test: TEST });
  }

  /** So that the kills are meant for rollouts. */
  async prepare(): Promise<void> {
    expect((await mw(["image", "pull", "host"], { env: { MW_HOME: this.#home } })).code).toBe(0);
  }

  get home(): string {
    return this.#home;
  }

  /** Of the same rollout, which nobody kills. */
  expected(): Promise<unknown> {
    return (this.#expected ??= (async () => {
      const engine = await startEngine(({ turn }) => ({ content: `answer ${turn}` }));
      try {
        const { code, stdout, stderr } = await mw(this.arguments(engine, "undisturbed", []), { env: { MW_HOME: this.#home } });
        expect(code, stderr).toBe(0);
        return (await this.essence((JSON.parse(stdout) as { run: string }).run))[0];
      } finally {
        await engine.close();
      }
    })());
  }

  /** What must not depend on deaths, of each rollout; of those that began anew but for the number of tries. */
  async essence(run: string, lostTries = 0): Promise<readonly unknown[]> {
    const { stdout } = await mw(["export", run], { env: { MW_HOME: this.#home } });
    return stdout.trim().split("\n").map((line) => {
      const { turns, promptTokens, completionTokens, reward, tries, calls, commands, samples, verdict } = JSON.parse(line) as Exported;
      return {
        turns,
        promptTokens,
        completionTokens,
        reward,
        tries: tries - lostTries,
        calls: calls.map(({ number, status, tokens: { promptIds, completionIds } }) => ({ number, status, promptIds, completionIds })),
        commands: commands.map(({ number, code, stdoutBytes }) => ({ number, code, stdoutBytes })),
        samples: samples.samples.map(({ tokenIds, lossMask }) => ({ tokenIds, lossMask })),
        ledger: samples.ledger,
        evidence: verdict.evidence,
      };
    });
  }

  /** Kills the run at each of the moments, resuming it between them, and lets it end. `name`: of its agents' mark. They wait for a signal behind turn `waits`. */
  async disturbed(name: string, deaths: readonly Death[], more: readonly string[], waits?: number): Promise<Survived> {
    const mark = markOf(name);
    const files = new RunFiles(this.#home);
    const pids = new Set<string>();
    const held = new Set(deaths.flatMap(({ holds }) => (holds === undefined ? [] : [holds])));
    const engine = await startEngine((request) => ({ content: `answer ${request.turn}`, ...(isTurn(request) && held.has(request.turn) ? { delayMs: 600_000 } : {}) }));
    const look = (): void => agents(mark).forEach((pid) => pids.add(pid));
    try {
      let controller: CliProcess = startCli(this.#home, this.arguments(engine, `${mark} ${waits ?? ""}`, more));
      for (const { what, when, holds, signals, after = () => true } of deaths) {
        await killWhen(controller, what, () => {
          look();
          return when(files, engine);
        });
        if (holds !== undefined) held.delete(holds);
        if (signals === true) for (const pid of agents(mark)) process.kill(Number(pid), "SIGUSR2");
        await until(`what follows ${what}`, () => after(mark, files));
        controller = startCli(this.#home, ["resume", files.run, "--json"]);
      }
      await until("the end", () => {
        look();
        letGo(mark);
        return controller.child.exitCode !== null;
      });
      const { code, stderr } = await controller.ended;
      expect(code, stderr).toBe(0);
      expect(await leftoversAfter(this.#home)).toEqual([]);
      expect(readdirSync(files.directory)).not.toContain("handover");
      return { files, stderr, engine, pids };
    } finally {
      await engine.close();
    }
  }

  /** Of `mw`. `words`: what the agents are known by, and the turn behind which they wait. Their time, which runs on while nobody listens, is never what ends them. */
  arguments(engine: Engine, words: string, more: readonly string[]): readonly string[] {
    const command = `${process.execPath} --input-type=module -e '${PROGRAM}' ${words}`;
    return ["run", this.task, "--harness", "generic", "--harness-command", command, "--upstream", `vllm=${engine.root}`, "--model", "m", "--require-tokens", "--seed", "1", "--timeout-multiplier", "10", "--json", "--quiet", ...more];
  }
}

interface Exported {
  readonly turns: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly reward: number;
  readonly tries: number;
  readonly calls: readonly { number: number; status: string; tokens: { promptIds: number[]; completionIds: number[] } }[];
  readonly commands: readonly { number: number; code: number; stdoutBytes: number }[];
  readonly verdict: { readonly evidence: unknown };
  readonly samples: { readonly samples: readonly { tokenIds: number[]; lossMask: number[] }[]; readonly ledger: unknown };
}

/** How often the model was asked for the answer to a turn. The run's own question, whether the model is there, has no text of the task. */
export function asked(engine: Engine, turn: number): number {
  return engine.requests.filter((request) => isTurn(request) && request.turn === turn).length;
}

/** Agents that another controller would find. */
export function begun({ directory }: RunFiles): number {
  return readdirSync(join(directory, "handover")).filter((name) => readdirSync(join(directory, "handover", name)).includes("agent.json")).length;
}

export function eventsOf(files: RunFiles, type: string): readonly Readonly<Record<string, unknown>>[] {
  return files.events.filter((event) => event["type"] === type);
}

/** Bytes that the only agent has said, as they are kept. */
export function said(files: RunFiles): number {
  return statSync(join(files.directory, "handover", files.rollouts[0]?.split("/").at(-1) ?? "", "stdout")).size;
}

/** What agents are known by on the whole host, where another run of the same test may have its own. */
export const markOf = (name: string): string => `${name}-${process.pid}`;

/** Processes of the agents, by their host ids. */
export function agents(mark: string): readonly string[] {
  return processesWith(["--input-type=module", mark]);
}

/** Of tests that wait for the end of the run. */
export function waitingTests(mark: string): readonly string[] {
  return processesWith([`tests-of-${mark}`]);
}

/** Those that wait. */
export function letGo(mark: string): void {
  for (const pid of waitingTests(mark)) {
    try {
      process.kill(Number(pid), "SIGKILL");
    } catch {
      // It has ended meanwhile.
    }
  }
}

function processesWith(all: readonly string[]): readonly string[] {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).filter((pid) => {
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
      return all.every((word) => words.includes(word));
    } catch {
      return false;
    }
  });
}

/** A question of an agent, not that of the run. */
export function isTurn({ body }: EngineRequest): boolean {
  return JSON.stringify(body["messages"]).includes("/work/out");
}

export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 120_000; !(await holds()); await new Promise((resolve) => setTimeout(resolve, 20))) if (Date.now() > end) throw new Error(`never came: ${what}`);
}
