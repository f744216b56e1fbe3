import { array, assert, integer, property } from "fast-check";
import { expect, it } from "vitest";
import { Demand, IDLE_MS } from "./demand.ts";
import { short } from "./memory-pressure.ts";

function after(arrivals: readonly number[]): Demand {
  const demand = new Demand();
  for (const at of arrivals) demand.arrived(at);
  return demand;
}

it("keeps nothing for one request, one for a trickle, and what arrives while one is made for a stream", () => {
  expect(after([0]).target(1, 100)).toBe(0);
  expect(after([0, 5000]).target(5000, 100)).toBe(1);
  // 20 a second, each taking half a second: 10 on average, and two standard deviations.
  const stream = Array.from({ length: 2000 }, (_, at) => at * 50);
  expect(after(stream).target(stream.at(-1) ?? 0, 500)).toBeGreaterThanOrEqual(15);
  expect(after(stream).target(stream.at(-1) ?? 0, 500)).toBeLessThanOrEqual(18);
});

it("covers the largest recent burst, less with time", () => {
  const demand = after(Array.from({ length: 16 }, (_, at) => at));
  expect(demand.target(20, 10)).toBe(16);
  expect(demand.target(30_000, 10)).toBe(8);
  for (let at = 0; at < 3; at++) demand.arrived(30_000 + at * 1000);
  expect(demand.target(33_000, 10)).toBeLessThan(9);
});

it("keeps nothing for what is no longer asked for", () => {
  const demand = after([0, 1, 2, 3]);
  expect(demand.target(IDLE_MS, 10)).toBeGreaterThan(0);
  expect(demand.target(IDLE_MS + 4, 10)).toBe(0);
  // And begins anew.
  demand.arrived(IDLE_MS + 1000);
  expect(demand.target(IDLE_MS + 1000, 10)).toBe(0);
});

it("never asks for more than has been asked of it, whatever arrives when", () => {
  assert(
    property(array(integer({ min: 0, max: 5000 }), { maxLength: 100 }), integer({ min: 1, max: 2000 }), (gaps, leadMs) => {
      let now = 0;
      const demand = new Demand();
      for (const gap of gaps) demand.arrived((now += gap));
      const target = demand.target(now, leadMs);
      expect(Number.isInteger(target)).toBe(true);
      expect(target).toBeLessThanOrEqual(gaps.length + Math.ceil(2 * Math.sqrt(gaps.length)));
      expect(target).toBeGreaterThanOrEqual(0);
    }),
  );
});

it("tells a host that is short of memory", () => {
  const memory = (available: number): string => `MemTotal:       24684540 kB\nMemFree: 1 kB\nMemAvailable:   ${available} kB\n`;
  const pressure = (some: number): string => `some avg10=${some.toFixed(2)} avg60=0.00 avg300=0.00 total=1\nfull avg10=90.00 avg60=0.00 avg300=0.00 total=1\n`;
  expect(short(memory(20_000_000), pressure(0))).toBe(false);
  expect(short(memory(2_000_000), pressure(0))).toBe(true);
  expect(short(memory(20_000_000), pressure(11))).toBe(true);
  expect(short(memory(20_000_000), "")).toBe(false);
  expect(short("", "")).toBe(false);
});
