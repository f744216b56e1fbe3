/** Work that several callers want at once is done once. It stops when every caller has gone away. */
interface Job<T> {
  readonly promise: Promise<T>;
  readonly controller: AbortController;
  callers: number;
}

export class SharedWork<T> {
  readonly #jobs = new Map<string, Job<T>>();

  run(key: string, work: (signal: AbortSignal) => Promise<T>, signal?: AbortSignal): Promise<T> {
    if (signal?.aborted === true) return Promise.reject(signal.reason);
    let job = this.#jobs.get(key);
    if (job === undefined) {
      const controller = new AbortController();
      const promise = work(controller.signal).finally(() => {
        if (this.#jobs.get(key) === started) this.#jobs.delete(key);
      });
      promise.catch(() => undefined);
      const started: Job<T> = { promise, controller, callers: 0 };
      job = started;
      this.#jobs.set(key, job);
    }
    return this.#join(key, job, signal);
  }

  #join(key: string, job: Job<T>, signal: AbortSignal | undefined): Promise<T> {
    job.callers++;
    return new Promise<T>((resolve, reject) => {
      const leave = (): void => {
        signal?.removeEventListener("abort", onAbort);
        job.callers--;
      };
      const onAbort = (): void => {
        leave();
        if (job.callers === 0) {
          // A later caller must not join work that is being stopped.
          if (this.#jobs.get(key) === job) this.#jobs.delete(key);
          job.controller.abort(signal?.reason);
        }
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      job.promise.then(
        (value) => (leave(), resolve(value)),
        (error: unknown) => (leave(), reject(error)),
      );
    });
  }
}
