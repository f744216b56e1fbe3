/** `mw task check`: is a task sound enough to be worth attempts? */
import { MwError } from "../../core/errors.ts";
import { absoluteInput } from "../../rollout/inputs.ts";
import type { NetworkMode } from "../../sandbox/sandbox.ts";
import { writeCertificate, type Certificate } from "../../task/check/certificate.ts";
import { lintTask, type LintFinding } from "../../task/check/lint.ts";
import { readDataset } from "../../task/dataset.ts";
import type { Task } from "../../task/task.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { formatError, note, printJson, printLine, printable, styler } from "../output.ts";
import { openTaskGates, type GateRun, type TaskGates } from "../task-gates.ts";
import { VERSION } from "../version.ts";

export interface TaskCheckFlags {
  readonly lint: boolean;
  readonly certify: boolean;
  readonly image?: string;
  readonly network?: NetworkMode;
  readonly allow?: readonly string[];
  readonly ignoreLimits: boolean;
  readonly json: boolean;
  readonly quiet: boolean;
}

interface CheckedTask {
  readonly task: string;
  readonly directory: string;
  readonly digest: string | null;
  readonly passed: boolean;
  /** Why it did not pass, one sentence each. */
  readonly failures: readonly string[];
  readonly lint: readonly LintFinding[];
  readonly runs: readonly GateRun[];
  /** What is not the same between the modes. */
  readonly differences: readonly string[];
}

export async function taskCheck(this: AppContext, flags: TaskCheckFlags, ...inputs: string[]): Promise<void> {
  if (flags.certify && (flags.lint || flags.image !== undefined || flags.network !== undefined || flags.allow !== undefined)) {
    throw new MwError("usage", "a certificate is of all gates, on the task as it is", { fix: "leave --certify out, or --lint, --image, --network and --allow" });
  }
  const checked: CheckedTask[] = [];
  const progress = (text: string): void => {
    if (!flags.quiet) note(this, text);
  };
  let gates: TaskGates | null = null;
  const abort = new AbortController();
  const stopListening = this.onInterrupt(() => abort.abort(new MwError("cancelled", "interrupted")));
  try {
    for await (const entry of readDataset(inputs.map((input) => absoluteInput(this.cwd, input)))) {
      abort.signal.throwIfAborted();
      if (entry.kind === "broken") checked.push(brokenTask(entry.input, entry.error));
      else {
        const { task } = entry;
        const lint = await lintTask(task);
        if (!flags.lint) gates ??= await openTaskGates(this, loadConfig(this.env, this.cwd), { image: flags.image ?? null, network: { network: flags.network ?? null, allow: flags.allow ?? [] }, ignoreLimits: flags.ignoreLimits, progress, signal: abort.signal });
        const judged = judge(task, lint, gates === null ? [] : await gates.run(task));
        checked.push(judged);
        if (flags.certify) progress(`wrote ${await writeCertificate(task.directory, certificateOf(judged, new Date(this.runtime.now()).toISOString()))}`);
      }
      const latest = checked.at(-1);
      if (!flags.json && latest !== undefined) printTask(this, latest);
    }
  } finally {
    stopListening();
    await gates?.close();
  }
  const passed = checked.every((task) => task.passed);
  if (flags.json) printJson(this, { passed, tasks: checked });
  // One input that is no task is bad input; a gate that does not hold is a result.
  if (!passed) this.setExitCode(checked.every((task) => task.digest === null) ? 2 : 1);
}

function certificateOf({ task, digest, passed, failures, lint, runs, differences: found }: CheckedTask, checkedAt: string): Certificate {
  const count = (wanted: LintFinding["level"]): number => lint.filter(({ level }) => level === wanted).length;
  return {
    format: 1,
    task,
    digest,
    checkedAt,
    version: VERSION,
    passed,
    failures: [...failures],
    lint: { errors: count("error"), warnings: count("warning") },
    gates: runs.map(({ agent, mode, outcome, reward, seconds }) => ({ agent, mode, outcome, reward, seconds })),
    differences: [...found],
  };
}

function brokenTask(input: string, error: MwError): CheckedTask {
  return { task: input, directory: input, digest: null, passed: false, failures: [formatError(error).replace(/^error: /, "")], lint: [], runs: [], differences: [] };
}

function judge(task: Task, lint: readonly LintFinding[], runs: readonly GateRun[]): CheckedTask {
  const failures = lint.filter(({ level }) => level === "error").map(({ message }) => message);
  const [first] = runs;
  // What keeps every run from starting is one fault, not one for each.
  if (first?.outcome === "task_error" && first.error !== null && runs.every((run) => run.error === first.error)) failures.push(`${first.outcome}: ${first.error}`);
  else for (const run of runs) {
    const what = `${run.agent === "oracle" ? "the reference" : "doing nothing"}, verified ${run.mode}`;
    if (run.outcome !== "scored") failures.push(`${what}: ${run.outcome}: ${run.error ?? "no reward"}`);
    else if (run.agent === "nop" && run.reward !== 0) failures.push(`${what}, gives reward ${run.reward}, not 0`);
    else if (run.agent === "nop" && run.source === "broken_by_agent") failures.push(`${what}: the verifier fails instead of giving 0`);
    else if (run.agent === "oracle" && (run.reward ?? 0) < 1) failures.push(`${what}, gives reward ${run.reward}, not 1${run.restored.length > 0 ? `; the verifier saw these as the image has them: ${run.restored.slice(0, 5).join(", ")} (declare them in [metadata.manyworlds] agent_owns when they are the work)` : ""}`);
  }
  return { task: task.name, directory: task.directory, digest: task.digest, passed: failures.length === 0, failures, lint, runs, differences: differences(runs) };
}

/** Between the ways in which the same work was verified. */
function differences(runs: readonly GateRun[]): readonly string[] {
  const found: string[] = [];
  for (const agent of ["oracle", "nop"] as const) {
    const [first, ...others] = runs.filter((run) => run.agent === agent);
    for (const other of others) {
      if (first !== undefined && (first.reward !== other.reward || first.outcome !== other.outcome)) {
        found.push(`${agent}: ${first.mode} gives ${first.reward ?? first.outcome}, ${other.mode} gives ${other.reward ?? other.outcome}`);
      }
    }
  }
  return found;
}

function printTask(context: AppContext, task: CheckedTask): void {
  const paint = styler(context.process.stdout, context.env);
  printLine(context, `${task.passed ? paint("green", "pass") : paint("red", "FAIL")} ${printable(task.task)}`);
  for (const run of task.runs) {
    const what = `${run.agent === "oracle" ? "reference" : "nothing"} (${run.mode})`;
    printLine(context, `  ${what.padEnd(22)} ${run.reward === null ? run.outcome : String(run.reward)}  ${run.seconds.toFixed(1)} s`);
  }
  for (const line of task.differences) printLine(context, `  differs: ${printable(line)}`);
  for (const line of task.failures) printLine(context, `  ${paint("red", "fails:")} ${printable(line)}`);
  for (const { level, message, fix } of task.lint) if (level === "warning") printLine(context, `  ${paint("yellow", "warning:")} ${printable(message)}. ${printable(fix)}`);
}
