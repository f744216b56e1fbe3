/** Server-sent events over an answer that fastify has handed over: one writer, which waits for a slow reader. */
import { once } from "node:events";
import type { FastifyReply } from "fastify";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";

/** How often what somebody follows is looked at where nothing else is said. What changed meanwhile goes out together. */
const LOOK_MS = 250;
/** Silence that proxies and browsers take for a dead connection. */
const KEEPALIVE_MS = 15_000;

export interface StreamEvent {
  readonly id: string;
  readonly event: string;
  readonly data: unknown;
}

/** What has happened since the last look; `last`: nothing more will. */
export type Look = () => Promise<{ readonly events: readonly StreamEvent[]; readonly last: boolean }>;

export class EventStreams {
  readonly #runtime: Runtime;
  readonly #open = new Set<AbortController>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** Sends what `look` finds, again and again, until the reader goes or `look` says that it is over (`last`). */
  async follow(reply: FastifyReply, look: Look, everyMs: number = LOOK_MS): Promise<void> {
    if (this.#open.size >= LIMITS.viewStreams) throw new MwError("host_exhausted", `${LIMITS.viewStreams} pages follow runs already`, { fix: "close some of them" });
    const ended = new AbortController();
    this.#open.add(ended);
    reply.hijack();
    const { raw } = reply;
    raw.on("close", () => ended.abort());
    raw.writeHead(200, { ...headersOf(reply), "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no" });
    raw.write("retry: 1000\n\n");
    try {
      await this.#send(reply, look, everyMs, ended.signal);
    } catch (error) {
      // The answer has begun: its end is all that can still be said.
      if (!ended.signal.aborted) raw.write(`event: gone\ndata: ${JSON.stringify({ detail: error instanceof Error ? error.message : String(error) })}\n\n`);
    } finally {
      this.#open.delete(ended);
      raw.end();
    }
  }

  /** Ends every stream; its readers connect again when there is somebody to connect to. */
  close(): void {
    for (const ended of this.#open) ended.abort();
  }

  async #send({ raw }: FastifyReply, look: Look, everyMs: number, signal: AbortSignal): Promise<void> {
    let saidAt = this.#runtime.monotonic();
    while (!signal.aborted) {
      const { events, last } = await look();
      const now = this.#runtime.monotonic();
      const text = events.length === 0 && now - saidAt > KEEPALIVE_MS ? ": still here\n\n" : events.map(({ id, event, data }) => `id: ${id}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join("");
      if (text !== "") {
        saidAt = now;
        if (!raw.write(text)) await once(raw, "drain", { signal }).catch(() => undefined);
      }
      if (last) return;
      await this.#runtime.sleep(everyMs, signal).catch(() => undefined);
    }
  }
}

/** What hooks have set for every answer. */
function headersOf(reply: FastifyReply): Record<string, string> {
  return Object.fromEntries(Object.entries(reply.getHeaders()).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]])));
}
