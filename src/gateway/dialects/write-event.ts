/**
 * One server-sent event, as text.
 *
 * JSON escapes line feeds and carriage returns, so the data is one line. Some clients (httpx's `iter_lines`, which takes Python's `splitlines`) also break lines where only
 * Unicode sees their end: those characters are escaped too, which JSON allows anywhere in a string.
 */
export function writeEvent(data: unknown, event?: string): string {
  const text = typeof data === "string" ? data : JSON.stringify(data).replaceAll(/[\u0085\u2028\u2029]/g, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return `${event === undefined ? "" : `event: ${event}\n`}data: ${text}\n\n`;
}
