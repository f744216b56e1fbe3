/** How the page asks its server. A key comes once in the link's fragment and stays in this tab. */
import type { Problem } from "../../../src/server/runs/contract/common.ts";

const KEY = "mw-key";

/** Takes the key out of the link, so that it is in no history and no copied link. */
export function takeKey(): void {
  const match = /(?:^#|&)key=([^&]+)/.exec(location.hash);
  if (match?.[1] === undefined) return;
  setKey(decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key);
}

export function keyHeaders(): Record<string, string> {
  const key = sessionStorage.getItem(KEY);
  return key === null || key === "" ? {} : { authorization: `Bearer ${key}` };
}

/** For a WebSocket, which takes no headers. */
export function currentKey(): string | null {
  return sessionStorage.getItem(KEY);
}

export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly fix: string | null;

  constructor(status: number, problem: Partial<Problem>) {
    super(problem.detail ?? `the server answered with ${status}`);
    this.status = status;
    this.code = problem.code ?? "unknown";
    this.fix = problem.fix ?? null;
  }
}

export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers: { ...keyHeaders(), ...(init.headers as Record<string, string> | undefined) } });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "The server does not answer.", code: "offline", fix: "Start it again (mw serve, or mw show RUN --web); this page goes on by itself." });
  }
  if (response.ok) return response;
  const problem = (await response.json().catch(() => ({}))) as Partial<Problem>;
  throw new ApiError(response.status, problem);
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await request(path, signal === undefined ? {} : { signal });
  // The server made it from the same types.
  return (await response.json()) as T;
}

export async function sendJson<T>(method: "PUT" | "POST" | "DELETE", path: string, body?: unknown): Promise<T> {
  const response = await request(path, { method, ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } }) });
  return (response.status === 204 ? undefined : await response.json().catch(() => undefined)) as T;
}

/** Query string of what is given; what is empty is left out. */
export function query(values: Readonly<Record<string, string | number | null | undefined>>): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== null && value !== undefined && value !== "") params.set(name, String(value));
  const text = params.toString();
  return text === "" ? "" : `?${text}`;
}

/** Saves what a route sends, with the key that a plain link would not carry. */
export async function save(path: string, name: string): Promise<void> {
  keep(await (await request(path)).blob(), name);
}

/** Saves what the page shows, as the documents that it was told. */
export function saveShown(documents: unknown, name: string): void {
  keep(new Blob([`${JSON.stringify(documents, null, 2)}\n`], { type: "application/json" }), name);
}

function keep(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
