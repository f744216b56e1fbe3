/** A thread that answers requests, one after another, and what talks to it. */
import { parentPort, Worker, workerData } from "node:worker_threads";
import { messageOf, MwError } from "../core/errors.ts";

/** What a kind of thread is given, is asked and answers: structured clones, all of them. */
export interface ThreadContract {
  readonly given: unknown;
  readonly request: unknown;
  readonly result: unknown;
}

type Reply<Result> = { readonly ok: true; readonly result: Result } | { readonly ok: false; readonly message: string };

export class Thread<Contract extends ThreadContract> {
  readonly #worker: Worker;
  readonly #name: string;
  readonly #waiting: ((reply: Reply<Contract["result"]>) => void)[] = [];
  #ended: string | null = null;

  /** `module`: without its ending, beside the module at `base`. What the thread is given is copied. */
  constructor(name: string, module: string, base: string, given: Contract["given"]) {
    this.#name = name;
    // Threads take no loader on Node 20: what runs from source starts them as they were built.
    const url = new URL(module, base).href.replace(/\/src\/(?=trainer\/[^/]*$)/, "/dist/");
    this.#worker = new Worker(new URL(`${url}.js`), { workerData: given });
    this.#worker.on("message", (reply: Reply<Contract["result"]>) => this.#waiting.shift()?.(reply));
    this.#worker.on("error", (error) => this.#end(messageOf(error)));
    this.#worker.on("exit", (code) => this.#end(`it ended with code ${code}`));
  }

  ask(request: Contract["request"]): Promise<Contract["result"]> {
    return new Promise((resolve, reject) => {
      const take = (reply: Reply<Contract["result"]>): void => (reply.ok ? resolve(reply.result) : reject(new MwError("internal", `${this.#name}: ${reply.message}`)));
      if (this.#ended !== null) return take({ ok: false, message: this.#ended });
      this.#waiting.push(take);
      // oxlint-disable-next-line unicorn/require-post-message-target-origin -- threads have no origin
      this.#worker.postMessage(request);
    });
  }

  async close(): Promise<void> {
    this.#ended ??= "closed";
    await this.#worker.terminate();
  }

  #end(why: string): void {
    this.#ended ??= why;
    for (const take of this.#waiting.splice(0)) take({ ok: false, message: this.#ended });
  }
}

/** For the thread's module: answers what it is asked. `begin` gets what the thread was given. */
export async function serveThread<Contract extends ThreadContract>(begin: (given: Contract["given"]) => Promise<(request: Contract["request"]) => Promise<Contract["result"]>>): Promise<void> {
  // Given by `Thread`, whose types are these.
  const answer = await begin(workerData as Contract["given"]);
  let turn: Promise<unknown> = Promise.resolve();
  parentPort?.on("message", (request: Contract["request"]) => {
    turn = turn.then(async () => {
      const reply: Reply<Contract["result"]> = await answer(request).then(
        (result) => ({ ok: true, result }) as const,
        (error: unknown) => ({ ok: false, message: messageOf(error) }) as const,
      );
      // oxlint-disable-next-line unicorn/require-post-message-target-origin -- threads have no origin
      parentPort?.postMessage(reply);
    });
  });
}
