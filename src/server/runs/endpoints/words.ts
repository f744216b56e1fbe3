/** The words of a filter: each has to be somewhere in what is looked for, in any case. */
export function wordsOf(filter: string): readonly string[] {
  return filter.toLowerCase().split(/\s+/).filter((word) => word !== "");
}
