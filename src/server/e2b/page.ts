/** Lists in pages, by what each item is sorted by: what ends between two requests neither hides something nor brings it twice. */
import type { FastifyReply } from "fastify";

export interface PageQuery {
  readonly limit: number;
  /** Key of the last one of the page before. */
  readonly nextToken?: string | undefined;
  readonly order: "asc" | "desc";
}

/** One page of them, and the header that says where the next begins. `keyOf`: text that no two share and that sorts as they are to be. */
export function pageOf<T>(reply: FastifyReply, all: readonly T[], keyOf: (item: T) => string, { limit, nextToken, order }: PageQuery): readonly T[] {
  const ascending = order === "asc";
  const sorted = all.toSorted((a, b) => (keyOf(a) < keyOf(b) === ascending ? -1 : 1));
  const left = nextToken === undefined || nextToken === "" ? sorted : sorted.filter((item) => (ascending ? keyOf(item) > nextToken : keyOf(item) < nextToken));
  const items = left.slice(0, limit);
  const last = items.at(-1);
  if (left.length > limit && last !== undefined) void reply.header("x-next-token", keyOf(last));
  return items;
}
