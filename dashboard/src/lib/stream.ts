/** Server-sent events by fetch, which carries the key: connects again by itself and says where it had come to. */
import { request, ApiError } from "./api.ts";

export interface StreamMessage {
  readonly event: string;
  readonly id: string;
  readonly data: unknown;
}

export interface StreamHandlers {
  readonly message: (message: StreamMessage) => void;
  /** `gone`: there is nothing to follow any more. */
  readonly state: (state: "open" | "lost" | "ended" | "gone") => void;
}

const RETRY_MS = 1_000;
const RETRY_MOST_MS = 15_000;

export function follow(path: string, handlers: StreamHandlers): () => void {
  const ended = new AbortController();
  void run(path, handlers, ended.signal);
  return () => ended.abort();
}

async function run(path: string, { message, state }: StreamHandlers, signal: AbortSignal): Promise<void> {
  let last = "";
  let wait = RETRY_MS;
  while (!signal.aborted) {
    try {
      const response = await request(path, { signal, headers: last === "" ? {} : { "last-event-id": last } });
      state("open");
      let over = false;
      for await (const one of eventsOf(response)) {
        wait = RETRY_MS;
        if (one.id !== "") last = one.id;
        if (one.event === "gone") over = true;
        else message(one);
      }
      if (over) return state("gone");
      // An end without an error: the server has no more to say, or is being stopped. The next look tells.
      state("ended");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) return state("gone");
      state("lost");
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(RETRY_MOST_MS, wait * 2);
  }
}

async function* eventsOf(response: Response): AsyncGenerator<StreamMessage> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    let end = rest.indexOf("\n\n");
    while (end !== -1) {
      const message = parse(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (message !== null) yield message;
      end = rest.indexOf("\n\n");
    }
  }
}

function parse(block: string): StreamMessage | null {
  let event = "message";
  let id = "";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data === "") return null;
  try {
    return { event, id, data: JSON.parse(data) as unknown };
  } catch {
    return null;
  }
}
