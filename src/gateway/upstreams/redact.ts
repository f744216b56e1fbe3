/** Takes out of an upstream's words what must not reach a sandbox: the key that a server may echo, and addresses of the host's network. */

/** Keys shorter than eight characters are placeholders ("EMPTY", "x") and would only mangle ordinary words. */
const SHORTEST_KEY = 8;
const EXCERPT = 600;

export function redact(text: string, secrets: { readonly apiKey: string | null; readonly host: string }): string {
  let result = text;
  if (secrets.apiKey !== null && secrets.apiKey.length >= SHORTEST_KEY) result = result.replaceAll(secrets.apiKey, "[key removed]");
  return result
    .replaceAll(secrets.host, "[address removed]")
    .replaceAll(/\b[a-z][a-z0-9+.-]*:\/\/[^\s"'<>)\]]+/gi, "[address removed]")
    .replaceAll(/\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b/g, "[address removed]")
    .replaceAll(/\[[0-9a-f:]*:[0-9a-f:]*\](:\d+)?/gi, "[address removed]");
}

/** For messages: one line of bounded length. */
export function excerpt(text: string): string {
  const flat = text.slice(0, 4 * EXCERPT).replaceAll(/\s+/g, " ").trim();
  if (flat === "") return "an empty body";
  return flat.length > EXCERPT ? `${flat.slice(0, EXCERPT)}...` : flat;
}
