/**
 * The shell that a model works in: every command is a process of its own, yet working directory, exported variables and (in bash) functions carry over.
 *
 * One long-lived shell would die with the first `exit`, hang with the first open quote, and need marks in its output to tell where a command ends, which output
 * can forge. So each command runs in a fresh shell that first restores the state which the one before it saved, in files of a directory of the harness. The exit
 * code is that of the process; nothing is read from its output. A command that is killed or replaces its shell (`exec`) saves nothing: the state before it holds.
 *
 * The command arrives on stdin, not in the argv: it may be long, and `pkill -f` in it does not find its own shell. Its own stdin is /dev/null; stdout and stderr
 * are one stream, in the order in which they were written. The shell is neither a login nor an interactive one: PATH is the image's.
 */
import { MwError } from "../../core/errors.ts";
import type { HarnessContext } from "../harness.ts";
import { runCommand, type CommandResult } from "../command.ts";
import type { Handover } from "../handover.ts";

/** Below /run, which is never part of a verified workspace. */
const STATE = "/run/mw-shell";

/** Quiet tools: nothing pages, asks or draws. */
const ENV: Readonly<Record<string, string>> = { PAGER: "cat", GIT_PAGER: "cat", MANPAGER: "cat", TERM: "dumb", DEBIAN_FRONTEND: "noninteractive" };

/**
 * `$1`: state directory, `$2`: `bash` or `sh`, `$3`: directory to start in. The process itself starts in /, which the agent cannot take away. `at` is a list of slot numbers, appended to and never truncated, so that a kill at any byte leaves the last complete
 * state in force; the two slots alternate. Only builtins are used, because the command may have broken PATH.
 */
const PREPARE = String.raw`
__mw_d=$1 __mw_k=$2 __mw_w=$3 __mw_s= __mw_x= __mw_cwd=
set --
if [ "$__mw_k" = bash ]; then IFS= read -r -d '' __mw_c
else __mw_c=$(cat && printf x) || exit 127; __mw_c=\${__mw_c%x}; fi
exec </dev/null 2>&1
if [ -r "$__mw_d/at" ]; then
  while IFS= read -r __mw_x; do __mw_s=$__mw_x; done <"$__mw_d/at"
fi
if [ -n "$__mw_s" ]; then
  if [ "$__mw_k" = bash ]; then
    for __mw_x in $(compgen -e); do unset "$__mw_x"; done 2>/dev/null
    . "$__mw_d/functions$__mw_s" 2>/dev/null
  fi
  . "$__mw_d/env$__mw_s" 2>/dev/null
fi
if ! cd -- "\${__mw_cwd:-$__mw_w}" 2>/dev/null; then
  cd -- "$__mw_w" 2>/dev/null
  printf '%s: the working directory %s is gone; this is %s\n' "$__mw_k" "\${__mw_cwd:-$__mw_w}" "$PWD"
fi
unset __mw_cwd OLDPWD
__mw_save='{
  set +eux
  case $__mw_s in a) __mw_s=b ;; *) __mw_s=a ;; esac
  if [ "$__mw_k" = bash ]; then declare -f >|"$__mw_d/functions$__mw_s"; fi
  __mw_cwd=$PWD
  export __mw_cwd
  export -p >|"$__mw_d/env$__mw_s" && printf "%s\n" "$__mw_s" >>"$__mw_d/at"
} 2>/dev/null'
trap 'eval "$__mw_save"' EXIT
unset __mw_x
`.replaceAll("\\${", "${");

/** On one line, so that the shell's messages count the lines of the command alone. */
const WRAPPER = 'eval "$4"; eval "$__mw_c"; __mw_x=$?; eval "$__mw_save"; __mw_save=; exit $__mw_x';

export class AgentShell {
  readonly #context: HarnessContext;
  readonly path: string;

  private constructor(context: HarnessContext, path: string) {
    this.#context = context;
    this.path = path;
  }

  /** In a machine that goes on from a checkpoint the shell does too. Rejects `invalid_image` when the image has no shell. */
  static async open(context: HarnessContext): Promise<AgentShell> {
    const { sandbox, signal, user, workdir } = context;
    const from = context.continuity?.from ?? null;
    if (from !== null && from.shell !== null) return new AgentShell(context, from.shell);
    const probe = await sandbox.run({
      command: ["/bin/sh", "-c", "command -v bash || echo /bin/sh"],
      // As the agent's commands will run, so that a user or directory that cannot be is found now.
      ...(user === null ? {} : { user }),
      ...(workdir === null ? {} : { cwd: workdir }),
      timeoutMs: 30_000,
      maxOutputBytes: 4096,
      signal,
    });
    signal.throwIfAborted();
    const path = Buffer.from(probe.stdout).toString("utf8").trim();
    if (probe.code !== 0 || !/^\/[^\n]{0,255}$/.test(path)) {
      throw new MwError("invalid_image", "The bash harness found no shell in the image: /bin/sh does not run.", { fix: "Use an image with /bin/sh, or another harness." });
    }
    const goesOn = from !== null && (await sandbox.files.stat(STATE)) !== null;
    if (!goesOn) await sandbox.files.remove(STATE);
    if (!goesOn) await sandbox.files.mkdir(STATE, { mode: 0o700, owner: user ?? sandbox.spec.user ?? (sandbox.spec.root.user || "0:0") });
    return new AgentShell(context, path);
  }

  /** What the tool's description tells the model. */
  get kind(): "bash" | "sh" {
    return this.path.endsWith("/bash") ? "bash" : "sh";
  }

  #start(): string {
    const { workdir, sandbox } = this.#context;
    const named = workdir ?? sandbox.spec.workdir ?? sandbox.spec.root.workdir;
    return named.startsWith("/") ? named : `/${named}`;
  }

  async run(command: string, timeoutMs: number, handover?: Handover): Promise<CommandResult> {
    return await runCommand(this.#context, {
      command: [this.path, "-c", WRAPPER, this.kind, STATE, this.kind, this.#start(), PREPARE],
      cwd: "/",
      agentWasHere: true,
      shown: command,
      stdin: command,
      env: ENV,
      timeoutMs,
      handover,
    });
  }
}
