#!/bin/bash
set -euo pipefail
cat > /app/queue.js <<'JS'
"use strict";

class CancelledError extends Error {
  constructor() {
    super("cancelled");
    this.name = "CancelledError";
  }
}

class JobQueue {
  #concurrency;
  #retries;
  #waiting = [];
  #running = 0;
  #order = 0;
  #idle = [];

  constructor({ concurrency = 1, retries = 0 } = {}) {
    if (!Number.isInteger(concurrency) || concurrency < 1) throw new RangeError("concurrency must be an integer of at least 1");
    this.#concurrency = concurrency;
    this.#retries = retries;
  }

  get size() {
    return this.#waiting.length;
  }

  get active() {
    return this.#running;
  }

  add(job, { priority = 0, signal } = {}) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(new CancelledError());
      const entry = { job, priority, order: this.#order++, attempts: 0, signal, waiting: false };
      const onAbort = () => {
        if (!entry.waiting) return;
        this.#waiting.splice(this.#waiting.indexOf(entry), 1);
        entry.settle(reject, new CancelledError());
        this.#checkIdle();
      };
      entry.settle = (how, value) => {
        signal?.removeEventListener("abort", onAbort);
        how(value);
      };
      entry.resolve = resolve;
      entry.reject = reject;
      signal?.addEventListener("abort", onAbort);
      this.#enqueue(entry);
      this.#start();
    });
  }

  onIdle() {
    if (this.#running === 0 && this.#waiting.length === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  #enqueue(entry) {
    entry.waiting = true;
    let at = this.#waiting.findIndex((other) => other.priority < entry.priority || (other.priority === entry.priority && other.order > entry.order));
    if (at < 0) at = this.#waiting.length;
    this.#waiting.splice(at, 0, entry);
  }

  #start() {
    while (this.#running < this.#concurrency && this.#waiting.length > 0) {
      const entry = this.#waiting.shift();
      entry.waiting = false;
      this.#running++;
      void this.#attempt(entry);
    }
  }

  async #attempt(entry) {
    entry.attempts++;
    try {
      const value = await entry.job(entry.signal);
      this.#running--;
      entry.settle(entry.resolve, value);
    } catch (error) {
      this.#running--;
      if (entry.signal?.aborted) entry.settle(entry.reject, new CancelledError());
      else if (entry.attempts <= this.#retries) this.#enqueue(entry);
      else entry.settle(entry.reject, error);
    }
    this.#start();
    this.#checkIdle();
  }

  #checkIdle() {
    if (this.#running > 0 || this.#waiting.length > 0) return;
    const waiters = this.#idle;
    this.#idle = [];
    // A microtask later, so that whoever awaits the last job hears of it first.
    queueMicrotask(() => queueMicrotask(() => waiters.forEach((resolve) => resolve())));
  }
}

module.exports = { JobQueue, CancelledError };
JS
