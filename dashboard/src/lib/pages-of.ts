/** Lists of a rollout that are longer than one answer: fetched in pages, those in sight first. */
import { keepPreviousData, useQueries } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { getJson, type ApiError } from "./api.ts";

export interface Paged<Item> {
  readonly total: number | null;
  readonly at: (index: number) => Item | undefined;
  /** Tells which items are in sight. */
  readonly see: (first: number, last: number) => void;
  readonly error: ApiError | null;
}

// oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- it ties what is fetched to what is taken out of it
export function usePages<Page extends { readonly total: number; readonly offset: number }, Item>(path: string, version: string, size: number, itemsOf: (page: Page) => readonly Item[]): Paged<Item> {
  const [sight, setSight] = useState<readonly [number, number]>([0, 0]);
  const wanted: number[] = [];
  for (let page = sight[0]; page <= sight[1]; page++) wanted.push(page);
  const queries = useQueries({
    queries: wanted.map((page) => ({
      queryKey: [path, version, page],
      queryFn: ({ signal }: { readonly signal: AbortSignal }) => getJson<Page>(`${path}${path.includes("?") ? "&" : "?"}offset=${page * size}&limit=${size}`, signal),
      placeholderData: keepPreviousData,
    })),
  });
  const known = queries.find(({ data }) => data !== undefined)?.data;
  // Pages that come into sight are not there yet: the list stays as long as it was, or it would jump back to its beginning.
  const length = useRef<{ readonly path: string; readonly total: number } | null>(null);
  if (known !== undefined) length.current = { path, total: known.total };
  const asked = useRef(sight);
  useEffect(() => {
    const [first, last] = asked.current;
    setSight((before) => (before[0] === first && before[1] === last ? before : [first, last]));
  });
  return {
    total: known?.total ?? (length.current?.path === path ? length.current.total : null),
    at: (index) => {
      const page = queries[Math.floor(index / size) - sight[0]]?.data;
      return page?.offset === Math.floor(index / size) * size ? itemsOf(page)[index % size] : undefined;
    },
    see: (first, last) => {
      asked.current = [Math.floor(first / size), Math.floor(last / size)];
    },
    error: (queries.find(({ error }) => error !== null)?.error as ApiError | undefined) ?? null,
  };
}
