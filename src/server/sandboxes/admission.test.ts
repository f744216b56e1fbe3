import { array, assert, asyncProperty, constantFrom, integer, nat, oneof, record } from "fast-check";
import { setMaxListeners } from "node:events";
import { describe, expect, it } from "vitest";
import { Admission, type AdmissionLimits, type Place } from "./admission.ts";

const LIMITS: AdmissionLimits = { atOnce: 1, places: 100, placesOfOwner: 100, waiting: 5, waitingOfOwner: 3, waitMs: 1000 };
const never = new AbortController().signal;
setMaxListeners(0, never);

/** Time that passes when it is told to. */
class Clock {
  #now = 0;
  readonly #sleepers = new Set<{ readonly at: number; readonly wake: () => void }>();

  monotonic(): number {
    return this.#now;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const sleeper = { at: this.#now + ms, wake: resolve };
      this.#sleepers.add(sleeper);
      signal?.addEventListener("abort", () => {
        this.#sleepers.delete(sleeper);
        reject(signal.reason);
      });
    });
  }

  get sleeping(): number {
    return this.#sleepers.size;
  }

  async pass(ms: number): Promise<void> {
    this.#now += ms;
    for (const sleeper of this.#sleepers) {
      if (sleeper.at > this.#now) continue;
      this.#sleepers.delete(sleeper);
      sleeper.wake();
    }
    await turn();
  }
}

/** What follows from what has happened has happened. */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Work that ends when it is told to. */
function gate(): { readonly work: () => Promise<void>; readonly open: () => void } {
  let open: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { work: () => opened, open };
}

