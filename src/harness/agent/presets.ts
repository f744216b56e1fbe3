/**
 * Tool interfaces that resemble those of widely used agents, so that a policy can be trained on what it will meet there without running them. Names, arguments and their order follow
 * what those agents send (seen on the wire of the versions in docs/harnesses.md); the words are ours.
 */
import type { ToolName } from "./action.ts";
import type { ParameterFace, Spelling, ToolFace } from "./face.ts";

type Parameter = readonly [stands: string | null, name: string, description: string, spelling?: Spelling];

const face = (tool: ToolName, name: string, description: string, parameters: readonly Parameter[]): ToolFace => ({
  tool,
  name,
  description,
  parameters: parameters.map(([stands, shown, words, spelling = "plain"]): ParameterFace => ({ stands, name: shown, description: words, spelling })),
  wrapper: null,
});

const SHELL = "Runs a command in the machine's shell and returns its exit code and output. The working directory and exported variables are kept between calls; input is not interactive.";

export const PRESETS = {
  bash: [face("shell", "bash", SHELL, [["command", "command", "The command, as a script for the shell. It may have several lines."]])],
  "claude-like": [
    face("shell", "Bash", SHELL, [["command", "command", "The command."], ["timeoutMs", "timeout", "Longest time in milliseconds."], [null, "description", "What the command does, in a few words."]]),
    face("read", "Read", "Reads a file and returns its lines with their numbers.", [["path", "file_path", "Absolute path of the file."], ["firstLine", "offset", "First line to read."], ["lines", "limit", "Number of lines to read."]]),
    face("edit", "Edit", "Replaces a text in a file. The old text must occur exactly once, unless all occurrences are to be replaced.", [
      ["path", "file_path", "Absolute path of the file."],
      ["old", "old_string", "The text to be replaced."],
      ["new", "new_string", "The text that takes its place."],
      ["everywhere", "replace_all", "Replace every occurrence (default false)."],
    ]),
    face("write", "Write", "Writes a file, replacing what was there.", [["path", "file_path", "Absolute path of the file."], ["content", "content", "The whole text of the file."]]),
    face("search", "Grep", "Finds lines that match a regular expression.", [["pattern", "pattern", "The regular expression."], ["path", "path", "File or directory to search in."], ["files", "glob", "Only files whose names match this pattern."]]),
  ],
  "codex-like": [
    face("shell", "exec_command", SHELL, [["command", "cmd", "Shell command to run."], [null, "justification", "Why it has to run."], ["timeoutMs", "yield_time_ms", "Longest time in milliseconds."]]),
  ],
  "gemini-like": [
    face("list", "list_directory", "Lists the names in a directory.", [["path", "dir_path", "The directory."]]),
    face("read", "read_file", "Reads a file, or some of its lines.", [["path", "file_path", "The file."], ["firstLine", "start_line", "First line, counted from 1."], ["lines", "line_count", "Number of lines."]]),
    face("search", "grep_search", "Finds a regular expression in files.", [["pattern", "pattern", "The regular expression."], ["path", "dir_path", "Where to search."], ["files", "include_pattern", "Only files whose names match this pattern."]]),
    face("edit", "replace", "Replaces a text within a file.", [
      ["path", "file_path", "The file."],
      [null, "instruction", "What the change is for."],
      ["old", "old_string", "The exact text to be replaced."],
      ["new", "new_string", "The exact text that takes its place."],
      ["everywhere", "allow_multiple", "Replace every occurrence."],
    ]),
    face("write", "write_file", "Writes text to a file.", [["path", "file_path", "The file."], ["content", "content", "The text."]]),
    face("shell", "run_shell_command", SHELL, [["command", "command", "The command."], [null, "description", "What it does."]]),
  ],
  "opencode-like": [
    face("shell", "bash", SHELL, [["command", "command", "The command."], ["timeoutMs", "timeout", "Longest time in milliseconds."], [null, "description", "What the command does in 5 to 10 words."]]),
    face("read", "read", "Reads a file.", [["path", "filePath", "The file."], ["firstLine", "offset", "First line."], ["lines", "limit", "Number of lines."]]),
    face("edit", "edit", "Replaces a text in a file.", [["path", "filePath", "The file."], ["old", "oldString", "The text to replace."], ["new", "newString", "The text to put there."], ["everywhere", "replaceAll", "Replace every occurrence."]]),
    face("write", "write", "Writes a file.", [["content", "content", "The text."], ["path", "filePath", "The file."]]),
    face("search", "grep", "Searches file contents.", [["pattern", "pattern", "The regular expression."], ["path", "path", "Directory to search in."], ["files", "include", "File pattern."]]),
    face("list", "list", "Lists a directory.", [["path", "path", "The directory."]]),
  ],
} as const satisfies Readonly<Record<string, readonly ToolFace[]>>;

export type PresetName = keyof typeof PRESETS;
