/** Reading a request's body: by a schema, with errors that name the exact field, and with a record of what was understood but has no effect. */
import { z } from "zod";
import { GatewayFailure } from "../failure.ts";

/** Throws `GatewayFailure` `invalid_request` with the first thing that is wrong, as `messages[3].content[1].source: ...`. `field`: where `body` stands itself. */
export function readBody<T>(schema: z.ZodType<T>, body: unknown, field = ""): T {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const { path, message } = deepest(parsed.error.issues[0], []);
  throw invalid(fieldName(path, field), message);
}

/** An object as it came. (Schemas of records make a new one, without a member `__proto__`.) */
export const jsonObject = z.custom<Readonly<Record<string, unknown>>>((value) => typeof value === "object" && value !== null && !Array.isArray(value), "not an object");

export function readObject(value: unknown, field: string): Readonly<Record<string, unknown>> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw invalid(field, "not an object");
  return value as Readonly<Record<string, unknown>>;
}

export function readList(value: unknown, field: string): readonly unknown[] {
  if (!Array.isArray(value)) throw invalid(field, "not a list");
  return value as readonly unknown[];
}

/** What a codec throws for a field that it cannot honour. */
export function invalid(field: string, reason: string): GatewayFailure {
  return new GatewayFailure("invalid_request", field === "" ? reason : `${field}: ${reason}`, field === "" ? {} : { field });
}

/** Members of `body` that `schema` does not know and that say something. */
export function unknownFields(schema: { readonly shape: object }, body: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  return Object.fromEntries(Object.entries(body).filter(([name, value]) => !Object.hasOwn(schema.shape, name) && value !== null && value !== undefined));
}

/** Collects `TurnRequest.dropped`. Indices are left out of the names, so that a long conversation does not make a long list. */
export class Dropped {
  readonly #names = new Set<string>();

  /** `why`: where the name alone does not say it. */
  add(name: string, why?: string): void {
    const place = name.replaceAll(/\[\d+\]/g, "[]");
    this.#names.add(why === undefined ? place : `${place}: ${why}`);
  }

  /** Notes the members of `object` that are not in `known` and say something. */
  unknown(object: object, prefix: string, known: ReadonlySet<string>): void {
    this.fields(object, prefix, Object.keys(object).filter((field) => !known.has(field)));
  }

  /** Notes those of `fields` that `object` has. */
  fields(object: object, prefix: string, fields: readonly string[]): void {
    for (const field of fields) {
      const value: unknown = (object as Readonly<Record<string, unknown>>)[field];
      if (value !== undefined && value !== null) this.add(prefix === "" ? field : `${prefix}.${field}`);
    }
  }

  list(): readonly string[] {
    return [...this.#names];
  }
}

/** A value of the sender's in a message: as JSON, and short. */
export function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? "nothing";
  return text.length > 80 ? `${text.slice(0, 80)}...` : text;
}

/** The text of a JSON value; refuses what is nested too deeply to be written. */
export function jsonText(value: unknown, field: string): string {
  try {
    return JSON.stringify(value);
  } catch (error) {
    if (error instanceof RangeError) throw invalid(field, "nested too deeply");
    throw error;
  }
}

function fieldName(path: readonly PropertyKey[], start: string): string {
  return path.reduce<string>((name, key) => (typeof key === "number" ? `${name}[${key}]` : name === "" ? String(key) : `${name}.${String(key)}`), start);
}

/** Of a union's failures, that of the branch which came furthest: the branch that the sender meant. */
function deepest(issue: z.core.$ZodIssue | undefined, above: readonly PropertyKey[]): { readonly path: readonly PropertyKey[]; readonly message: string } {
  if (issue === undefined) return { path: above, message: "not understood" };
  const path = [...above, ...issue.path];
  if (issue.code === "unrecognized_keys") return { path: [...path, issue.keys[0] ?? ""], message: "unknown field" };
  if (issue.code !== "invalid_union" || issue.errors.length === 0) return { path, message: issue.message };
  const branches = issue.errors.map((issues) => deepest(issues[0], path));
  return branches.reduce((best, branch) => (branch.path.length > best.path.length ? branch : best));
}
