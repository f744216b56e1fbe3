/** A session that a process before this one had open with a harness which goes on without knowing. */
import { afterEach, describe, expect, it } from "vitest";
import type { Call } from "../../../src/gateway/call.ts";
import type { Gateway } from "../../../src/gateway/session.ts";
import { connectFrom, newSandbox, openBench, readToEnd, says, until, type Bench } from "../../support/gateway.ts";

const benches: Bench[] = [];
afterEach(async () => {
  await Promise.all(benches.splice(0).map((bench) => bench.close()));
});

async function newBench(...options: Parameters<typeof openBench>): Promise<Bench> {
  const bench = await openBench(...options);
  benches.push(bench);
  return bench;
}

const saying = (...said: readonly string[]): object => ({ model: "m", messages: said.map((content, index) => ({ role: index % 2 === 0 ? "user" : "assistant", content })) });

/** A request of the harness in its machine. */
async function ask(gateway: Gateway, sandbox: string, token: string, document: object): Promise<string> {
  const body = JSON.stringify(document);
  const head = ["POST /v1/chat/completions HTTP/1.1", "host: x", "connection: close", `authorization: Bearer ${token}`, `content-length: ${body.length}`].join("\r\n");
  const text = await readToEnd(connectFrom(gateway, `MW1 ${sandbox} 9000\n${head}\r\n\r\n${body}`));
  return `${/^HTTP\/1\.1 (\d+)/.exec(text)?.[1]} ${/"content":"([^"]*)"/.exec(text)?.[1] ?? ""}`.trim();
}

/** Two answers and a request that was refused, and the process is gone. */
async function before(sandbox: string): Promise<{ readonly token: string; readonly earlier: readonly Call[]; readonly callsBefore: number }> {
  const bench = await newBench();
  const { session, calls } = await bench.open(says("first"), { sandbox });
  expect(await ask(bench.gateway, sandbox, session.token, saying("a"))).toBe("200 first");
  expect(await ask(bench.gateway, sandbox, session.token, { model: "m", messages: "none" })).toMatch(/^400/);
  expect(await ask(bench.gateway, sandbox, session.token, saying("a", "first", "b"))).toBe("200 first");
  await until(async () => (await calls()).length === 3);
  return { token: session.token, earlier: await calls(), callsBefore: 3 };
}

describe("a session that goes on in another process", () => {
  it("has its token, its numbers and its counts; requests that come before it is open wait for it", async () => {
    const sandbox = newSandbox();
    const { token, ...had } = await before(sandbox);
    const bench = await newBench({ awaited: [sandbox] });
    const early = ask(bench.gateway, sandbox, token, saying("a", "first", "b", "first", "c"));
    // Others are answered meanwhile, so it has been looked at.
    expect(await ask(bench.gateway, newSandbox(), token, saying("a"))).toMatch(/^401/);
    const { session, calls } = await bench.open(says("second"), { sandbox, token, ...had, budgets: { calls: 3, tokens: null, timeMs: null } });
    expect(session.totals()).toMatchObject({ complete: 2, failed: 0, completionTokens: 10, exhausted: null });
    expect(session.totals().modelMs).toBeGreaterThan(0);
    expect(await early).toBe("200 second");
    expect((await calls()).map(({ number, status }) => [number, status])).toEqual([[4, "complete"]]);
    expect(session.totals()).toMatchObject({ complete: 3, completionTokens: 16 });
    // The request that was refused has cost nothing; a fourth call is one too many.
    expect(await ask(bench.gateway, sandbox, token, saying("more"))).toMatch(/^4/);
    expect(session.totals().exhausted).toBe("calls");
  });

  it("gives the last answer again to who may not have got it, once, and samples everything else", async () => {
    const sandbox = newSandbox();
    const { token, ...had } = await before(sandbox);
    const bench = await newBench();
    await bench.open(says("second"), { sandbox, token, ...had });
    expect(await ask(bench.gateway, sandbox, token, saying("a", "first", "b"))).toBe("200 first");
    expect(bench.jobs.length).toBe(0);
    expect(await ask(bench.gateway, sandbox, token, saying("a", "first", "b"))).toBe("200 second");
    // Its answer was got: the harness has asked on.
    expect(await ask(bench.gateway, sandbox, token, saying("a"))).toBe("200 second");
    expect(bench.jobs.length).toBe(2);
  });
});
