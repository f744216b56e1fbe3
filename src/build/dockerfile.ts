/**
 * Reads a Dockerfile into stages of typed instructions. Splitting into instructions, flags and heredocs is dockerfile-ast's; variables stay unexpanded, since
 * their values are known only while the stage runs. What the executor could not do faithfully is refused here, by name and line.
 */
import { DockerfileParser, type Instruction as AstInstruction } from "dockerfile-ast";
import { MwError } from "../core/errors.ts";
import { splitAssignments, splitWords } from "./words.ts";

export interface Heredoc {
  readonly name: string;
  readonly content: string;
  /** False when the delimiter was quoted: the content is taken as it stands. */
  readonly expand: boolean;
}

/** A command line in one of Docker's two forms. */
export type CommandLine = { readonly form: "exec"; readonly argv: readonly string[] } | { readonly form: "shell"; readonly line: string };

export interface CopyInstruction {
  readonly kind: "copy";
  readonly line: number;
  readonly text: string;
  readonly add: boolean;
  readonly sources: readonly string[];
  readonly heredocs: readonly Heredoc[];
  readonly destination: string;
  readonly from: string | null;
  readonly chown: string | null;
  readonly chmod: string | null;
  readonly exclude: readonly string[];
}

export type Instruction =
  | { readonly kind: "run"; readonly line: number; readonly text: string; readonly command: CommandLine; readonly heredocs: readonly Heredoc[]; readonly network: "default" | "none" }
  | CopyInstruction
  | { readonly kind: "env" | "label" | "arg"; readonly line: number; readonly text: string; readonly pairs: readonly { readonly name: string; readonly value: string | null }[] }
  | { readonly kind: "workdir" | "user"; readonly line: number; readonly text: string; readonly value: string }
  | { readonly kind: "shell"; readonly line: number; readonly text: string; readonly argv: readonly string[] }
  | { readonly kind: "cmd" | "entrypoint"; readonly line: number; readonly text: string; readonly command: CommandLine };

export interface Stage {
  readonly name: string | null;
  /** Unexpanded; only global arguments may appear in it. */
  readonly base: string;
  readonly line: number;
  readonly instructions: readonly Instruction[];
}

export interface Dockerfile {
  readonly globalArgs: readonly { readonly name: string; readonly value: string | null }[];
  readonly stages: readonly Stage[];
  readonly escape: string;
  /** Instructions that say something which has no effect on a sandbox (EXPOSE, HEALTHCHECK...), for people. */
  readonly warnings: readonly string[];
}

const IGNORED: Readonly<Record<string, string>> = {
  EXPOSE: "ports are declared by the task",
  STOPSIGNAL: "machines are ended, not stopped",
  MAINTAINER: "not used",
  VOLUME: "a machine has one disk; the path is an ordinary directory",
  HEALTHCHECK: "health checks are declared in task.toml",
};

/** Parses Dockerfile text; `file` is used in messages. Throws `invalid_image` naming file, line and what to change. */
export function parseDockerfile(text: string, file: string): Dockerfile {
  // Windows line ends and a byte order mark are common in task directories and mean nothing here.
  const document = DockerfileParser.parse(text.replace(/^\uFEFF/, "").replaceAll("\r\n", "\n"));
  const escape = document.getEscapeCharacter();
  const source = text.replace(/^\uFEFF/, "").replaceAll("\r\n", "\n").split("\n");
  const globalArgs: { name: string; value: string | null }[] = [];
  const stages: { name: string | null; base: string; line: number; instructions: Instruction[] }[] = [];
  const warnings: string[] = [];

  for (const ast of document.getInstructions()) {
    const at = new Position(file, ast.getRange().start.line + 1);
    const keyword = ast.getKeyword();
    const parts = dissect(ast, source, escape);
    if (keyword === "FROM") {
      stages.push(parseFrom(parts, at));
      continue;
    }
    const stage = stages.at(-1);
    if (stage === undefined) {
      if (keyword !== "ARG") throw at.error(`${keyword} stands before the first FROM`, "Start the Dockerfile with FROM; only ARG may come before it.");
      globalArgs.push(...assignments(parts, escape, at, true));
      continue;
    }
    const ignored = IGNORED[keyword];
    if (ignored !== undefined) warnings.push(`${file}:${at.line}: ${keyword} has no effect here: ${ignored}`);
    else stage.instructions.push(parseInstruction(keyword, parts, escape, at));
  }
  if (stages.length === 0) throw new MwError("invalid_image", `${file} has no FROM instruction`, { fix: "Begin with `FROM <image>`." });
  return { globalArgs, stages, escape, warnings };
}

