/** Waiting that explains itself: nothing is said about what is soon over. */
import type { Runtime } from "./runtime.ts";

/** Time after which a person at the terminal wonders what is going on. */
const PATIENCE_MS = 3_000;

/** What the work gives; `tell` is called once when that takes longer than a person likes to wait. */
export async function tellWhenSlow<T>(runtime: Pick<Runtime, "sleep">, tell: () => void, work: Promise<T>): Promise<T> {
  const done = new AbortController();
  runtime.sleep(PATIENCE_MS, done.signal).then(tell, () => undefined);
  try {
    return await work;
  } finally {
    done.abort();
  }
}
