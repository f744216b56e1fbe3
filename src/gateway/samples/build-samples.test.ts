import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { bash, SimulatedSession, system, text, tool, turnOf, user } from "../../../test/support/gateway/simulated-session.ts";
import type { Call } from "../call.ts";
import type { Message } from "../conversation.ts";
import { buildTrace } from "../trace/trace.ts";
import { buildSamples, type SampleOptions } from "./build-samples.ts";
import { BUILDERS, checkLedger, type SampleSet } from "./sample.ts";

const HEAD: readonly Message[] = [system("You are an agent."), user("Repair the program.")];
const build = (calls: readonly Call[], options: SampleOptions): SampleSet => buildSamples(calls, buildTrace(calls, { turnOf }), options);
const lengthOf = (calls: readonly Call[]): number => calls.reduce((sum, { tokens }) => sum + (tokens?.completionIds.length ?? 0), 0);

function play(session: SimulatedSession, head: readonly Message[], turns: number, drift: (turn: number) => boolean = () => false): readonly Message[] {
  const messages = [...head];
  for (let turn = 1; turn <= turns; turn++) {
    const answer = [bash(`step ${turn} of ${session.calls.length}`)];
    messages.push(session.call({ messages: [...messages], answer, drift: drift(turn) }), tool(`output ${turn}`));
  }
  return messages;
}