describe("admission", () => {
  it("lets owners take turns, whatever each has waiting", async () => {
    const admission = new Admission(LIMITS, new Clock(), () => 1);
    const first = gate();
    const order: string[] = [];
    const all = [admission.run("a", never, 1, first.work)];
    for (const name of ["a1", "a2", "a3", "b1", "c1"]) all.push(admission.run(name.charAt(0), never, 1, async () => void order.push(name)));
    first.open();
    await Promise.all(all);
    expect(order).toEqual(["a1", "b1", "c1", "a2", "a3"]);
  });

  it("refuses beyond its bounds, for one owner and for all, and takes again when there is room", async () => {
    const admission = new Admission(LIMITS, new Clock(), () => 1);
    const first = gate();
    const all = [admission.run("a", never, 1, first.work)];
    for (let at = 0; at < 3; at++) all.push(admission.run("a", never, 1, async () => undefined));
    await expect(admission.run("a", never, 1, async () => undefined)).rejects.toMatchObject({ code: "overloaded", headers: { "retry-after": expect.stringMatching(/^[1-9]\d*$/) }, facts: { refusal: "owner_waiting" } });
    for (let at = 0; at < 2; at++) all.push(admission.run("b", never, 1, async () => undefined));
    await expect(admission.run("c", never, 1, async () => undefined)).rejects.toMatchObject({ code: "overloaded", facts: { refusal: "waiting" } });
    first.open();
    await Promise.all(all);
    await admission.run("a", never, 1, async () => undefined);
    expect(admission.refused).toEqual({ owner_places: 0, owner_waiting: 1, waiting: 1, waited: 0 });
  });

  it("forgets who gives up, and refuses all when it closes", async () => {
    const clock = new Clock();
    const admission = new Admission(LIMITS, clock, () => 1);
    const first = gate();
    const running = admission.run("a", never, 1, first.work);
    const stop = new AbortController();
    const given = admission.run("a", stop.signal, 1, async () => undefined);
    const waiting = admission.run("b", never, 1, async () => undefined);
    stop.abort(new Error("gave up"));
    await expect(given).rejects.toThrow("gave up");
    expect(admission.waiting).toBe(1);
    admission.close();
    await expect(waiting).rejects.toMatchObject({ code: "cancelled" });
    await expect(admission.run("a", never, 1, async () => undefined)).rejects.toMatchObject({ code: "cancelled" });
    first.open();
    await running;
    expect(clock.sleeping).toBe(0);
  });

  it("makes what finds no place wait, for so long", async () => {
    const clock = new Clock();
    const admission = new Admission({ ...LIMITS, places: 2, placesOfOwner: 2 }, clock, () => 1);
    const [one] = await admission.run("a", never, 2, async (places) => places);
    const second = admission.run("b", never, 1, async () => "made");
    const late = admission.run("c", never, 1, async () => "made").catch((error: unknown) => error);
    await clock.pass(999);
    one?.release();
    one?.release();
    expect(await second).toBe("made");
    await clock.pass(1);
    expect(await late).toMatchObject({ code: "overloaded", facts: { refusal: "waited" } });
    expect([admission.held, admission.waiting, clock.sleeping]).toEqual([2, 0, 0]);
  });

  it("refuses at once what an owner's own limit forbids", async () => {
    const admission = new Admission({ ...LIMITS, placesOfOwner: 2 }, new Clock(), () => 1);
    await admission.run("a", never, 2, async () => undefined);
    await expect(admission.run("a", never, 1, async () => undefined)).rejects.toMatchObject({ code: "overloaded", facts: { refusal: "owner_places" } });
    await expect(admission.run("b", never, 3, async () => undefined)).rejects.toMatchObject({ code: "limit_exceeded" });
    await admission.run("b", never, 1, async () => undefined);
  });

  it("keeps room for others from an owner that would fill the host and never ends anything", async () => {
    const clock = new Clock();
    const admission = new Admission({ ...LIMITS, atOnce: 16, waiting: 20_000, waitingOfOwner: 10_000 }, clock, () => 3);
    const flood = Array.from({ length: 10_000 }, () => admission.run("greedy", new AbortController().signal, 1, async () => undefined).catch(() => null));
    await turn();
    expect(admission.held).toBe(90);
    for (let at = 0; at < 10; at++) await admission.run("modest", never, 1, async () => undefined);
    expect(admission.held).toBe(100);
    await clock.pass(1000);
    expect(await Promise.all(flood)).toHaveLength(10_000);
    expect(admission.refused.waited).toBe(9910);
  });

  it("gives places that come free to those who have fewest", async () => {
    const admission = new Admission({ ...LIMITS, places: 10, placesOfOwner: 10, atOnce: 10, waiting: 1000, waitingOfOwner: 1000 }, new Clock(), () => 1);
    const held: Place[] = [...(await admission.run("first", never, 10, async (places) => places))];
    const made = { first: 0, second: 0 };
    for (const owner of ["first", "second"] as const) for (let at = 0; at < 50; at++) void admission.run(owner, never, 1, async () => void made[owner]++).catch(() => undefined);
    for (const place of held.splice(0, 5)) place.release();
    await turn();
    // Five each: equal shares.
    expect(made).toEqual({ first: 0, second: 5 });
    admission.close();
  });

  it("meets what stood behind a request that is given up, and needs less", async () => {
    const admission = new Admission({ ...LIMITS, places: 5, placesOfOwner: 5 }, new Clock(), () => 2);
    const stop = new AbortController();
    const large = admission.run("a", stop.signal, 5, async () => "large").catch((error: unknown) => error);
    const small = admission.run("a", never, 1, async () => "small");
    stop.abort(new Error("gave up"));
    expect(await large).toMatchObject({ message: "gave up" });
    expect(await small).toBe("small");
  });

  it("holds its bounds, leaves no processor idle, and ends everything, whatever happens in whatever order", async () => {
    const step = oneof(
      { weight: 4, arbitrary: record({ do: constantFrom("ask" as const), owner: constantFrom("a", "b", "c", "d"), count: constantFrom(1, 1, 1, 2, 5) }) },
      { weight: 3, arbitrary: record({ do: constantFrom("made" as const, "failed" as const, "ended" as const, "given up" as const), which: nat(1000) }) },
      { weight: 1, arbitrary: record({ do: constantFrom("passes" as const), ms: nat(1500) }) },
    );
    const limits = record({ atOnce: integer({ min: 1, max: 4 }), places: integer({ min: 5, max: 12 }), placesOfOwner: integer({ min: 5, max: 12 }), waiting: integer({ min: 1, max: 12 }), waitingOfOwner: integer({ min: 1, max: 6 }) });
    await assert(
      asyncProperty(limits, integer({ min: 1, max: 5 }), array(step, { maxLength: 80 }), async (drawn, owners, steps) => {
        const bounds: AdmissionLimits = { ...drawn, placesOfOwner: Math.min(drawn.places, drawn.placesOfOwner), waitMs: 1000 };
        const clock = new Clock();
        const admission = new Admission(bounds, clock, () => owners);
        const making: { readonly owner: string; readonly places: readonly Place[]; readonly end: (failed: boolean) => void }[] = [];
        const waiting: { readonly owner: string; readonly count: number; readonly since: number; readonly stop: AbortController }[] = [];
        const living: { readonly owner: string; readonly place: Place }[] = [];
        let asked = 0;
        const over = { ended: 0 };
        const ask = (owner: string, count: number): void => {
          asked++;
          const stop = new AbortController();
          const waiter = { owner, count, since: clock.monotonic(), stop };
          waiting.push(waiter);
          const leave = (): void => void (waiting.includes(waiter) && waiting.splice(waiting.indexOf(waiter), 1));
          admission
            .run(owner, stop.signal, count, async (places) => {
              leave();
              await new Promise<void>((resolve, reject) => making.push({ owner, places, end: (failed) => (failed ? reject(new Error("failed")) : resolve()) }));
              for (const place of places) living.push({ owner, place });
            })
            .catch(() => leave())
            .finally(() => over.ended++);
        };
        const check = (): void => {
          const of = (owner: string): number => living.filter((one) => one.owner === owner).length + making.filter((one) => one.owner === owner).reduce((sum, { places }) => sum + places.length, 0);
          const held = ["a", "b", "c", "d"].reduce((sum, owner) => sum + of(owner), 0);
          expect(admission.held).toBe(held);
          expect(admission.waiting).toBe(waiting.length);
          expect(held).toBeLessThanOrEqual(bounds.places);
          expect(making.length).toBeLessThanOrEqual(bounds.atOnce);
          expect(waiting.length).toBeLessThanOrEqual(bounds.waiting);
          for (const owner of ["a", "b", "c", "d"]) {
            expect(of(owner)).toBeLessThanOrEqual(bounds.placesOfOwner);
            const line = waiting.filter((one) => one.owner === owner);
            expect(line.length).toBeLessThanOrEqual(bounds.waitingOfOwner);
            const [head] = line;
            if (head === undefined || making.length === bounds.atOnce) continue;
            expect(clock.monotonic() - head.since).toBeLessThan(bounds.waitMs);
            // Whoever waits although creations could begin is kept by a bound, never by what others have waiting.
            const left = bounds.places - held - head.count;
            const kept = left < 0 || of(owner) + head.count > bounds.placesOfOwner || (owners > 1 && left < Math.ceil(bounds.places / 10) && of(owner) + head.count > Math.max(1, Math.floor(bounds.places / owners)));
            expect(kept).toBe(true);
          }
        };
        for (const one of steps) {
          if (one.do === "ask") ask(one.owner, one.count);
          else if (one.do === "passes") await clock.pass(one.ms);
          else if (one.do === "given up") waiting[one.which % (waiting.length || 1)]?.stop.abort(new Error("gave up"));
          else if (one.do === "ended") living.splice(one.which % (living.length || 1), 1)[0]?.place.release();
          else making.splice(one.which % (making.length || 1), 1)[0]?.end(one.do === "failed");
          await turn();
          check();
        }
        // Whoever still waits is met or refused in its time.
        while (over.ended < asked) {
          for (const { end } of making.splice(0)) end(false);
          await clock.pass(250);
          for (const { place } of living.splice(0)) place.release();
          await turn();
        }
        for (const { place } of living.splice(0)) place.release();
        expect([admission.held, admission.waiting, clock.sleeping]).toEqual([0, 0, 0]);
      }),
      { numRuns: 200 },
    );
  });

  it("meets an owner's requests at its share of the pace, whatever a flood of others asks for", async () => {
    await assert(
      asyncProperty(integer({ min: 1, max: 8 }), integer({ min: 1, max: 5 }), integer({ min: 1, max: 12 }), async (atOnce, others, wanted) => {
        const admission = new Admission({ ...LIMITS, atOnce, places: 100_000, placesOfOwner: 100_000, waiting: 100_000, waitingOfOwner: 100_000 }, new Clock(), () => others + 1);
        const ends: (() => void)[] = [];
        const creation = async (): Promise<void> => new Promise<void>((resolve) => ends.push(resolve));
        for (let other = 0; other < others; other++) for (let at = 0; at < 60; at++) void admission.run(`flood-${other}`, never, 1, creation).catch(() => undefined);
        const count = { met: 0, ended: 0 };
        for (let at = 0; at < wanted; at++) void admission.run("modest", never, 1, async () => void (await creation(), count.met++)).catch(() => undefined);
        // Each creation that ends makes room for one: of those, its share is this owner's.
        while (count.met < wanted) {
          await turn();
          ends.shift()?.();
          count.ended++;
        }
        expect(count.ended).toBeLessThanOrEqual(wanted * (others + 1) + 2 * atOnce + others + 1);
        admission.close();
        for (const end of ends) end();
      }),
      { numRuns: 25 },
    );
  });
});
