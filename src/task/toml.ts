/** TOML as people write it: a byte order mark, CRLF and a missing final newline are fine; errors name file, line and column. */
import { parse, TomlError } from "smol-toml";
import { MwError } from "../core/errors.ts";

export type Table = Readonly<Record<string, unknown>>;

/** Throws `invalid_task` when the bytes are not UTF-8 or not TOML. `file` is what the message calls it. */
export function parseToml(bytes: Uint8Array, file: string): Table {
  const text = decodeText(bytes, file);
  try {
    // Tables of the parser have no prototype; a JSON-like copy is not needed, keys such as `__proto__` are safe.
    return parse(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const [what = "not valid TOML", ...rest] = error.message.replace(/^Invalid TOML document: /, "").split("\n");
    const excerpt = rest.filter((line) => line.trim() !== "").join("\n");
    throw new MwError("invalid_task", `${file}:${error.line}:${error.column}: ${what}${excerpt === "" ? "" : `\n${excerpt}`}`, {
      fix: `Correct line ${error.line} of ${file}.`,
      facts: { file, line: error.line, column: error.column },
    });
  }
}

/** UTF-8 text without a byte order mark. Throws `invalid_task` for other encodings. */
export function decodeText(bytes: Uint8Array, file: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: false }).decode(bytes);
  } catch (error) {
    const utf16 = (bytes[0] === 0xff && bytes[1] === 0xfe) || (bytes[0] === 0xfe && bytes[1] === 0xff);
    throw new MwError("invalid_task", `${file} is not UTF-8 text${utf16 ? " (it looks like UTF-16)" : ""}`, {
      fix: `Save ${file} as UTF-8.`,
      cause: error,
      facts: { file },
    });
  }
}
