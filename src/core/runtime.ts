/**
 * The one door through which time, randomness and timers come in, so that tests and simulations can run everything by seed.
 */
import { randomBytes as nodeRandomBytes } from "node:crypto";

export interface Runtime {
  /** Wall clock, milliseconds since the epoch. For records, never for measuring. */
  now(): number;
  /** Monotonic milliseconds, fractional. For durations and deadlines. */
  monotonic(): number;
  randomBytes(length: number): Uint8Array;
  /** Resolves after `ms`; rejects with the signal's reason when aborted first. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

export const systemRuntime: Runtime = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  randomBytes: pooledRandomBytes,
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const onAbort = (): void => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      }, ms);
      signal?.addEventListener("abort", onAbort, { once: true });
    }),
};

const pool = { bytes: new Uint8Array(0), used: 0 };

/** Ids take a few bytes each, and asking the system costs more than all of the rest of an id. Every byte is given out once. */
function pooledRandomBytes(length: number): Uint8Array {
  if (length > 64) return nodeRandomBytes(length);
  if (pool.used + length > pool.bytes.length) {
    pool.bytes = new Uint8Array(nodeRandomBytes(4096));
    pool.used = 0;
  }
  const bytes = pool.bytes.slice(pool.used, pool.used + length);
  pool.bytes.fill(0, pool.used, pool.used + length);
  pool.used += length;
  return bytes;
}

const rotl = (x: number, k: number): number => (x << k) | (x >>> (32 - k));

/** A deterministic stream of numbers in [0, 1) from a seed string (xoshiro128**, seeded by FNV-1a). Not for secrets. */
export function seededRandom(seed: string): () => number {
  let hash = 0x811c9dc5;
  const state = new Uint32Array(4);
  for (let word = 0; word < 4; word++) {
    for (const char of `${word}:${seed}`) {
      hash ^= char.codePointAt(0) ?? 0;
      hash = Math.imul(hash, 0x01000193);
    }
    state[word] = hash || 1;
  }
  const next = (): number => {
    // The array has four elements by construction.
    const [s0 = 0, s1 = 0, s2 = 0, s3 = 0] = state;
    const result = Math.imul(rotl(Math.imul(s1, 5), 7), 9) >>> 0;
    const t = s1 << 9;
    const n2 = s2 ^ s0;
    const n3 = s3 ^ s1;
    state[1] = s1 ^ n2;
    state[0] = s0 ^ n3;
    state[2] = n2 ^ t;
    state[3] = rotl(n3, 11);
    return result / 0x1_0000_0000;
  };
  for (let i = 0; i < 16; i++) next();
  return next;
}
