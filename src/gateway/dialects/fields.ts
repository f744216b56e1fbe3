/** Reading of request bodies: every fault names its field, everything that is set aside is noted once. */
import { z } from "zod";
import { GatewayFailure } from "../failure.ts";

/** Fails with the first fault of `value`, as a path below `path`: `input[2].content[0].text`. */
export function parseAt<T>(schema: z.ZodType<T>, value: unknown, path: string): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const field = (issue?.path ?? []).reduce<string>((at, step) => (typeof step === "number" ? `${at}[${step}]` : at === "" ? String(step) : `${at}.${String(step)}`), path);
  return refuse(field, issue?.message ?? "is not valid");
}

export function refuse(field: string, why: string): never {
  throw new GatewayFailure("invalid_request", field === "" ? `The request ${why}.` : `${field}: ${why}.`, field === "" ? {} : { field });
}

export function objectAt(value: unknown, path: string): Readonly<Record<string, unknown>> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) refuse(path, path === "" ? "is no JSON object" : "must be an object");
  return value as Readonly<Record<string, unknown>>;
}

/** What was understood and set aside. Positions in lists are left out of the names, so that a long conversation notes each kind once. */
export class Notes {
  readonly #texts = new Set<string>();

  drop(field: string, why: string): void {
    this.#texts.add(`${field.replaceAll(/\[\d+\]/g, "[]")}: ${why}`);
  }

  /** Notes the fields of `value` that are neither in `known` nor empty. */
  unknown(value: object, known: ReadonlySet<string>, path: string): void {
    for (const [key, entry] of Object.entries(value)) {
      if (!known.has(key) && entry !== null && entry !== undefined) this.drop(`${path}.${key}`, "not known here");
    }
  }

  list(): readonly string[] {
    return [...this.#texts];
  }
}

/** The parts of a base64 data URL; null for any other URL. */
export function dataUrl(url: string): { readonly mediaType: string; readonly data: string } | null {
  if (!url.startsWith("data:")) return null;
  const comma = url.indexOf(",");
  const head = comma === -1 ? "" : url.slice(5, comma);
  return head.endsWith(";base64") ? { mediaType: head.slice(0, -";base64".length), data: url.slice(comma + 1) } : null;
}
