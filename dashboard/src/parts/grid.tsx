/** A long list of rows that the server keeps: only what is in sight is drawn, pages are fetched as they come into sight. */
import { useQueries, keepPreviousData } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { useLocation } from "wouter";
import { getJson } from "../lib/api.ts";
import { useKeys } from "../lib/hooks.ts";
import { Failed, Skeleton } from "./basics.tsx";

export interface Column<Row> {
  readonly id: string;
  readonly title: string;
  readonly width: string;
  readonly sort?: string;
  readonly right?: boolean;
  readonly cell: (row: Row) => ReactNode;
}

export interface GridProps<Page, Row> {
  readonly label: string;
  /** Without `offset` and `limit`. */
  readonly path: string;
  readonly version?: string | number;
  readonly rowsOf: (page: Page) => readonly Row[];
  readonly totalOf: (page: Page) => number;
  readonly keyOf: (row: Row) => string;
  readonly hrefOf: (row: Row) => string;
  readonly columns: readonly Column<Row>[];
  readonly sort: string;
  readonly order: string;
  readonly onSort: (sort: string, order: string) => void;
  readonly empty: ReactNode;
  /** What live updates have made of rows. */
  readonly overlay?: ReadonlyMap<string, Row>;
  readonly minWidth?: number;
  /** Keys that act on the row at the cursor. */
  readonly keys?: Readonly<Record<string, (row: Row) => void>>;
}

const PAGE = 100;
const ROW = 36;

export function Grid<Page, Row>(props: GridProps<Page, Row>): ReactNode {
  const { label, path, version, rowsOf, totalOf, keyOf, hrefOf, columns, sort, order, onSort, empty, overlay, minWidth = 900 } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [, navigate] = useLocation();
  const [cursor, setCursor] = useState(-1);
  const [inSight, setInSight] = useState<readonly [number, number]>([0, 0]);
  const [total, setTotal] = useState<number | null>(null);
  const wanted: number[] = [];
  for (let page = inSight[0]; page <= inSight[1]; page++) wanted.push(page);
  const queries = useQueries({
    queries: wanted.map((page) => ({
      queryKey: [path, page, version ?? ""],
      queryFn: ({ signal }: { readonly signal: AbortSignal }) => getJson<Page>(`${path}${path.includes("?") ? "&" : "?"}offset=${page * PAGE}&limit=${PAGE}`, signal),
      placeholderData: keepPreviousData,
    })),
  });
  const known = queries.find(({ data }) => data !== undefined)?.data;
  const currentTotal = known === undefined ? total : totalOf(known);
  useEffect(() => setTotal(currentTotal), [currentTotal]);
  useEffect(() => {
    setCursor(-1);
    setInSight([0, 0]);
    scroller.current?.scrollTo({ top: 0 });
  }, [path]);
  const virtual = useVirtualizer({ count: currentTotal ?? 0, getScrollElement: () => scroller.current, estimateSize: () => ROW, overscan: 12 });
  const items = virtual.getVirtualItems();
  const first = Math.floor((items[0]?.index ?? 0) / PAGE);
  const last = Math.floor((items.at(-1)?.index ?? 0) / PAGE);
  useEffect(() => setInSight((before) => (before[0] === first && before[1] === last ? before : [first, last])), [first, last]);

  const rowAt = (index: number): Row | undefined => {
    const page = queries[Math.floor(index / PAGE) - inSight[0]]?.data;
    const row = page === undefined ? undefined : rowsOf(page)[index % PAGE];
    return row === undefined ? undefined : (overlay?.get(keyOf(row)) ?? row);
  };
  const move = (to: number): void => {
    const next = Math.max(0, Math.min((currentTotal ?? 1) - 1, to));
    setCursor(next);
    virtual.scrollToIndex(next);
  };
  const atCursor = rowAt(cursor);
  useKeys({
    j: () => move(cursor + 1),
    k: () => move(cursor - 1),
    ArrowDown: cursor >= 0 ? () => move(cursor + 1) : undefined,
    ArrowUp: cursor >= 0 ? () => move(cursor - 1) : undefined,
    Enter: atCursor === undefined ? undefined : () => navigate(hrefOf(atCursor)),
    ...Object.fromEntries(Object.entries(props.keys ?? {}).map(([key, act]) => [key, atCursor === undefined ? undefined : () => act(atCursor)])),
  });

  const error = queries.find((one) => one.error !== null)?.error;
  if (error != null && known === undefined) return <Failed error={error} />;
  if (currentTotal === null) return <div className="card"><div className="body"><Skeleton lines={8} /></div></div>;
  if (currentTotal === 0) return <>{empty}</>;
  const grid = columns.map(({ width }) => width).join(" ");
  return (
    <div className="grid" style={{ "--grid": grid, "--grid-min": `${minWidth}px` } as React.CSSProperties} role="region" aria-label={`${label}: ${currentTotal.toLocaleString("en")}`}>
      <div className="rows" ref={scroller} tabIndex={0} role="group" aria-label={label} style={{ height: `min(72vh, ${currentTotal * ROW + 36}px)` }}>
        <div className="tr thead">
          {columns.map(({ id, title, sort: by, right }) => (
            <span key={id} className={right === true ? "right" : undefined}>
              {by === undefined ? title : (
                <button type="button" className={by === sort ? "sorted" : ""} onClick={() => onSort(by, by === sort && order !== "desc" ? "desc" : "asc")}>
                  {title}
                  {by === sort ? (order === "desc" ? " ↓" : " ↑") : ""}
                </button>
              )}
            </span>
          ))}
        </div>
        <div className="fit" style={{ height: virtual.getTotalSize() }}>
          {items.map(({ index, start }) => {
            const row = rowAt(index);
            return (
              <RowLink key={index} href={row === undefined ? "" : hrefOf(row)} at={index} cursor={index === cursor} start={start}>
                {columns.map(({ id, right, cell }) => (
                  <span key={id} className={right === true ? "right" : undefined}>
                    {row === undefined ? <span className="skeleton" style={{ display: "inline-block", width: "60%" }} /> : cell(row)}
                  </span>
                ))}
              </RowLink>
            );
          })}
        </div>
      </div>
    </div>
  );
}

/** A row is a link, so that it can be opened beside this page. */
function RowLink({ href, at, cursor, start, children }: { readonly href: string; readonly at: number; readonly cursor: boolean; readonly start: number; readonly children: ReactNode }): ReactNode {
  const [, navigate] = useLocation();
  return (
    <a
      className={`tr abs${cursor ? " cursor" : ""}`}
      data-row={at}
      href={`/ui${href}`}
      style={{ transform: `translateY(${start}px)` }}
      onClick={(event) => {
        if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
        event.preventDefault();
        if (href !== "") navigate(href);
      }}
    >
      {children}
    </a>
  );
}