describe("buildSamples", () => {
  it("makes one sample of a conversation whose tokens extend, and one for each call on demand", () => {
    const session = new SimulatedSession("line");
    play(session, HEAD, 3);
    const merged = build(session.calls, { builder: "prefix-merge" });
    expect(merged.samples.length).toBe(1);
    expect(merged.samples[0]).toMatchObject({ calls: [1, 2, 3], kind: "main", sharedLength: 0 });
    expect(merged.samples[0]?.promptLength).toBe(session.calls[0]?.tokens?.promptIds.length);
    expect(merged.samples[0]?.spans.map(({ origin, call }) => `${origin} ${call}`)).toEqual(["context 1", "trained 1", "context 2", "trained 2", "context 3", "trained 3"]);
    expect(merged.versions).toEqual(["1", "2"]);
    const each = build(session.calls, { builder: "per-call" });
    expect(each.samples.map(({ calls }) => calls)).toEqual([[1], [2], [3]]);
    expect(each.ledger.trained).toBe(merged.ledger.trained);
    expect(each.ledger.tokens).toBeGreaterThan(merged.ledger.tokens);
  });

  it("begins a new sample where the harness spelt an answer anew, or goes on in its spelling and gives that answer up", () => {
    const session = new SimulatedSession("drift");
    play(session, HEAD, 4, (turn) => turn === 2);
    const merged = build(session.calls, { builder: "prefix-merge" });
    // The second sample begins with what the first trained of call 1.
    expect(merged.samples.map(({ calls }) => calls)).toEqual([[1, 2], [1, 3, 4]]);
    expect(merged.samples[1]?.spans.map(({ origin }) => origin)).toEqual(["shared", "shared", "context", "trained", "context", "trained"]);
    expect(merged.ledger).toMatchObject({ sampled: lengthOf(session.calls), trained: lengthOf(session.calls) });
    const realigned = build(session.calls, { builder: "realign" });
    expect(realigned.samples.map(({ calls }) => calls)).toEqual([[1, 2, 3, 4]]);
    expect(realigned.ledger.dropped.realigned).toBe(session.calls[1]?.tokens?.completionIds.length);
    expect(build(session.calls, { builder: "realign", realignBelow: 1 }).samples.length).toBe(2);
  });

  it("trains what branches share once", () => {
    const session = new SimulatedSession("branches");
    const history = play(session, HEAD, 1);
    session.call({ messages: history, answer: [text("thrown away")] });
    const chosen = session.call({ messages: history, answer: [bash("go on")] });
    session.call({ messages: [...history, chosen, tool("ok")], answer: [text("Done.")] });
    const { samples, ledger } = build(session.calls, { builder: "prefix-merge" });
    expect(samples.map(({ calls, kind }) => [kind, calls])).toEqual([
      ["main", [1, 3, 4]],
      ["branch", [1, 2]],
    ]);
    expect(samples[1]?.sharedLength).toBe((session.calls[0]?.tokens?.promptIds.length ?? 0) + (session.calls[0]?.tokens?.completionIds.length ?? 0));
    expect(ledger.trained).toBe(lengthOf(session.calls));
  });

  it("does not train what a branch inherited, nor counts it, whatever it does with it", () => {
    const session = new SimulatedSession("inherited");
    const history = play(session, HEAD, 2);
    // A side branch of the parent's alone, which is no sample here.
    session.call({ messages: history, answer: [text("thrown away")] });
    const inherited = session.calls.length;
    const own = [...history];
    own.push(session.call({ messages: [...own], answer: [bash("mine")], drift: true }), tool("a"));
    own.push(session.call({ messages: [...own], answer: [bash("mine too")] }), tool("b"));
    for (const builder of BUILDERS) {
      const set = build(session.calls, { builder, inherited });
      const lost = builder === "realign" ? lengthOf(session.calls.slice(inherited, inherited + 1)) : 0;
      expect(set.ledger).toMatchObject({ sampled: lengthOf(session.calls.slice(inherited)), trained: lengthOf(session.calls.slice(inherited)) - lost });
      for (const { calls, lossMask, promptLength, spans } of set.samples) {
        expect(calls.at(-1)).toBeGreaterThan(inherited);
        expect(lossMask.indexOf(1)).toBe(promptLength);
        for (const { origin, call } of spans) if (origin === "trained") expect(call).toBeGreaterThan(inherited);
      }
      if (builder === "prefix-merge") expect(set.ledger.masked.inherited).toBeGreaterThanOrEqual(lengthOf(session.calls.slice(0, 2)));
    }
    expect(build(session.calls, { builder: "prefix-merge", inherited: session.calls.length })).toMatchObject({ samples: [], ledger: { sampled: 0, trained: 0, tokens: 0 } });
  });

  it("drops what must not be trained, by cause", () => {
    const session = new SimulatedSession("drops");
    const side = { messages: [user("Write a title.")], tools: [], answer: [text("T")] } as const;
    session.call(side);
    const history = play(session, HEAD, 1);
    session.call({ messages: history, answer: [text("half")], status: "incomplete" });
    session.call({ messages: history, answer: [], status: "failed" });
    session.call({ messages: [...history, user("a")], answer: [text("x")], tokens: "none" });
    session.call({ messages: [...history, user("b")], answer: [text("y")], tokens: "no_logprobs" });
    const count = (number: number): number => session.calls[number - 1]?.answer?.usage?.completionTokens ?? 0;
    const { ledger, samples } = build(session.calls, { builder: "prefix-merge" });
    expect(ledger.dropped).toEqual({ kind: count(1), incomplete: count(3), no_tokens: count(5), no_logprobs: count(6), realigned: 0, too_long: 0 });
    expect(samples.map(({ calls }) => calls)).toEqual([[2]]);
    expect(build(session.calls, { builder: "per-call", kinds: ["side"] }).samples.map(({ calls }) => calls)).toEqual([[1]]);
  });

  it("cuts at the length that the trainer takes, and says how much", () => {
    const session = new SimulatedSession("long");
    play(session, HEAD, 5);
    const whole = build(session.calls, { builder: "prefix-merge" });
    const length = whole.samples[0]?.tokenIds.length ?? 0;
    for (let maxTokens = 1; maxTokens <= length; maxTokens++) {
      const { samples, ledger } = build(session.calls, { builder: "prefix-merge", maxTokens });
      expect(samples[0]?.tokenIds.length).toBe(maxTokens);
      expect(ledger.trained + ledger.dropped.too_long).toBe(whole.ledger.trained);
    }
  });

  it("refuses an account that does not add up", () => {
    const session = new SimulatedSession("account");
    play(session, HEAD, 1);
    const { ledger } = build(session.calls, { builder: "per-call" });
    expect(() => checkLedger({ ...ledger, trained: ledger.trained + 1 })).toThrow(/does not add up/);
    expect(() => checkLedger({ ...ledger, sampled: ledger.sampled + 1 })).toThrow(/1 sampled tokens/);
  });

  it("trains each sampled token at most once, after exactly what the engine saw, whatever the harness does", () => {
    fc.assert(
      fc.property(fc.string(), fc.array(act, { maxLength: 40 }), fc.constantFrom(...BUILDERS), fc.option(fc.integer({ min: 1, max: 200 })), fc.integer({ min: 1, max: 8 }), (seed, acts, builder, maxTokens, realignBelow) => {
        const session = new SimulatedSession(seed);
        const world = new World(session);
        for (const [what, pick] of acts) world.act(what, pick);
        checkSet(session.calls, build(session.calls, { builder, realignBelow, ...(maxTokens === null ? {} : { maxTokens }) }));
      }),
      { numRuns: 400 },
    );
  });
});

