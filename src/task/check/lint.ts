/** What can be said about a task without running it: faults that make it unsound, and habits that will hurt. */
import { readdir, readFile, stat } from "node:fs/promises";
import { join, relative } from "node:path";
import { LIMITS } from "../../core/limits.ts";
import type { Task } from "../task.ts";

export interface LintFinding {
  /** An `error` fails the check. */
  readonly level: "error" | "warning";
  /** Stable name of the rule. */
  readonly rule: string;
  readonly message: string;
  readonly fix: string;
}

/** Sorted: errors first. */
export async function lintTask(task: Task): Promise<readonly LintFinding[]> {
  const findings: LintFinding[] = task.warnings.map((message) => ({ level: "warning", rule: "config", message, fix: "Correct task.toml." }));
  const add = (level: LintFinding["level"], rule: string, message: string, fix: string): unknown => findings.push({ level, rule, message, fix });
  lintInstruction(task, add);
  await lintTests(task, add);
  lintServices(task, add);
  await lintSolution(task, add);
  if (task.environment.dockerfile !== null) lintDockerfile(await readText(task.environment.dockerfile), add);
  await lintContext(task, add);
  lintLimits(task, add);
  return findings.sort((a, b) => Number(b.level === "error") - Number(a.level === "error"));
}

type Add = (level: LintFinding["level"], rule: string, message: string, fix: string) => unknown;

