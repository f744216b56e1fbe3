/** One server-sent event, as text. JSON has no line breaks outside of its escapes, so the data is one line. */
export function writeEvent(data: unknown, event?: string): string {
  return `${event === undefined ? "" : `event: ${event}\n`}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;
}
