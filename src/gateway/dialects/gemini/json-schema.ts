/** Gemini's `Schema` (a part of OpenAPI 3.0, types in capitals, sizes as text) as JSON schema. What is JSON schema already stays as it is. */
import { invalid, readObject } from "../read-request.ts";
import { camelAt } from "./keys.ts";

const SIZES = new Set(["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"]);
/** Deeper ones are nobody's tool. */
const MAX_DEPTH = 64;

export function jsonSchema(value: unknown, path: string, depth = 0): Readonly<Record<string, unknown>> {
  if (depth > MAX_DEPTH) throw invalid(path, `is nested more than ${MAX_DEPTH} deep`);
  const schema = camelAt(value, path);
  const inner = (entry: unknown, key: string): unknown => jsonSchema(entry, `${path}.${key}`, depth + 1);
  const converted: [string, unknown][] = [];
  for (const [key, entry] of Object.entries(schema)) {
    if (entry === null || entry === undefined) continue;
    if (key === "type") converted.push(["type", typeof entry === "string" ? typeOf(entry, schema["nullable"] === true) : entry]);
    else if (key === "properties") converted.push(["properties", properties(entry, schema["propertyOrdering"], `${path}.properties`, depth)]);
    else if (key === "items" && !Array.isArray(entry) && typeof entry === "object") converted.push(["items", inner(entry, key)]);
    else if ((key === "anyOf" || key === "oneOf" || key === "allOf") && Array.isArray(entry)) converted.push([key, entry.map((option, index) => inner(option, `${key}[${index}]`))]);
    else if (key === "enum" && Array.isArray(entry) && schema["nullable"] === true && !entry.includes(null)) converted.push(["enum", [...(entry as unknown[]), null]]);
    else if (SIZES.has(key)) converted.push([key, typeof entry === "string" && /^\d+$/.test(entry) ? Number(entry) : entry]);
    else if (key === "example") converted.push(["examples", [entry]]);
    else if (key !== "nullable" && key !== "propertyOrdering") converted.push([key, entry]);
  }
  if (schema["nullable"] === true && schema["type"] === undefined && Array.isArray(schema["anyOf"])) {
    return Object.fromEntries(converted.map(([key, entry]) => (key === "anyOf" ? [key, [...(entry as unknown[]), { type: "null" }]] : [key, entry])));
  }
  return Object.fromEntries(converted);
}

function typeOf(type: string, nullable: boolean): unknown {
  const name = type.toLowerCase();
  return nullable && name !== "null" ? [name, "null"] : name;
}

/** In the order that `propertyOrdering` asks for; those that it leaves out come last. */
function properties(value: unknown, ordering: unknown, path: string, depth: number): unknown {
  const object = readObject(value, path);
  const first = Array.isArray(ordering) ? ordering.filter((name): name is string => typeof name === "string" && Object.hasOwn(object, name)) : [];
  const names = [...new Set([...first, ...Object.keys(object)])];
  return Object.fromEntries(names.map((name) => [name, jsonSchema(object[name], `${path}.${name}`, depth + 1)]));
}
