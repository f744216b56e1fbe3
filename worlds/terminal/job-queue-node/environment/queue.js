"use strict";

class CancelledError extends Error {
  constructor() {
    super("cancelled");
    this.name = "CancelledError";
  }
}

class JobQueue {
  constructor({ concurrency = 1, retries = 0 } = {}) {
    this.concurrency = concurrency;
    this.retries = retries;
    this.waiting = [];
    this.running = 0;
    this.idleWaiters = [];
  }

  add(job, { priority = 0, signal } = {}) {
    return new Promise((resolve, reject) => {
      const entry = { job, priority, resolve, reject, attempts: 0 };
      this.waiting.push(entry);
      this.waiting.sort((a, b) => a.priority - b.priority);
      if (signal) {
        signal.addEventListener("abort", () => {
          this.waiting.splice(this.waiting.indexOf(entry), 1);
          reject(new CancelledError());
        });
      }
      setImmediate(() => this.next());
    });
  }

  async next() {
    if (this.running > this.concurrency) return;
    const entry = this.waiting.shift();
    if (!entry) return;
    this.running++;
    try {
      entry.attempts++;
      entry.resolve(await entry.job());
    } catch (error) {
      if (entry.attempts < this.retries) this.waiting.push(entry);
      else throw error;
    }
    this.running--;
    this.next();
    if (this.running === 0) this.idleWaiters.forEach((resolve) => resolve());
  }

  onIdle() {
    return new Promise((resolve) => this.idleWaiters.push(resolve));
  }
}

module.exports = { JobQueue, CancelledError };
