import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import type { Task } from "../task/task.ts";
import { planRun, type PlanItem, type TaskInput } from "./plan.ts";

/** Only what planning looks at. */
const task = (name: string): Task => ({ name }) as Task;

async function* inputs(names: readonly string[]): AsyncGenerator<TaskInput> {
  for (const name of names) {
    const missing = name.startsWith("?");
    yield {
      source: name,
      directory: missing ? null : `/${name}`,
      error: missing ? new MwError("not_found", `${name} is not there`) : null,
      load: () => (name.startsWith("!") ? Promise.reject(new MwError("invalid_task", `${name} is broken`)) : Promise.resolve(task(name))),
    };
  }
}

const OPTIONS = { seed: "1", attempts: 3, harnesses: ["nop", "oracle"] };

async function plan(names: readonly string[], options: Partial<Parameters<typeof planRun>[1]> = {}): Promise<PlanItem[]> {
  const items: PlanItem[] = [];
  for await (const item of planRun(inputs(names), { ...OPTIONS, ...options })) items.push(item);
  return items;
}

const names = Array.from({ length: 50 }, (_, n) => `t${n}`);

describe("planRun", () => {
  it("plans everything once, the same for the same seed, otherwise for another", async () => {
    const first = await plan(names);
    expect(first.map((item) => item.source).sort()).toEqual([...names].sort());
    expect(await plan(names)).toEqual(first);
    const other = await plan(names, { seed: "2" });
    expect(other.map((item) => item.source)).not.toEqual(first.map((item) => item.source));
    const seeds = first.flatMap((item) => (item.kind === "group" ? item.attempts.map((attempt) => attempt.seed) : []));
    expect(new Set(seeds).size).toBe(150);
    const drawn = new Set(first.flatMap((item) => (item.kind === "group" ? item.attempts.map((attempt) => attempt.harness) : [])));
    expect(drawn).toEqual(new Set(["nop", "oracle"]));
  });

  it("says how many inputs there are, as soon as all of them are known", async () => {
    expect((await plan(names)).map((item) => item.inputs)).toEqual(names.map(() => names.length));
    const many = Array.from({ length: LIMITS.shuffleWindow + 2 }, (_, n) => `t${n}`);
    const told = (await plan(many)).map((item) => item.inputs);
    expect([told[0], told[1], told[2], told.at(-1)]).toEqual([undefined, undefined, many.length, many.length]);
  });

  it("lets unknown and broken inputs fail alone", async () => {
    const items = await plan(["a", "?b", "!c", "d"]);
    const kinds = Object.fromEntries(items.map((item) => [item.source, item.kind]));
    expect(kinds).toEqual({ a: "group", "?b": "refused", "!c": "broken", d: "group" });
    expect(items.find((item) => item.kind === "broken")).toMatchObject({ attempts: [{ attempt: 1 }, { attempt: 2 }, { attempt: 3 }], error: { code: "invalid_task" } });
  });

  it("goes on where an earlier plan stopped, at any place", async () => {
    const whole = await plan(names);
    await fc.assert(
      fc.asyncProperty(fc.nat({ max: names.length }), async (at) => {
        const rest = await plan(names, { skip: whole.slice(0, at).map((item) => item.source) });
        expect(rest).toEqual(whole.slice(at));
      }),
    );
  });

  it("refuses to go on when the inputs changed", async () => {
    const skip = (await plan(names)).slice(0, 20).map((item) => item.source);
    await expect(plan(names.slice(0, 40), { skip })).rejects.toMatchObject({ code: "conflict" });
    await expect(plan([], { skip })).rejects.toMatchObject({ code: "conflict" });
  });

  it("shuffles more than fits into memory through a window, losing nothing", async () => {
    const many = Array.from({ length: LIMITS.shuffleWindow * 2 }, (_, n) => `t${n}`);
    const seen = (await plan(many, { attempts: 1 })).map((item) => item.source);
    expect(new Set(seen).size).toBe(many.length);
    expect(seen.slice(0, 100)).not.toEqual(many.slice(0, 100));
  });
});
