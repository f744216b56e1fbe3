/** The version of this installation, as package.json has it. */
import { readFileSync } from "node:fs";

function read(): string {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  // Our own file: the shape is known.
  return (JSON.parse(text) as { readonly version: string }).version;
}

export const VERSION: string = read();
