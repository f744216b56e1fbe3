/** One POST of JSON to an inference server: a whole body within a size and a time, or a failure that says whether another try can help. */
import { Pool } from "undici";
import { messageOf, MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";

export type PostResult =
  | { readonly kind: "response"; readonly status: number; readonly text: string; readonly retryAfter: string | null }
  /** The connection failed, broke off, or took too long: nothing of it is an answer. */
  | { readonly kind: "broken"; readonly why: string }
  | { readonly kind: "too_big" };

export interface Post {
  readonly url: URL;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  /** From the first byte sent to the last byte read. */
  readonly timeoutMs: number;
  /** Aborting rejects with its reason. */
  readonly signal: AbortSignal;
}

/** Connections are kept and shared by all rollouts of a run; idle ones do not keep the process alive. */
export class HttpPools {
  readonly #pools = new Map<string, Pool>();

  async post(request: Post, runtime: Runtime): Promise<PostResult> {
    const stop = new AbortController();
    const onAbort = (): void => stop.abort(request.signal.reason);
    request.signal.throwIfAborted();
    request.signal.addEventListener("abort", onAbort, { once: true });
    let late = false;
    const deadline = runtime.sleep(request.timeoutMs, stop.signal).then(
      () => {
        late = true;
        stop.abort(new MwError("timeout", "The model call took too long."));
      },
      () => undefined,
    );
    try {
      return await this.#exchange(request, stop.signal);
    } catch (error) {
      request.signal.throwIfAborted();
      return { kind: "broken", why: late ? `no complete answer within ${request.timeoutMs} ms` : describe(error) };
    } finally {
      request.signal.removeEventListener("abort", onAbort);
      stop.abort();
      await deadline;
    }
  }

  async #exchange(request: Post, signal: AbortSignal): Promise<PostResult> {
    const { statusCode, headers, body } = await this.#pool(request.url.origin).request({
      path: request.url.pathname + request.url.search,
      method: "POST",
      headers: request.headers,
      body: request.body,
      signal,
    });
    const parts: Buffer[] = [];
    let bytes = 0;
    for await (const chunk of body) {
      // undici delivers Buffers unless an encoding was set, which nobody does here.
      const part = chunk as Buffer;
      bytes += part.length;
      if (bytes > LIMITS.upstreamBodyBytes) {
        body.destroy();
        return { kind: "too_big" };
      }
      parts.push(part);
    }
    const retryAfter = headers["retry-after"];
    return { kind: "response", status: statusCode, text: Buffer.concat(parts).toString("utf8"), retryAfter: typeof retryAfter === "string" ? retryAfter : null };
  }

  #pool(origin: string): Pool {
    let pool = this.#pools.get(origin);
    if (pool === undefined) {
      // The deadline of the whole call rules; undici's own would cut long generations, whose headers come last.
      pool = new Pool(origin, { connections: LIMITS.upstreamConnections, pipelining: 1, headersTimeout: 0, bodyTimeout: 0, connectTimeout: 15_000 });
      this.#pools.set(origin, pool);
    }
    return pool;
  }
}

/** undici wraps the reason of a failed connection; the innermost message is the one that tells. */
function describe(error: unknown): string {
  let at = error;
  for (let depth = 0; depth < 4 && at instanceof Error && at.cause instanceof Error; depth++) at = at.cause;
  const code = at instanceof Error && "code" in at && typeof at.code === "string" ? `${at.code}: ` : "";
  const message = messageOf(at) || "the connection failed";
  return message.startsWith(code) ? message : code + message;
}
