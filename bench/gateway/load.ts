/** Chat completions as an agent sends them, timed from the request to the first word and to the last byte. */
import { Pool } from "undici";

export interface Timed {
  /** To the first piece of content; NaN for whole answers. */
  readonly firstMs: number;
  readonly totalMs: number;
  /** Longest silence between two chunks. */
  readonly gapMs: number;
  readonly events: number;
}

export interface Endpoint {
  /** Below which `/v1/chat/completions` is. */
  readonly url: string;
  readonly token: string;
}

export class Client {
  readonly #pool: Pool;
  readonly #endpoints: readonly Endpoint[];

  /** All at one address. */
  constructor(endpoints: readonly Endpoint[], connections: number) {
    this.#endpoints = endpoints;
    this.#pool = new Pool(new URL(endpoints[0]?.url ?? "").origin, { connections, pipelining: 1 });
  }

  /** `which`: of the endpoints. */
  async call(body: string, stream: boolean, which = 0): Promise<Timed> {
    const { url = "", token = "" } = this.#endpoints[which % this.#endpoints.length] ?? {};
    const path = `${new URL(url).pathname.replace(/\/$/, "")}/v1/chat/completions`;
    const begun = performance.now();
    const response = await this.#pool.request({ path, method: "POST", headers: { "content-type": "application/json", authorization: `Bearer ${token}` }, body });
    if (response.statusCode !== 200) throw new Error(`HTTP ${response.statusCode}: ${await response.body.text()}`);
    let [firstMs, gapMs, events, last] = [Number.NaN, 0, 0, begun];
    if (!stream) await response.body.arrayBuffer();
    else {
      for await (const chunk of response.body) {
        const now = performance.now();
        const text = (chunk as Buffer).toString("latin1");
        events += text.split("\ndata: ").length;
        if (Number.isNaN(firstMs) && /"content":"[^"]/.test(text)) firstMs = now - begun;
        gapMs = Math.max(gapMs, now - last);
        last = now;
      }
    }
    return { firstMs, totalMs: performance.now() - begun, gapMs, events };
  }

  close(): Promise<void> {
    return this.#pool.close();
  }
}

const SYSTEM = "You are an agent in a sandbox. Work step by step, run commands, look at what they print. ".repeat(21);
let requests = 0;

/** About two kilobytes, unlike any other. `capture`: what the gateway asks the engine for, so that the engine does the same work without it. */
export function chatRequest({ stream, capture }: { readonly stream: boolean; readonly capture: boolean }): string {
  const messages = [
    { role: "system", content: SYSTEM },
    { role: "user", content: `Task number ${requests++}.` },
  ];
  return JSON.stringify({ model: "test-model", messages, temperature: 1, stream, ...(capture ? { logprobs: true, return_token_ids: true, ...(stream ? { stream_options: { include_usage: true } } : {}) } : {}) });
}

/** Runs `total` calls, so many at a time; resolves to their times. */
export async function pump(total: number, concurrency: number, one: (worker: number) => Promise<Timed>): Promise<readonly Timed[]> {
  const times: Timed[] = [];
  let left = total;
  await Promise.all(
    Array.from({ length: concurrency }, async (_, worker) => {
      while (left-- > 0) times.push(await one(worker));
    }),
  );
  return times;
}
