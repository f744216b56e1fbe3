/** Help as it fits the terminal: long descriptions go on below themselves, and a switch that is off by default does not say so. */
import type { OutputStream } from "./context.ts";

const DEFAULT_COLUMNS = 100;

export function fitHelp(text: string, columns: number): string {
  return text
    .split("\n")
    .flatMap((line) => fitLine(line.replace(/ +\[default = false\]$/, "").replace(/ +(\[default = )/, " $1"), columns))
    .join("\n");
}

/** The same stream for a command line that asks for help. */
export function helpStream(stream: OutputStream): OutputStream {
  return { write: (text) => stream.write(fitHelp(text, stream.columns ?? DEFAULT_COLUMNS)), isTTY: stream.isTTY, columns: stream.columns };
}

export function asksForHelp(inputs: readonly string[]): boolean {
  const end = inputs.indexOf("--");
  return inputs.length === 0 || (end === -1 ? inputs : inputs.slice(0, end)).some((input) => input === "--help" || input === "-h");
}

function fitLine(line: string, columns: number): string[] {
  // The description begins after the last gap; what goes on stands below it.
  const indent = /^.* {2,}(?=\S)/.exec(line)?.[0].length ?? 0;
  if (line.length <= columns || indent > columns / 2) return [line];
  const lines = [line.slice(0, indent)];
  for (const word of line.slice(indent).split(" ")) {
    const last = lines.at(-1) ?? "";
    if (last.length > indent && last.length + 1 + word.length > columns) lines.push(" ".repeat(indent) + word);
    else lines[lines.length - 1] = last.length > indent ? `${last} ${word}` : last + word;
  }
  return lines;
}
