/**
 * Pause on think: while a machine's agent waits for its model and nothing of the answer has come yet, the machine stands still. A frozen machine takes no CPU time, and
 * whatever the agent left in the background stands still with it: that is why it is off unless the run asks for it.
 */
import type { Runtime } from "../core/runtime.ts";
import type { GatewaySession } from "../gateway/session.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";

/** Models that answer sooner are not worth the two trips to the kernel. */
const PATIENCE_MS = 20;

export class PauseOnThink {
  readonly #sandbox: Pick<Sandbox, "freeze" | "thaw">;
  readonly #runtime: Runtime;
  readonly #unsubscribe: () => void;
  #wanted = false;
  #frozenSince: number | null = null;
  #frozenMs = 0;
  #over = false;
  #waiting: AbortController | null = null;
  /** Freezing and thawing, one after the other. */
  #work: Promise<void> = Promise.resolve();

  constructor(sandbox: Pick<Sandbox, "freeze" | "thaw">, session: Pick<GatewaySession, "onThinking">, runtime: Runtime) {
    this.#sandbox = sandbox;
    this.#runtime = runtime;
    this.#unsubscribe = session.onThinking((thinking) => this.#want(thinking > 0));
  }

  /** The machine runs, and is left alone from now on. Gives back how long it stood still, milliseconds. Idempotent. */
  async stop(): Promise<number> {
    this.#over = true;
    this.#unsubscribe();
    this.#want(false);
    await this.#work;
    return this.#frozenMs;
  }

  #want(frozen: boolean): void {
    if (this.#wanted === frozen || (frozen && this.#over)) return;
    this.#wanted = frozen;
    this.#waiting?.abort("changed");
    this.#waiting = null;
    if (!frozen) {
      this.#settle();
      return;
    }
    const waiting = new AbortController();
    this.#waiting = waiting;
    this.#runtime.sleep(PATIENCE_MS, waiting.signal).then(
      () => this.#settle(),
      () => undefined,
    );
  }

  /** Brings the machine to what is wanted by the time its turn comes. */
  #settle(): void {
    this.#work = this.#work.then(async () => {
      if (this.#wanted === (this.#frozenSince !== null)) return;
      try {
        if (this.#wanted) {
          await this.#sandbox.freeze();
          this.#frozenSince = this.#runtime.monotonic();
        } else {
          await this.#sandbox.thaw();
          this.#count();
        }
      } catch {
        // A machine that has ended stands still by itself; one that would not freeze in time is thawed with the next wish.
        if (this.#wanted) await this.#sandbox.thaw().catch(() => undefined);
        this.#count();
      }
    });
  }

  #count(): void {
    if (this.#frozenSince !== null) this.#frozenMs += this.#runtime.monotonic() - this.#frozenSince;
    this.#frozenSince = null;
  }
}
