/** Requests to a running `mw serve`. What it refuses is thrown as it says; what never reached it, or whose answer was lost, is `ConnectionLost`. */
import { ERROR_CATALOGUE, MwError, messageOf, type ErrorCode } from "../core/errors.ts";
import type { Runtime } from "../core/runtime.ts";
import { readApiKey } from "./upstream.ts";

const RETRY_LEAST_MS = 250;
const RETRY_MOST_MS = 5_000;

/** Trying again may help. */
export class ConnectionLost extends Error {}

export class ServerClient {
  readonly url: string;
  readonly #key: string | null;

  /** Throws `usage` for an address that is none. */
  constructor(url: string, env: Readonly<Record<string, string | undefined>>) {
    if (!URL.canParse(url) || !/^https?:/.test(url)) throw new MwError("usage", `--server ${JSON.stringify(url)} is no address`, { fix: "give the URL that mw serve prints, such as http://127.0.0.1:20410" });
    this.url = url.replace(/\/+$/, "");
    this.#key = readApiKey(null, env);
  }

  /** Its JSON. Rejects `ConnectionLost`, or what the server refused. */
  async ask(method: "GET" | "POST", path: string, body?: unknown, signal?: AbortSignal): Promise<unknown> {
    const response = await this.open(method, path, body, signal);
    try {
      return await response.json();
    } catch (error) {
      throw lost(error);
    }
  }

  /** The same with the answer's body still to come. */
  async open(method: "GET" | "POST", path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    let response: Response;
    try {
      response = await fetch(`${this.url}${path}`, {
        method,
        headers: { ...(this.#key === null ? {} : { "x-api-key": this.#key }), ...(body === undefined ? {} : { "content-type": "application/json" }) },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        ...(signal === undefined ? {} : { signal }),
      });
    } catch (error) {
      signal?.throwIfAborted();
      throw lost(error);
    }
    if (response.ok) return response;
    throw await refusal(response);
  }
}

/** Asks again until there is an answer, with longer and longer pauses; `lost` hears of the first failure in a row. Rejects what the server refuses, and the signal's reason. */
export async function persistently<T>(runtime: Runtime, signal: AbortSignal, onLost: () => void, ask: () => Promise<T>): Promise<T> {
  for (let pauseMs = RETRY_LEAST_MS; ; pauseMs = Math.min(2 * pauseMs, RETRY_MOST_MS)) {
    const began = runtime.monotonic();
    try {
      return await ask();
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof ConnectionLost)) throw error;
      // It held for a while: this is another failure.
      if (runtime.monotonic() - began > RETRY_MOST_MS) pauseMs = RETRY_LEAST_MS;
      if (pauseMs === RETRY_LEAST_MS) onLost();
      await runtime.sleep(pauseMs, signal);
    }
  }
}

function lost(error: unknown): ConnectionLost {
  const cause = error instanceof Error && error.cause !== undefined ? `: ${messageOf(error.cause)}` : "";
  return new ConnectionLost(`${messageOf(error)}${cause}`, { cause: error });
}

async function refusal(response: Response): Promise<Error> {
  const text = await response.text().catch(() => "");
  const { code, detail, fix } = documentOf(text);
  // One that ends, or a proxy before one that has ended, says nothing about the request.
  const isOurs = typeof code === "string" && Object.hasOwn(ERROR_CATALOGUE, code);
  if (!isOurs && response.status >= 502 && response.status <= 504) return new ConnectionLost(`the server answers ${response.status}`);
  if (!isOurs) return new MwError("invalid_input", `what answers is no mw serve: ${response.status} ${text.slice(0, 200)}`, { fix: "give --server the URL that mw serve prints" });
  // It is one of the catalogue.
  return new MwError(code as ErrorCode, typeof detail === "string" ? detail : `the server refused (${response.status})`, typeof fix === "string" ? { fix } : {});
}

function documentOf(text: string): { readonly code?: unknown; readonly detail?: unknown; readonly fix?: unknown } {
  try {
    return (JSON.parse(text) as object | null) ?? {};
  } catch {
    return {};
  }
}
