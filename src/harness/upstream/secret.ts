/** Takes the upstream key out of text that came from an upstream, because a server may echo what it was sent. */
const SHORTEST = 8;

/** Keys shorter than eight characters are placeholders ("EMPTY", "x") and would only mangle ordinary words. */
export function withoutKey(text: string, apiKey: string | null): string {
  return apiKey === null || apiKey.length < SHORTEST ? text : text.replaceAll(apiKey, "[key removed]");
}
