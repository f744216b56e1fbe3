/**
 * A descriptor says how an agent CLI of others is installed, started, spoken to and understood. It is data: everything that is particular to one CLI is in its
 * descriptor, and nothing of it anywhere else.
 *
 * Texts of `command`, `env` and `files` are templates (`template.ts`).
 */
import type { StopReason } from "../../core/outcome.ts";
import type { Dialect } from "../../gateway/conversation.ts";

export interface NpmInstall {
  readonly kind: "npm";
  readonly package: string;
  /** Dependencies are chosen among what was published before this day (ISO date), so that the same descriptor gives the same tree. */
  readonly before: string;
  /** Exact version of the Node that it runs on, from the registry; null for CLIs that are programs of their own. */
  readonly node: string | null;
}

export interface PypiInstall {
  readonly kind: "pypi";
  /** Everything, pinned: `name==version`. Dependencies are not resolved. */
  readonly requirements: readonly string[];
  /** Lowest Python that runs it; the baking host's is taken along. */
  readonly minPython: readonly [number, number];
}

export interface NoInstall {
  readonly kind: "none";
}

export interface ConfigFile {
  /** Relative to the CLI's own directory, `{home}`. */
  readonly path: string;
  /** How `content` is written; JSON is YAML, too. */
  readonly format: "json" | "toml" | "text";
  /** Every text in it is a template; one that is a single placeholder of a number becomes that number. */
  readonly content: unknown;
}

/** What an exit means. The first that fits is taken; exits that none fits are `finished` for 0 and `crashed` otherwise. */
export interface EndingRule {
  /** Exit codes to which it applies; absent: all but 0. With 0 among them, the text must be one that the model's own words cannot make. */
  readonly codes?: readonly number[];
  /** A regular expression (case-insensitive, `^` and `$` at lines) over the end of stdout, then of stderr; absent: the code alone decides. */
  readonly text?: string;
  /** A stop reason; or whose failure it was: the model server's, or the CLI's own. */
  readonly means: StopReason | "model_error" | "harness_error";
  readonly detail: string;
}

export interface CliDescriptor {
  readonly name: string;
  readonly title: string;
  /** Exact version of the package. */
  readonly version: string;
  /** The model API that it speaks. */
  readonly dialect: Dialect;
  readonly install: NpmInstall | PypiInstall | NoInstall;
  /** Globs below the installation of what is not needed to run it. */
  readonly remove: readonly string[];
  /** argv. The first word is an absolute path, so that the image's PATH never decides what runs. */
  readonly command: readonly string[];
  /** The command is the user's own and no template. */
  readonly literalCommand?: true;
  /** Appended to the command when the agent is root inside. */
  readonly rootArgs?: readonly string[];
  /**
   * How the task reaches it, byte for byte:
   * - `stdin`: on standard input.
   * - `argument`: as the last argument.
   * - `split`: what of its beginning the CLI would take for an option (`-`) or a file (`@`) on standard input, the rest as the last argument; for CLIs that put the two
   *   together, and strip blanks off the former only.
   * - `file`: in a configuration file that holds `{instruction}`.
   */
  readonly instruction: "stdin" | "argument" | "split" | "file";
  /** The CLI itself strips blanks at both ends of the task, and has no way that does not. */
  readonly trimsInstruction?: true;
  /** The command with which the model says that it is done, for CLIs that take no answer without a tool call for an end. */
  readonly doneCommand?: string;
  readonly files: readonly ConfigFile[];
  readonly env: Readonly<Record<string, string>>;
  readonly rootEnv?: Readonly<Record<string, string>>;
  /**
   * A program that it cannot do without: the baking host's is taken along as `{root}/bin/PROGRAM`. Where the image has none of that name, the variable names it, or (null)
   * that directory comes last on the PATH.
   */
  readonly companion?: { readonly program: string; readonly variable: string | null };
  readonly endings: readonly EndingRule[];
  /** Files and directories below `{home}` that are kept with the rollout: session logs. */
  readonly logs: readonly string[];
  /** What one has to know, for `docs/harnesses.md` and `mw harness ls`. */
  readonly quirks: readonly string[];
}
