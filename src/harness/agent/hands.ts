/** Carries out what a model asks for, in its machine, as its user: every action has a record and comes back as text. */
import { posix } from "node:path";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { AGENT_CAN_CAUSE, runCommand, type CommandOptions, type CommandResult } from "../command.ts";
import type { Handover } from "../handover.ts";
import type { HarnessContext } from "../harness.ts";
import { ClippedOutput } from "../output.ts";
import { refuseLost } from "../stop.ts";
import type { Action } from "./action.ts";
import { describeResult } from "./describe-result.ts";
import { AgentShell } from "./shell.ts";

/** Lines of one `read` where the model names no number. */
const READ_LINES = 2000;
const WRITE = 'd=${1%/*}; [ -z "$d" ] || mkdir -p -- "$d" && cat >"$1"';
const LIST = 'cd -- "$1" && ls -1Ap';
const SEARCH = 'if [ -n "$3" ]; then exec grep -rnE --include="$3" -e "$1" -- "$2"; else exec grep -rnE -e "$1" -- "$2"; fi';

type Edit = Extract<Action, { readonly tool: "edit" }>;

/** The whole text that the file is to have, and how many places of it are new. */
interface EditPlan {
  readonly found: number;
  readonly text: string;
}

export class Hands {
  readonly #context: HarnessContext;
  readonly #shell: AgentShell;

  private constructor(context: HarnessContext, shell: AgentShell) {
    this.#context = context;
    this.#shell = shell;
  }

  /** Rejects `invalid_image` when the image has no shell. */
  static async open(context: HarnessContext): Promise<Hands> {
    return new Hands(context, await AgentShell.open(context));
  }

  get shell(): Pick<AgentShell, "kind" | "path"> {
    return this.#shell;
  }

  /** What the model is told. Rejects only when the machine is lost. `handover`: of the one command that it may take. */
  async act(action: Action, handover?: Handover): Promise<string> {
    switch (action.tool) {
      case "shell": {
        const timeoutMs = Math.min(action.timeoutMs ?? Infinity, this.#context.budgets.commandMs);
        return describeResult(this.#checked(await this.#shell.run(action.command, timeoutMs, handover)), timeoutMs);
      }
      case "read":
        return await this.#guarded(async () => this.#numbered(await this.#readText(action.path), action.firstLine ?? 1, action.lines ?? READ_LINES));
      case "write":
        return await this.#guarded(async () => await this.#write(action.path, action.content, handover));
      case "edit":
        return await this.#guarded(async () => await this.#edit(action, handover));
      case "list":
        return this.#outputOf(await this.#command("list", [LIST, this.#absolute(action.path ?? ".")], ["list", action.path ?? "."], { handover }), "The directory is empty.");
      case "search":
        return this.#outputOf(await this.#command("search", [SEARCH, action.pattern, this.#absolute(action.path ?? "."), action.files ?? ""], ["search", action.pattern, action.path ?? "."], { handover }), "Nothing matches.");
      case "finish":
        return "The work is done.";
    }
  }

  /** Files are missing, unreadable, no text: that is the model's to know. */
  async #guarded(work: () => Promise<string>): Promise<string> {
    try {
      return await work();
    } catch (error) {
      if (error instanceof MwError && AGENT_CAN_CAUSE.has(error.code)) return `Error: ${error.message}`;
      throw error;
    }
  }

  async #readText(path: string): Promise<string> {
    const { user, sandbox } = this.#context;
    const bytes = await sandbox.files.read(this.#absolute(path), { maxBytes: LIMITS.agentFileBytes, user: user ?? sandbox.spec.user ?? sandbox.spec.root.user });
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch (error) {
      throw new MwError("invalid_input", `${path} is no UTF-8 text; look at it with the shell`, { cause: error });
    }
  }

  #numbered(text: string, first: number, count: number): string {
    if (text === "") return "The file is empty.";
    const lines = text.split("\n");
    if (lines.at(-1) === "") lines.pop();
    const start = Math.max(1, first);
    if (start > lines.length) return `The file has ${lines.length} lines.`;
    const shown = lines.slice(start - 1, start - 1 + count);
    const rest = lines.length - (start - 1 + shown.length);
    const body = this.#clipped(shown.map((line, at) => `${String(start + at).padStart(6)}\t${line}`).join("\n"));
    return rest === 0 ? body : `${body}\n[... ${rest} lines more]`;
  }

  async #write(path: string, content: string, handover?: Handover): Promise<string> {
    const result = await this.#command("write", [WRITE, this.#absolute(path)], ["write", path], { stdin: content, handover });
    return result.exit.code === 0 ? `Wrote ${Buffer.byteLength(content)} bytes to ${path}.` : this.#outputOf(result, "");
  }

  async #edit(action: Edit, handover?: Handover): Promise<string> {
    const { path } = action;
    // One that has begun has changed what it was worked out from.
    const plan = (handover?.begun?.plan as EditPlan | undefined) ?? (await this.#planned(action));
    if (typeof plan === "string") return plan;
    const { found, text } = plan;
    const result = await this.#command("edit", [WRITE, this.#absolute(path)], ["edit", path], { stdin: text, handover, plan });
    return result.exit.code === 0 ? `Replaced ${found} ${found === 1 ? "occurrence" : "occurrences"} in ${path}.` : this.#outputOf(result, "");
  }

  /** Or why not. */
  async #planned({ path, old, new: replacement, everywhere = false }: Edit): Promise<EditPlan | string> {
    if (old === "") return "Error: the text to replace is empty.";
    if (old === replacement) return "Error: the old and the new text are the same.";
    const text = await this.#readText(path);
    const found = text.split(old).length - 1;
    if (found === 0) return `Error: ${path} does not contain the text to replace.`;
    if (found > 1 && !everywhere) return `Error: the text to replace occurs ${found} times in ${path}; give more of what surrounds it, or ask for all.`;
    return { found, text: text.split(old).join(replacement) };
  }

  /** A script of our own with its arguments, by the shell and never through it. */
  async #command(name: string, [script = "", ...args]: readonly string[], shown: readonly string[], options: Pick<CommandOptions, "stdin" | "handover" | "plan">): Promise<CommandResult> {
    const { budgets } = this.#context;
    return this.#checked(await runCommand(this.#context, { command: ["/bin/sh", "-c", script, name, ...args], shown, agentWasHere: true, timeoutMs: budgets.commandMs, ...options }));
  }

  #checked(result: CommandResult): CommandResult {
    this.#context.signal.throwIfAborted();
    refuseLost(result.exit, "a command of the model");
    return result;
  }

  #outputOf(result: CommandResult, empty: string): string {
    const { exit, stdout, stderr } = result;
    if (exit.code === 0 || (exit.code === 1 && stderr.length === 0)) return stdout.length === 0 ? empty : new TextDecoder("utf-8", { ignoreBOM: true }).decode(stdout);
    return `Error: ${describeResult(result, this.#context.budgets.commandMs)}`;
  }

  #clipped(text: string): string {
    const bytes = Buffer.from(text);
    const output = new ClippedOutput(this.#context.budgets.outputBytes);
    output.push(bytes);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(output.render(bytes.length));
  }

  #absolute(path: string): string {
    const { workdir, sandbox } = this.#context;
    return posix.resolve("/", workdir ?? sandbox.spec.workdir ?? sandbox.spec.root.workdir, path);
  }
}
