/**
 * A seeded draw of tool faces: names, descriptions, arguments, their order, spelling and nesting. A policy that is trained on many faces of the same tools learns the tools and
 * not the names. The same seed gives the same faces, whatever else is drawn.
 */
import { seededRandom } from "../../core/runtime.ts";
import { parametersOf, type ToolName } from "./action.ts";
import type { ParameterFace, Spelling, ToolFace } from "./face.ts";

interface Choices {
  readonly names: readonly string[];
  readonly descriptions: readonly string[];
  readonly parameters: Readonly<Record<string, { readonly names: readonly string[]; readonly descriptions: readonly string[]; readonly spellings?: readonly Spelling[] }>>;
}

const PATHS = { names: ["path", "file_path", "filePath", "file", "filename", "target_file"], descriptions: ["Path of the file.", "The file, absolute or below the working directory.", "Which file.", ""] };

const CHOICES: Readonly<Record<ToolName, Choices>> = {
  shell: {
    names: ["bash", "shell", "run_command", "execute", "terminal", "run_shell_command", "exec_command", "sh"],
    descriptions: [
      "Runs a command in the machine's shell and returns its exit code and output. Directory and exported variables are kept between calls.",
      "Execute a shell script. stdout and stderr come back together, after the exit code. State such as the working directory persists.",
      "Use this to run programs: the text is given to a shell. Input is not interactive; start long work in the background.",
    ],
    parameters: {
      command: { names: ["command", "cmd", "script", "code", "input"], descriptions: ["The command.", "What to run; may have several lines.", "Shell script text.", ""], spellings: ["plain", "plain", "argv"] },
      timeoutMs: { names: ["timeout", "timeout_ms", "time_limit", "max_time"], descriptions: ["Longest time that it may take.", "Limit on its time."], spellings: ["plain", "seconds", "number_text"] },
    },
  },
  read: {
    names: ["read_file", "Read", "view", "open_file", "cat_file", "view_file", "get_file"],
    descriptions: ["Returns the text of a file with line numbers.", "Reads a file, or some of its lines.", "Show what is in a file."],
    parameters: {
      path: PATHS,
      firstLine: { names: ["offset", "start_line", "from_line", "line"], descriptions: ["First line to return, counted from 1.", "Where to begin (lines, from 1).", ""] },
      lines: { names: ["limit", "num_lines", "count", "max_lines"], descriptions: ["How many lines at most.", "Number of lines.", ""] },
    },
  },
  write: {
    names: ["write_file", "Write", "create_file", "save_file", "put_file"],
    descriptions: ["Writes a file, replacing what was there.", "Creates a file with the given text, and the directories above it.", "Save text to a file."],
    parameters: { path: PATHS, content: { names: ["content", "contents", "text", "file_text", "data"], descriptions: ["The whole text of the file.", "Text to write.", ""] } },
  },
  edit: {
    names: ["edit_file", "Edit", "str_replace", "replace", "replace_in_file", "substitute"],
    descriptions: [
      "Replaces a text that occurs exactly once in a file.",
      "Exact string replacement in a file; the old text must be unique unless all occurrences are asked for.",
      "Change part of a file: give the present text and the new one.",
    ],
    parameters: {
      path: PATHS,
      old: { names: ["old_string", "oldString", "old_text", "search", "find"], descriptions: ["The text as it stands in the file.", "Text to be replaced, exactly.", ""] },
      new: { names: ["new_string", "newString", "new_text", "replacement", "replace_with"], descriptions: ["The text that takes its place.", "Replacement.", ""] },
      everywhere: { names: ["replace_all", "replaceAll", "all", "global", "allow_multiple"], descriptions: ["Replace every occurrence.", ""] },
    },
  },
  list: {
    names: ["list_directory", "ls", "list_files", "dir", "list"],
    descriptions: ["Lists a directory.", "Names in a directory, directories with a slash behind them.", "Show what a directory holds."],
    parameters: { path: { names: ["path", "dir_path", "directory", "dir"], descriptions: ["The directory; default the working directory.", "Which directory.", ""] } },
  },
  search: {
    names: ["grep", "search_files", "grep_search", "find_text", "search"],
    descriptions: ["Finds lines that match a regular expression.", "Searches the files below a directory with an extended regular expression.", "grep over files."],
    parameters: {
      pattern: { names: ["pattern", "regex", "query", "expression"], descriptions: ["Extended regular expression.", "What to look for (ERE).", ""] },
      path: { names: ["path", "dir_path", "directory", "root"], descriptions: ["File or directory; default the working directory.", "Where to look.", ""] },
      files: { names: ["include", "glob", "file_pattern", "include_pattern"], descriptions: ["Only files whose names match, such as *.py.", "File name pattern.", ""] },
    },
  },
  finish: {
    names: ["finish", "submit", "done", "complete_task", "task_complete"],
    descriptions: ["Call this when the task is done.", "Ends the work.", "Declare the task finished."],
    parameters: { message: { names: ["message", "summary", "answer", "result"], descriptions: ["A last word.", "What was done.", ""] } },
  },
};

const WRAPPERS = ["input", "args", "parameters", "params"] as const;
/** Arguments that models are often asked for, which change nothing. */
const ASIDES: readonly Pick<ParameterFace, "name" | "description">[] = [
  { name: "description", description: "What this does, in a few words." },
  { name: "reason", description: "Why." },
  { name: "explanation", description: "One sentence on what this is for." },
];

export function drawFaces(seed: string, tools: readonly ToolName[]): readonly ToolFace[] {
  const taken = new Set<string>();
  // Each tool draws from a stream of its own, so that a tool more changes nothing of the others but a name that both would have.
  const faces = tools.map((tool) => drawFace(tool, seededRandom(`${seed}/face/${tool}`), taken));
  return shuffle(faces, seededRandom(`${seed}/faces`));
}

function drawFace(tool: ToolName, random: () => number, taken: Set<string>): ToolFace {
  const choices = CHOICES[tool];
  const name = pickFree(choices.names, taken, random);
  const description = pick(choices.descriptions, random);
  const within = new Set<string>();
  const parameters = parametersOf(tool).flatMap(([stands, { required }]): ParameterFace[] => {
    const choice = choices.parameters[stands];
    if (choice === undefined) throw new Error(`nothing to draw for ${tool}.${stands}`);
    const drawn = { stands, name: pickFree(choice.names, within, random), description: pick(choice.descriptions, random), spelling: pick<Spelling>(choice.spellings ?? ["plain"], random) };
    const shown = random() < 0.75;
    return required || shown ? [drawn] : [];
  });
  const aside = pick(ASIDES, random);
  const asks = random() < 0.25 && !within.has(aside.name);
  const wrapper = random() < 0.15 ? pick(WRAPPERS, random) : null;
  return { tool, name, description, parameters: shuffle(asks ? [...parameters, { ...aside, stands: null, spelling: "plain" }] : parameters, random), wrapper };
}

function pick<T>(list: readonly T[], random: () => number): T {
  // The lists above are not empty.
  return list[Math.floor(random() * list.length)] as T;
}

function pickFree(names: readonly string[], taken: Set<string>, random: () => number): string {
  const free = names.filter((name) => !taken.has(name));
  const name = free.length > 0 ? pick(free, random) : `${pick(names, random)}_${taken.size}`;
  taken.add(name);
  return name;
}

function shuffle<T>(list: readonly T[], random: () => number): readonly T[] {
  return list
    .map((item) => [random(), item] as const)
    .toSorted(([a], [b]) => a - b)
    .map(([, item]) => item);
}