class Position {
  readonly file: string;
  readonly line: number;
  constructor(file: string, line: number) {
    this.file = file;
    this.line = line;
  }

  error(what: string, fix: string): MwError {
    return new MwError("invalid_image", `${this.file}:${this.line}: ${what}`, { fix, facts: { file: this.file, line: this.line } });
  }
}

interface Parts {
  readonly flags: readonly { readonly name: string; readonly value: string }[];
  /** The arguments after the flags, continuations joined and comment lines inside them dropped; without heredoc bodies. */
  readonly rest: string;
  readonly heredocs: readonly Heredoc[];
  /** The instruction as written, for cache keys and progress. */
  readonly text: string;
}

/** Takes an instruction apart from its source lines. */
function dissect(ast: AstInstruction, source: readonly string[], escape: string): Parts {
  const range = ast.getRange();
  const lines = source.slice(range.start.line, range.end.line + 1);
  const heredocs = heredocsOf(ast, lines);
  const headLines = heredocs.length > 0 ? lines.slice(0, 1) : lines;
  const joined = joinContinuations(headLines, escape);
  let rest = joined.trimStart().slice(ast.getInstruction().length).trim();
  const flags: { name: string; value: string }[] = [];
  for (;;) {
    const match = /^--([a-z][a-z-]*)(?:=("[^"]*"|\S*))?\s*/.exec(rest);
    if (match === null) break;
    flags.push({ name: match[1] ?? "", value: (match[2] ?? "true").replace(/^"(.*)"$/, "$1") });
    rest = rest.slice(match[0].length);
  }
  return { flags, rest, heredocs, text: lines.join("\n").trim() };
}

/** A trailing escape joins the next line; comment lines and empty lines between are dropped, as Docker does. */
function joinContinuations(lines: readonly string[], escape: string): string {
  let joined = "";
  let continued = false;
  for (const line of lines) {
    if (continued && /^\s*(#.*)?$/.test(line)) continue;
    const trimmed = line.trimEnd();
    continued = trimmed.endsWith(escape);
    joined += continued ? trimmed.slice(0, -escape.length) : line;
  }
  return joined;
}

const HEREDOC_START = /<<(-?)(["']?)([A-Za-z_][A-Za-z0-9_]*)\2/g;

/** Heredoc bodies by the markers on the instruction's first line; present only where Docker allows them (RUN, COPY, ADD). */
function heredocsOf(ast: AstInstruction, lines: readonly string[]): readonly Heredoc[] {
  if (!["RUN", "COPY", "ADD"].includes(ast.getKeyword())) return [];
  const heredocs: Heredoc[] = [];
  let at = 1;
  for (const [, dash, quote, name = ""] of (lines[0] ?? "").matchAll(HEREDOC_START)) {
    const body: string[] = [];
    for (; at < lines.length; at++) {
      const line = dash === "-" ? (lines[at] ?? "").replace(/^\t+/, "") : (lines[at] ?? "");
      if (line === name) break;
      body.push(line);
    }
    if (at >= lines.length) return [];
    at++;
    heredocs.push({ name, content: body.map((line) => `${line}\n`).join(""), expand: quote === "" });
  }
  return heredocs;
}

function parseFrom(parts: Parts, at: Position): { name: string | null; base: string; line: number; instructions: Instruction[] } {
  for (const flag of parts.flags) {
    if (flag.name !== "platform") throw at.error(`FROM --${flag.name} is not known`, "Remove the flag.");
    if (!/^(linux\/(amd64|arm64)|\$\{?(BUILD|TARGET)PLATFORM\}?)$/.test(flag.value)) {
      throw at.error(`FROM --platform=${flag.value}: machines run the host's own platform`, "Remove the flag, or use a host of that platform.");
    }
  }
  const match = /^(\S+)(?:\s+as\s+(\S+))?$/i.exec(parts.rest);
  if (match === null) throw at.error(`FROM ${parts.rest}: expected \`FROM image [AS name]\``, "Write one image and at most one stage name.");
  return { base: match[1] ?? "", name: match[2]?.toLowerCase() ?? null, line: at.line, instructions: [] };
}

function parseInstruction(keyword: string, parts: Parts, escape: string, at: Position): Instruction {
  const { text } = parts;
  const { line } = at;
  switch (keyword) {
    case "RUN":
      return { kind: "run", line, text, command: commandLine(parts.rest, at), heredocs: parts.heredocs, network: runNetwork(parts, at) };
    case "COPY":
    case "ADD":
      return parseCopy(keyword, parts, escape, at);
    case "ENV":
    case "LABEL":
    case "ARG":
      noFlags(keyword, parts, at);
      return { kind: keyword === "ENV" ? "env" : keyword === "LABEL" ? "label" : "arg", line, text, pairs: assignments(parts, escape, at, keyword === "ARG") };
    case "WORKDIR":
    case "USER":
      noFlags(keyword, parts, at);
      if (parts.rest === "") throw at.error(`${keyword} needs a value`, keyword === "USER" ? "Write USER name, or USER uid:gid." : "Write WORKDIR /path.");
      return { kind: keyword === "USER" ? "user" : "workdir", line, text, value: parts.rest };
    case "SHELL": {
      const argv = execForm(parts.rest);
      if (argv === null || argv.length === 0) throw at.error("SHELL needs a JSON array", 'Write SHELL ["/bin/bash", "-c"].');
      return { kind: "shell", line, text, argv };
    }
    case "CMD":
    case "ENTRYPOINT":
      return { kind: keyword === "CMD" ? "cmd" : "entrypoint", line, text, command: commandLine(parts.rest, at, true) };
    default:
      throw at.error(`${keyword} cannot be built here`, "Remove the instruction, or build the image elsewhere and import it with `mw image import`.");
  }
}

function runNetwork(parts: Parts, at: Position): "default" | "none" {
  let network: "default" | "none" = "default";
  for (const flag of parts.flags) {
    if (flag.name === "network" && (flag.value === "none" || flag.value === "default")) network = flag.value;
    // A cache mount only speeds a build up: without one the directory is an ordinary one, removed with the step.
    else if (flag.name === "mount" && /(^|,)type=cache(,|$)/.test(flag.value)) continue;
    else throw at.error(`RUN --${flag.name}=${flag.value} cannot be built here`, "Remove the flag, or install buildah, which is used for what this builder cannot do.");
  }
  return network;
}

function parseCopy(keyword: string, parts: Parts, escape: string, at: Position): CopyInstruction {
  const flags = new Map<string, string>();
  const exclude: string[] = [];
  for (const { name, value } of parts.flags) {
    if (name === "exclude") exclude.push(value);
    // `--link` is about layer reuse, not about what ends up in the image.
    else if (name === "chown" || name === "chmod" || name === "link" || (name === "from" && keyword === "COPY")) flags.set(name, value);
    else throw at.error(`${keyword} --${name} cannot be built here`, "Remove the flag, or install buildah, which is used for what this builder cannot do.");
  }
  const words = execForm(parts.rest) ?? splitWords(parts.rest, escape);
  const destination = words.at(-1);
  const sources = words.slice(0, -1).filter((word) => !new RegExp(HEREDOC_START.source).test(word));
  if (destination === undefined || words.length < 2) throw at.error(`${keyword} needs at least one source and a destination`, `Write ${keyword} source... destination.`);
  const remote = sources.find((source) => /^(https?|git|ssh):\/\/|^git@/.test(source));
  if (keyword === "ADD" && remote !== undefined) {
    throw at.error(`ADD ${remote}: builds fetch nothing by ADD`, "Download the file into the build context and use COPY, or fetch it in a RUN step.");
  }
  return {
    kind: "copy",
    line: at.line,
    text: parts.text,
    add: keyword === "ADD",
    sources,
    heredocs: parts.heredocs,
    destination,
    from: flags.get("from") ?? null,
    chown: flags.get("chown") ?? null,
    chmod: flags.get("chmod") ?? null,
    exclude,
  };
}

function assignments(parts: Parts, escape: string, at: Position, bareNames: boolean): { name: string; value: string | null }[] {
  const pairs = splitAssignments(parts.rest, escape, bareNames);
  if (pairs === null) throw at.error(`cannot read the assignments in \`${parts.rest}\``, "Write NAME=value, with quotes around values that hold spaces.");
  return pairs;
}

function noFlags(keyword: string, parts: Parts, at: Position): void {
  const flag = parts.flags[0];
  if (flag !== undefined) throw at.error(`${keyword} takes no flag --${flag.name}`, "Remove the flag.");
}

function commandLine(rest: string, at: Position, mayBeEmpty = false): CommandLine {
  const argv = execForm(rest);
  if (argv !== null) return { form: "exec", argv };
  if (rest === "" && !mayBeEmpty) throw at.error("the instruction has no command", "Write the command after it.");
  return { form: "shell", line: rest };
}

/** The JSON array form, or null when the text is not one (then Docker takes it as a shell line, too). */
function execForm(text: string): string[] | null {
  if (!text.startsWith("[")) return null;
  try {
    const value: unknown = JSON.parse(text);
    return Array.isArray(value) && value.every((item) => typeof item === "string") ? value : null;
  } catch {
    return null;
  }
}
