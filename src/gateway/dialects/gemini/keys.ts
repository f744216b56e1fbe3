/** Field names: the API takes `snake_case` and `camelCase` for each of its fields, as protobuf's JSON mapping does. Maps whose keys are the caller's own are left alone. */
import { invalid, readObject } from "../read-request.ts";

/** One object with its own keys in `camelCase`. */
export function camelAt(value: unknown, path: string): Readonly<Record<string, unknown>> {
  const object = readObject(value, path);
  const entries = Object.entries(object);
  if (!entries.some(([key]) => key.includes("_"))) return object;
  const renamed = new Map<string, unknown>();
  for (const [key, entry] of entries) {
    const name = key.replaceAll(/_([a-z])/g, (_whole, letter: string) => letter.toUpperCase());
    if (renamed.has(name)) throw invalid(path === "" ? name : `${path}.${name}`, "is given twice, in two spellings");
    renamed.set(name, entry);
  }
  return Object.fromEntries(renamed);
}
