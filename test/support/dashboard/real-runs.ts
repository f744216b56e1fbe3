/** Real runs for the dashboard's tests: real machines and verifiers, a test engine as the model, and an agent that writes what a page must not believe. */
import { join } from "node:path";
import { mw } from "../cli.ts";
import { startEngine, type EngineRequest, type EngineScript, type Reply } from "../engine/index.ts";
import { decode, MODEL_DIRECTORY } from "../engine/tokenizer.ts";
import { writeTask } from "../tasks.ts";

/** Markup, a script, control sequences that clear and rename, text that reads backwards, a line without an end. */
export const HOSTILE = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>\u001b[2J\u001b]0;owned\u0007\u001b[31mred\u001b[0m \u202eesrever\u202c \u0000nul ${"x".repeat(30_000)}`;

/** As a task's name, family and model are told. */
export const HOSTILE_NAME = "<img src=x onerror=alert(1)>\u202egnp\u202c\u001b[31m";

export interface RealRuns {
  /** Four attempts at three tasks by a model, with exact tokens and workspaces. */
  readonly model: string;
  /** The same tasks by the reference and an idle agent. */
  readonly oracle: string;
  /** An agent that writes `HOSTILE` wherever it can. */
  readonly hostile: string;
  /** An agent that gives a part to a sub-agent, and goes on from a summary. */
  readonly team: string;
}

export async function makeRealRuns(place: string, home: string): Promise<RealRuns> {
  const tasks = join(place, "tasks");
  const verifier = 'echo "checking /work/out"; cat /work/out; if [ "$(cat /work/out 2>/dev/null)" = hello ]; then echo 1; elif [ -e /work/out ]; then echo 0.5; else echo 0; fi > /logs/verifier/reward.txt';
  for (const [name, instruction] of [["greet/hello", "Write hello to /work/out.\n"], ["greet/polite", "Write hello to /work/out, and say what you did.\n"], ["config/answer", "The file /work/out should hold the word that /etc/hostname does not: hello.\n"]] as const) {
    const [family = "", task = ""] = name.split("/");
    writeTask(join(tasks, family, task), { name, instruction, test: verifier, toml: '[metadata]\ncategory = "x"\n' });
  }
  const inputs = ["greet/hello", "greet/polite", "config/answer"].map((name) => join(tasks, name));
  const hostile = writeTask(join(tasks, "hostile"), { name: HOSTILE_NAME, test: `cat /work/*; printf '%s' '${HOSTILE_NAME}'; ${verifier}`, toml: `[metadata]\ncategory = ${JSON.stringify(HOSTILE_NAME)}\n` });
  return {
    oracle: await run(home, [...inputs, "--harness", "oracle,nop", "-n", "2", "--seed", "5"]),
    model: await withModel(home, worker, (upstream) => [...inputs, "--harness", "bash", ...upstream, "-n", "4", "--seed", "11", "--keep-workspace", "--temperature", "0.8", "--sampling-seed", "4", "--price", "input=96,output=384"]),
    team: await withModel(home, teamwork, (upstream) => [...inputs.slice(0, 1), "--harness", "generic", "--harness-command", `${process.execPath} --input-type=module -e '${TEAM}'`, ...upstream]),
    hostile: await withModel(home, [{ content: HOSTILE, calls: [{ command: `printf '%s' '${HOSTILE.replaceAll("'", "").replaceAll("\u0000", "")}'; mkdir -p /work/out; printf '\\377\\376binary' > '/work/<b>name'; ln -s /etc/passwd /work/link; touch "$(printf '/work/\\377\\033[31m\\342\\200\\256name')"; printf '\\377\\376\\355\\240\\200'; head -c 2000000 /dev/zero | tr '\\0' y` }] }, { content: "done" }], (upstream) => [hostile, "--harness", "bash", ...upstream, "--seed", "2", "--keep-workspace"]),
  };
}

/** Looks around, fails now and then, writes; some attempts get it wrong. */
function worker({ turn, body }: EngineRequest): Reply {
  // Each attempt has a seed of its own; servers that take tokens are told it among the parameters.
  const seed = Number(body["seed"] ?? (body["sampling_params"] as Readonly<Record<string, unknown>> | undefined)?.["seed"] ?? 0);
  const lucky = seed % 3 !== 0;
  const script: readonly Reply[] = [
    { content: "Let me look at the machine first.", reasoning: "The task wants a file. I should check what is there before I write anything.", calls: [{ command: "ls -la / /work 2>&1 | head -20; cat /etc/hostname" }] },
    { content: null, calls: [{ command: lucky ? "mkdir -p /work && printf hello > /work/out && cat /work/out" : "mkdir -p /work && echo goodbye > /work/out; cat /work/missing" }] },
    { content: null, calls: [{ command: "wc -c /work/out; seq 1 400; printf 'setting = 1\\nother = 2\\n' > /work/settings.ini" }] },
    { content: lucky ? "The file holds hello.\n\nI wrote it with `printf`, so that there is no newline at its end." : "I believe that it is done." },
  ];
  return script[turn] ?? { content: "done" };
}

/** The image is the host's: its Node is there. */
const TEAM = `
  const tools = [{ type: "function", function: { name: "task", parameters: { type: "object" } } }];
  const ask = async (messages, more) => {
    const answer = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", { method: "POST", headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY }, body: JSON.stringify({ model: "any", messages, ...more }) });
    return (await answer.json()).choices[0].message;
  };
  const user = (content) => ({ role: "user", content });
  const lead = [{ role: "system", content: "You lead." }, user((await import("node:fs")).readFileSync(process.env.MW_INSTRUCTION_FILE, "utf8"))];
  const order = await ask(lead, { tools });
  const [{ id, function: { arguments: given } }] = order.tool_calls;
  const report = await ask([{ role: "system", content: "You help." }, user(JSON.parse(given).prompt)], { tools });
  const summary = await ask([...lead, order, { role: "tool", tool_call_id: id, content: report.content }, user("Sum up.")]);
  await ask([lead[0], user("So far: " + summary.content)], { tools });
`;

function teamwork({ promptIds }: EngineRequest): Reply {
  const said = decode(promptIds);
  if (said.includes("You help.")) return { content: "The word is hello." };
  if (said.includes("So far:")) return { content: "Then that is all." };
  if (said.includes("Sum up.")) return { content: "A helper has found out which word is wanted, and nothing is left to be done." };
  return { content: "Somebody should look.", calls: [{ name: "task", arguments: JSON.stringify({ prompt: "Find out which word is wanted." }) }] };
}

async function withModel(home: string, script: EngineScript, argumentsOf: (upstream: readonly string[]) => readonly string[]): Promise<string> {
  const engine = await startEngine(script);
  try {
    return await run(home, argumentsOf(["--upstream", `vllm=${engine.root}`, "--model", "test-model", "--tokenizer", MODEL_DIRECTORY]));
  } finally {
    await engine.close();
  }
}

async function run(home: string, args: readonly string[]): Promise<string> {
  const { code, stdout, stderr } = await mw(["run", ...args, "--json", "--quiet", "--concurrency", "2"], { env: { MW_HOME: home } });
  if (code !== 0) throw new Error(`mw run ended with ${code}: ${stderr}`);
  return (JSON.parse(stdout) as { readonly run: string }).run;
}
