/** What tells two documents under one name apart: a hash of their JSON with the keys in order. */
import { createHash } from "node:crypto";

export function submissionHash(document: unknown): string {
  return createHash("sha256").update(canonical(document)).digest("hex").slice(0, 32);
}

/** JSON in which equal values are equal texts. */
function canonical(value: unknown): string {
  return JSON.stringify(value, (_key, inner: unknown) => {
    if (typeof inner !== "object" || inner === null || Array.isArray(inner)) return inner;
    return Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)));
  });
}