function checkSet(calls: readonly Call[], { samples, ledger, versions }: SampleSet): void {
  const trained = new Set<number>();
  let tokens = 0;
  for (const { tokenIds, lossMask, logprobs, versions: of, spans, promptLength, sharedLength } of samples) {
    tokens += tokenIds.length;
    expect([lossMask.length, logprobs.length, of.length, spans.at(-1)?.end ?? 0]).toEqual(Array(4).fill(tokenIds.length));
    expect(spans.every(({ start, end }, at) => start === (spans[at - 1]?.end ?? 0) && end > start)).toBe(true);
    expect(lossMask.subarray(0, promptLength).every((mask) => mask === 0)).toBe(true);
    expect(lossMask.subarray(0, sharedLength).every((mask) => mask === 0)).toBe(true);
    for (const { start, end, call, origin } of spans) {
      for (let at = start; at < end; at++) {
        if ((origin === "trained") !== (lossMask[at] === 1)) throw new Error(`mask and origin differ at ${at}`);
        if (origin !== "trained" && (of[at] !== -1 || logprobs[at] !== 0)) throw new Error(`a masked token with a logprob or version at ${at}`);
      }
      if (origin !== "trained") continue;
      const { tokens: source } = calls[call - 1] as Call;
      if (source === null || source.logprobs === null) throw new Error("trained without tokens");
      const seen = [...source.promptIds, ...source.completionIds];
      // All that stands before it is what the engine had before it.
      expect([...tokenIds.subarray(0, end)]).toEqual(seen.slice(0, end));
      expect(start).toBe(source.promptIds.length);
      expect([...logprobs.subarray(start, end)]).toEqual(source.logprobs.slice(0, end - start));
      const named = source.versions.flatMap(([name, count]) => Array<string>(count).fill(name));
      expect([...of.subarray(start, end)].map((index) => versions[index])).toEqual(named.slice(0, end - start));
      // Sampled ids are unique in this world.
      for (let at = start; at < end; at++) {
        const id = tokenIds[at] as number;
        if (trained.has(id)) throw new Error(`token ${id} is trained twice`);
        trained.add(id);
      }
    }
  }
  expect(trained.size).toBe(ledger.trained);
  expect(tokens).toBe(ledger.tokens);
  const dropped = Object.values(ledger.dropped).reduce((sum, count) => sum + count, 0);
  expect(ledger.sampled).toBe(calls.reduce((sum, call) => sum + (call.tokens?.completionIds.length ?? call.answer?.usage?.completionTokens ?? 0), 0));
  expect(ledger.trained + dropped).toBe(ledger.sampled);
}

const ACTS = ["turn", "turn", "turn", "drift", "branch", "again", "broken", "failed", "edit", "rewind", "side", "spawn", "summary", "summary apart", "no logprobs", "switch"] as const;
const act = fc.tuple(fc.constantFrom(...ACTS), fc.nat());

/** Harnesses of every sort at once: several conversations, each of which is gone on with, edited, branched, summed up. */
class World {
  readonly #session: SimulatedSession;
  readonly #histories: (readonly Message[])[] = [HEAD];
  #current = 0;
  #words = 0;

  constructor(session: SimulatedSession) {
    this.#session = session;
  }

  act(what: (typeof ACTS)[number], pick: number): void {
    const history = this.#history;
    const word = `word ${++this.#words} of this world`;
    switch (what) {
      case "turn":
      case "drift":
        return this.#go([...history, this.#session.call({ messages: history, answer: [bash(word)], drift: what === "drift" }), tool(word)]);
      case "no logprobs":
        return this.#go([...history, this.#session.call({ messages: history, answer: [bash(word)], tokens: "no_logprobs" }), tool(word)]);
      case "branch":
        this.#histories.push([...history, this.#session.call({ messages: history, answer: [bash(word)] }), tool(word)]);
        return;
      case "again":
        this.#session.call({ messages: history, answer: [bash(word)] });
        return;
      case "broken":
        this.#session.call({ messages: history, answer: [text(word)], status: "incomplete" });
        return;
      case "failed":
        this.#session.call({ messages: history, answer: [], status: "failed" });
        return;
      case "edit":
        return this.#go(history.map((message, at) => (message.role === "tool" && at % 3 === pick % 3 ? tool("[cut]") : message)));
      case "rewind":
        return this.#go(history.slice(0, Math.max(HEAD.length, history.length - 2 * (pick % 3))));
      case "side":
        this.#session.call({ messages: [user(word)], tools: [], answer: [text(word)] });
        return;
      case "spawn":
        this.#session.call({ messages: history, answer: [{ type: "tool_call", id: "t", name: "task", arguments: JSON.stringify({ prompt: word }) }] });
        this.#histories.push([system("You help."), user(word)]);
        return;
      case "summary":
      case "summary apart": {
        const summary = `${word}, and so forth, as a summary of everything that was done so far`;
        const apart = what === "summary apart";
        this.#session.call({ messages: apart ? [user(`all: ${word}`)] : [...history, user("Sum up.")], tools: apart ? [] : [{ name: "bash", description: null, parameters: null }], answer: [text(summary)] });
        return this.#go([system("You are an agent."), user(`Before: ${summary}`)]);
      }
      case "switch":
        this.#current = pick % this.#histories.length;
    }
  }

  get #history(): readonly Message[] {
    // There is always one.
    return this.#histories[this.#current] as readonly Message[];
  }

  #go(history: readonly Message[]): void {
    this.#histories[this.#current] = history;
  }
}
