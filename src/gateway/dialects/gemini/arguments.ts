/** Arguments of function calls: sampled as text, on the wire an object. */

/** Holds arguments that are no JSON object. No tool has such a parameter, so the client refuses the call and the model is told. */
const UNPARSED = "unparsed_arguments";

/** The object that clients get. */
export function parseArguments(text: string): Readonly<Record<string, unknown>> {
  if (text.trim() === "") return {};
  try {
    const value = JSON.parse(text) as unknown;
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Readonly<Record<string, unknown>>;
  } catch {
    // Fall through: no JSON at all.
  }
  return { [UNPARSED]: text };
}

/** The text of arguments that came back. `sampled`: what we sent along; it holds unless the client has changed the object. */
export function printArguments(args: Readonly<Record<string, unknown>>, sampled: string | undefined): string {
  const text = JSON.stringify(args);
  if (sampled !== undefined && JSON.stringify(parseArguments(sampled)) === text) return sampled;
  const unparsed = args[UNPARSED];
  return typeof unparsed === "string" && Object.keys(args).length === 1 ? unparsed : text;
}
