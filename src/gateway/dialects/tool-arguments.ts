/**
 * Tool arguments between the text that a model sampled and what a dialect carries.
 *
 * Models write nothing, spaces, or broken JSON where arguments belong. No arguments is `{}` in every dialect. Dialects that carry an object get text which is no JSON
 * object in the member `INVALID_JSON`, the form that Anthropic's documentation of fine-grained tool streaming gives for it: the tool refuses it, the model sees
 * what it wrote, and the text comes back unchanged.
 */

const WRAPPER = "INVALID_JSON";

/** As a dialect that carries text gives them to the harness. */
export function argumentsText(sampled: string): string {
  return isBlank(sampled) ? "{}" : sampled;
}

/** As a dialect that carries an object gives them to the harness, as the text of that object. */
export function argumentsObjectText(sampled: string): string {
  if (isBlank(sampled)) return "{}";
  const value = objectIn(sampled);
  // What the model itself wrote in the wrapper's form is wrapped too: the inverse must not take it apart.
  return value !== null && unwrapArguments(value) === null ? sampled : JSON.stringify({ [WRAPPER]: sampled });
}

/** The inverse for what a harness sends back: null where the object is not wrapped text. */
export function unwrapArguments(input: object): string | null {
  const entries = Object.entries(input);
  const [name, text] = entries[0] ?? [];
  return entries.length === 1 && name === WRAPPER && typeof text === "string" && !isBlank(text) ? text : null;
}

/** JSON's own white space; nothing else counts as no arguments. */
export function isBlank(text: string): boolean {
  return /^[ \t\r\n]*$/.test(text);
}

function objectIn(text: string): object | null {
  try {
    const value: unknown = JSON.parse(text);
    // What is nested too deeply to be written again is no object for anybody.
    JSON.stringify(value);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
