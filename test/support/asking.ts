/** Requests to a server's interface, as its clients write them by hand. */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  // oxlint-disable-next-line typescript/no-explicit-any -- documents of many shapes, looked at field by field
  readonly body: any;
}

/** Bytes go as they are, everything else as JSON. `headers` win over the key. */
export type Ask = (method: string, path: string, body?: unknown, headers?: Readonly<Record<string, string>>) => Promise<Answer>;

/** `server` is looked at with each request: another may have its place by then. */
export function asking(server: () => { readonly url: string } | null, key: string): Ask {
  return async (method, path, body, headers = {}) => {
    const raw = body instanceof Uint8Array;
    const response = await fetch(`${server()?.url ?? ""}${path}`, {
      method,
      headers: { "x-api-key": key, ...(body === undefined ? {} : { "content-type": raw ? "application/octet-stream" : "application/json" }), ...headers },
      ...(body === undefined ? {} : { body: raw ? Buffer.from(body) : JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, body: text === "" ? null : (JSON.parse(text) as unknown) };
  };
}

/** The key of another owner, as the header that carries it. */
export function otherOwner(home: string): { readonly "x-api-key": string } {
  const { stdout } = spawnSync(process.execPath, [MAIN, "key", "add", "other", "--data", home], { encoding: "utf8", env: { PATH: process.env["PATH"], HOME: home } });
  return { "x-api-key": stdout.trim() };
}
