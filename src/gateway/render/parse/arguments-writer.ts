/** Arguments of calls that are not written as JSON: made into JSON by the types that the tool's schema gives them. */
import { readJson } from "../jinja/json.ts";
import type { Input, Step } from "./input.ts";
import type { Output } from "./output.ts";

export class ArgumentsWriter {
  readonly #output: Output;
  readonly #schema: unknown;
  #isEmpty = true;

  constructor(output: Output, schema: unknown) {
    this.#output = output;
    this.#schema = schema;
  }

  /** Takes the value up to one of `ends`; false when the answer ends before. `types`: where the call itself says them. */
  *value(input: Input, key: string, ends: readonly string[], types = typesOf(this.#schema, key)): Step<boolean> {
    this.#output.arguments(`${this.#isEmpty ? "{" : ", "}${JSON.stringify(key)}: `);
    this.#isEmpty = false;
    if (types.every((type) => type === "string")) {
      // As it comes: a file's content is long.
      this.#output.arguments('"');
      const end = yield* input.until(ends, (text) => this.#output.arguments(JSON.stringify(text).slice(1, -1)));
      if (end !== null) this.#output.arguments('"');
      return end !== null;
    }
    let text = "";
    const end = yield* input.until(ends, (part) => (text += part));
    this.#output.arguments(end === null ? text : jsonOf(text, types));
    return end !== null;
  }

  end(): void {
    this.#output.arguments(this.#isEmpty ? "{}" : "}");
  }
}

/** Empty where the schema does not say: then the text is a string. */
function typesOf(schema: unknown, key: string): readonly string[] {
  const properties = field(schema, "properties");
  const property = field(properties, key);
  return declared(property);
}

function declared(property: unknown): readonly string[] {
  const type = field(property, "type");
  if (typeof type === "string") return [type];
  if (Array.isArray(type)) return type.filter((one): one is string => typeof one === "string");
  for (const list of [field(property, "anyOf"), field(property, "oneOf")]) if (Array.isArray(list)) return list.flatMap((one) => declared(one));
  const values = field(property, "enum");
  if (Array.isArray(values) && values.some((value) => typeof value !== "string")) return ["json"];
  return [];
}

function field(value: unknown, key: string): unknown {
  return typeof value === "object" && value !== null && Object.hasOwn(value, key) ? (value as Readonly<Record<string, unknown>>)[key] : undefined;
}

/** What of a declared type the text spells, in JSON's or in Python's words; else the text as a string. */
function jsonOf(text: string, types: readonly string[]): string {
  const plain = text.trim();
  if (types.includes("boolean") && /^(?:true|false)$/i.test(plain)) return plain.toLowerCase();
  if (types.includes("null") && /^(?:null|none)$/i.test(plain)) return "null";
  if (readJson(plain) !== null && !(types.includes("string") && !/^[-\d{[]/.test(plain))) return plain;
  return JSON.stringify(text);
}