function lintInstruction(task: Task, add: Add): void {
  const texts: [string, string][] = task.steps.length === 0 ? [["instruction.md", task.instruction]] : task.steps.map((step) => [`steps/${step.name}/instruction.md`, step.instruction]);
  for (const [file, text] of texts) {
    if (text.trim() === "") add("error", "instruction-empty", `${file} is empty`, "Say what is to be done.");
    if (/(^|[\s`"'(])\/(?:tests|solution)(?:\/|\b)/.test(text)) add("warning", "instruction-leak", `${file} names /tests or /solution, which do not exist while the agent works`, "Describe the goal without the verifier's files.");
    if (/reward\.(?:txt|json)|\/logs\/verifier/.test(text)) add("error", "instruction-leak", `${file} names the reward file`, "The agent has no business with it; remove it.");
    if (/\bcanary\b/i.test(text.split("\n").slice(0, 3).join("\n"))) add("warning", "instruction-canary", `${file} begins with a canary line, which reaches the model as part of the text`, "Move the canary into a comment of another file.");
  }
}

async function lintTests(task: Task, add: Add): Promise<void> {
  const directories = [task.tests, ...task.steps.map((step) => step.tests)].filter((directory) => directory !== null);
  let mentions = false;
  for (const directory of directories) {
    for await (const file of textFiles(directory)) {
      const text = await readText(file);
      const name = relative(task.directory, file);
      if (/reward\.(?:txt|json)/.test(text)) mentions = true;
      for (const [pattern, what] of UNPINNED) {
        const found = pattern.exec(text);
        if (found !== null) add("warning", "tests-unpinned", `${name} installs ${what} at verification without a version: ${found[0].trim().slice(0, 80)}`, "Pin the version, or put it into the image: what it is today decides rewards.");
      }
      if (/\b(?:curl|wget)\b|\bapt-get\s+(?:update|install)\b|\bpip3?\s+install\b|\buvx\b/.test(text) && effectiveVerifierNetwork(task) === "none") {
        add("warning", "tests-network", `${name} fetches something, but the verifier has no network`, 'Put it into the image, or set [verifier] network_mode = "public".');
      }
      if (name.endsWith(".sh") && text.includes("\r\n")) add("warning", "tests-crlf", `${name} has CRLF line ends; they are made LF when it runs here, elsewhere it fails`, "Save it with LF.");
    }
  }
  if (directories.length > 0 && !mentions && !task.verifier.bundledTests) add("warning", "tests-reward", "nothing in tests/ mentions reward.txt or reward.json", "The verifier must write /logs/verifier/reward.txt or reward.json.");
}

const UNPINNED: readonly [RegExp, string][] = [
  [/\bpip3?\s+install\s+(?!-r\b|--requirement\b|-e\b|\.)(?:-\S+\s+)*[A-Za-z][\w.-]*(?:\[[^\]]*\])?(?=\s|$)(?![=<>~!])/m, "a Python package"],
  [/\buvx?\b[^\n]*(?:-w|--with)\s+[A-Za-z][\w.-]*(?=\s|$)/m, "a Python package"],
  [/\bnpm\s+(?:install|i)\s+(?:-g\s+|--global\s+)?[a-z][\w-]*(?=\s|$)/m, "an npm package"],
  [/\bcurl\b[^\n]*\/latest\b[^\n]*/m, "the latest version of something"],
];

function lintServices(task: Task, add: Add): void {
  for (const { services } of [task.verifier, ...task.steps.map((step) => step.verifier)]) {
    for (const { command, user } of services) {
      if (user === null || /^(?:root|0)(?::|$)/.test(user)) add("warning", "service-root", `the service ${JSON.stringify(command)} is the agent's program and runs as root beside the tests: it can read them and write the reward`, "Give it a user of its own (user = ...), which the image or the agent makes.");
    }
  }
}

async function lintSolution(task: Task, add: Add): Promise<void> {
  const directories: [string, string | null][] = task.steps.length === 0 ? [["solution/solve.sh", task.solution.directory]] : task.steps.map((step) => [`steps/${step.name}/solution/solve.sh`, step.solution ?? task.solution.directory]);
  for (const [name, directory] of directories) {
    const script = directory === null ? null : join(directory, "solve.sh");
    if (script === null || !(await stat(script).catch(() => null))?.isFile()) {
      add("warning", "no-reference", `there is no ${name}: nothing proves that the task can be solved`, "Add a reference solution.");
      continue;
    }
    const text = await readText(script);
    if (/reward\.(?:txt|json)|\/logs\/verifier/.test(text)) add("error", "reference-forges", `${name} writes to the verifier's files`, "The reference must do the work.");
    if (/(^|\s)\/tests\//m.test(text)) add("error", "reference-reads-tests", `${name} uses /tests, which does not exist while it runs`, "The reference must do the work without the tests.");
  }
}

function lintDockerfile(text: string, add: Add): void {
  const lines = text.replaceAll(/\\\r?\n/g, " ").split(/\r?\n/);
  for (const line of lines) {
    if (/^\s*(?:COPY|ADD)\s.*(?:^|[\s"'/])(?:tests|solution)(?:[\s"'/]|$)/i.test(line)) add("error", "image-leak", `the Dockerfile copies tests or the solution into the image: ${line.trim().slice(0, 100)}`, "The agent would see them; remove the line.");
    const from = /^\s*FROM\s+(?:--\S+\s+)*(\S+)/i.exec(line)?.[1];
    if (from !== undefined && from !== "scratch" && !from.includes("@") && !from.includes("$")) {
      const tag = /:([^/:]+)$/.exec(from)?.[1];
      if ((tag === undefined && !lines.some((other) => new RegExp(`\\bAS\\s+${from.replaceAll(/[^\w-]/g, "\\$&")}\\s*$`, "i").test(other))) || tag === "latest") add("warning", "image-unpinned", `the base image ${from} has no version`, "Name a tag, better a digest.");
    }
    const run = /^\s*RUN\s+(.*)$/i.exec(line)?.[1];
    for (const [pattern, what] of run === undefined ? [] : UNPINNED) {
      const found = pattern.exec(run ?? "");
      if (found !== null) add("warning", "image-unpinned", `the Dockerfile installs ${what} without a version: ${found[0].trim().slice(0, 80)}`, "Pin the version.");
    }
  }
}

/** A build context that holds the answer, whatever the Dockerfile copies today. */
async function lintContext(task: Task, add: Add): Promise<void> {
  for (const name of await readdir(task.environment.context).catch(() => [] as string[])) {
    if (/^(?:solution|solve\.sh|test_outputs\.py)$/.test(name)) add("warning", "image-leak", `environment/${name} looks like part of the solution or the tests`, "Keep it out of what the agent's machine is made from.");
  }
}

function lintLimits(task: Task, add: Add): void {
  if (task.agent.timeoutMs === null && task.steps.every((step) => step.agentTimeoutMs === null)) add("warning", "no-agent-timeout", "the agent has no time limit", "Set [agent] timeout_sec.");
  if (task.environment.network === "public" && task.agent.network === null) add("warning", "network-open", "the agent has the whole internet, where the task may be found solved", 'Set [environment] network_mode = "no-network" unless the work needs it.');
}

function effectiveVerifierNetwork(task: Task): string {
  return task.verifier.network ?? task.verifier.environment?.network ?? task.environment.network;
}

async function* textFiles(directory: string, depth = 0): AsyncGenerator<string> {
  if (depth > 16) return;
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) yield* textFiles(path, depth + 1);
    else if (entry.isFile() && /\.(?:sh|bash|py|js|ts|toml|txt|rb|pl)$/.test(entry.name) && (await stat(path)).size <= LIMITS.instructionBytes) yield path;
  }
}

async function readText(path: string): Promise<string> {
  return readFile(path, "utf8").catch(() => "");
}
