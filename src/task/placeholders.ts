/** `${VAR}` and `${VAR:-default}` as whole values of a task's `env` tables, resolved from the host's environment as Harbor does. */
import { MwError } from "../core/errors.ts";

const TEMPLATE = /^\$\{([^}:]+)(?::-([\s\S]*))?\}$/;

/**
 * Values that are a placeholder as a whole are replaced; all others pass as they are. Throws `environment` naming every variable that is missing.
 * `where` names the table for the message, as in `[verifier.env]`.
 */
export function expandPlaceholders(
  env: Readonly<Record<string, string>>,
  lookup: (name: string) => string | undefined,
  where: string,
): Record<string, string> {
  const expanded: Record<string, string> = {};
  const missing: string[] = [];
  for (const [key, value] of Object.entries(env)) {
    const match = TEMPLATE.exec(value);
    const name = match?.[1];
    if (name === undefined) {
      expanded[key] = value;
      continue;
    }
    const found = lookup(name) ?? match?.[2];
    if (found === undefined) missing.push(name);
    else expanded[key] = found;
  }
  if (missing.length > 0) {
    const names = [...new Set(missing)].sort();
    throw new MwError("environment", `${where} needs the environment variable${names.length > 1 ? "s" : ""} ${names.join(", ")}, which ${names.length > 1 ? "are" : "is"} not set`, {
      fix: `Set ${names.map((name) => `${name}=...`).join(" ")}, or give defaults in task.toml: "\${${names[0]}:-value}".`,
      facts: { variables: names.join(",") },
    });
  }
  return expanded;
}

/** Names of the host variables without which the task cannot start. */
export function requiredVariables(env: Readonly<Record<string, string>>): string[] {
  const names = new Set<string>();
  for (const value of Object.values(env)) {
    const match = TEMPLATE.exec(value);
    if (match?.[1] !== undefined && match[2] === undefined) names.add(match[1]);
  }
  return [...names];
}

/** True for a value with a placeholder inside other text, which stays literal: worth a warning. */
export function hasEmbeddedPlaceholder(value: string): boolean {
  return !TEMPLATE.test(value) && /\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}/.test(value);
}
