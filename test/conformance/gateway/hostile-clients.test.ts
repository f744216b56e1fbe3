/** Clients at their worst, many at once, on a gateway that must go on serving the others: garbage, halves, lies about lengths, stalls, and leaving at any moment. */
import { connect, type Socket } from "node:net";
import * as fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Dialect } from "../../../src/gateway/conversation.ts";
import type { GatewaySession } from "../../../src/gateway/session.ts";
import { DIALOGUES } from "../../support/dialogues.ts";
import { generation, openBench, says, until, type Bench, type Play } from "../../support/gateway.ts";

let bench: Bench;
beforeAll(async () => {
  bench = await openBench();
});
afterAll(() => bench.close());

const PATHS: Readonly<Record<Dialect, string>> = {
  "openai-chat": "/v1/chat/completions",
  "openai-responses": "/v1/responses",
  anthropic: "/v1/messages",
  gemini: "/v1beta/models/m:streamGenerateContent?alt=sse",
};
const DIALECTS = Object.keys(PATHS) as Dialect[];

const bodyOf = (dialect: Dialect, text: string): unknown => {
  if (dialect === "gemini") return { contents: [{ parts: [{ text }] }] };
  if (dialect === "openai-responses") return { model: "m", input: text, stream: true };
  return { model: "m", max_tokens: 9, messages: [{ role: "user", content: text }], stream: true };
};

/** Speaks for a while, a turn of the event loop for each word. */
const speaks: Play = async (job) => {
  for (let word = 0; word < 20; word++) {
    await new Promise(setImmediate);
    if (job.signal.aborted) throw job.signal.reason;
    await job.onDelta?.({ type: "text", text: "word " });
  }
  return generation([{ type: "text", text: "word ".repeat(20) }]);
};

interface Hostile {
  /** What is written, cut into pieces, a turn of the event loop between them. */
  readonly bytes: Buffer;
  readonly pieces: number;
  /** When it leaves: with its last byte, at so many bytes of response, or only when everybody else is done. */
  readonly leaves: "last" | "at once" | number;
  /** Ends its side in order, or breaks the connection. */
  readonly politely: boolean;
}

const number = fc.nat(1_000_000);
const dialects = fc.constantFrom(...DIALECTS);
const request = (path: string, token: string, headers: readonly string[], body: Buffer): Buffer => Buffer.concat([Buffer.from([`POST ${path} HTTP/1.1`, "host: 127.0.0.1", `authorization: Bearer ${token}`, "content-type: application/json", ...headers, "", ""].join("\r\n")), body]);

function hostile(token: string): fc.Arbitrary<Hostile> {
  const good = fc.tuple(dialects, number).map(([dialect, salt]) => ({ path: PATHS[dialect], body: Buffer.from(JSON.stringify(bodyOf(dialect, `hello ${salt}`))) }));
  const sized = good.map(({ path, body }) => request(path, token, [`content-length: ${body.length}`], body));
  const bytes = fc.oneof(
    { weight: 4, arbitrary: sized },
    // Only a part of it ever comes.
    { weight: 3, arbitrary: fc.tuple(sized, fc.double({ min: 0, max: 1, noNaN: true })).map(([whole, share]) => whole.subarray(0, Math.floor(whole.length * share))) },
    // Lies about lengths, in both directions.
    { weight: 2, arbitrary: fc.tuple(good, fc.constantFrom("0", "1", "99999", "-1", "1e3", "18446744073709551617", "")).map(([{ path, body }, length]) => request(path, token, [`content-length: ${length}`], body)) },
    { weight: 2, arbitrary: fc.tuple(good, fc.constantFrom("z", "fffffffffffffff", "5;x=y", "-5", "")).map(([{ path, body }, size]) => request(path, token, ["transfer-encoding: chunked"], Buffer.concat([Buffer.from(`${size}\r\n`), body, Buffer.from("\r\n0\r\n\r\n")]))) },
    { weight: 1, arbitrary: good.map(({ path, body }) => request(path, token, [`content-length: ${body.length}`, "transfer-encoding: chunked"], body)) },
    // Two at once on one connection.
    { weight: 1, arbitrary: fc.tuple(sized, sized).map(([first, second]) => Buffer.concat([first, second])) },
    // No JSON, any JSON, bytes that are no text, an encoding that is none.
    { weight: 3, arbitrary: fc.tuple(dialects, fc.oneof(fc.string().map((text) => Buffer.from(text)), fc.jsonValue().map((value) => Buffer.from(JSON.stringify(value))), fc.uint8Array({ maxLength: 200 }).map((array) => Buffer.from(array)))).map(([dialect, body]) => request(PATHS[dialect], token, [`content-length: ${body.length}`], body)) },
    { weight: 1, arbitrary: good.map(({ path, body }) => request(path, token, [`content-length: ${body.length}`, "content-encoding: gzip"], body)) },
    // No HTTP, too much of it.
    { weight: 2, arbitrary: fc.uint8Array({ minLength: 1, maxLength: 2000 }).map((array) => Buffer.from(array)) },
    { weight: 1, arbitrary: good.map(({ path, body }) => request(path, token, [`x-filler: ${"x".repeat(100_000)}`, `content-length: ${body.length}`], body)) },
  );
  return fc.record({ bytes, pieces: fc.constantFrom(1, 1, 2, 7), leaves: fc.oneof(fc.constantFrom("at once" as const, "last" as const), fc.nat(3000)), politely: fc.boolean() });
}

/** Resolves when the client is through, or when nothing more is to be expected of it. */
async function play(port: number, client: Hostile, stayed: Socket[]): Promise<void> {
  const socket = connect(port, "127.0.0.1");
  const closed = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  let received = 0;
  const leave = (): void => void (client.politely ? socket.end() : socket.destroy());
  socket.on("error", () => undefined);
  socket.on("data", (chunk: Buffer) => {
    received += chunk.length;
    if (typeof client.leaves === "number" && received >= client.leaves) leave();
  });
  const step = Math.ceil(client.bytes.length / client.pieces) || 1;
  for (let offset = 0; offset < client.bytes.length && !socket.destroyed; offset += step) {
    socket.write(client.bytes.subarray(offset, offset + step));
    await new Promise(setImmediate);
  }
  if (client.leaves === "at once") {
    leave();
    await closed;
  }
  // Whoever waits for an end that needs more of its own bytes gives up when the others are done.
  else stayed.push(socket);
}

describe("many hostile clients", () => {
  it("harm nobody: honest clients are answered meanwhile, every call that began has its end in the log, and nothing is left in flight", async () => {
    const port = Number(new URL(bench.url).port);
    const { session: honest } = await bench.open(says("honest words"));
    const base = `${bench.url}${honest.path}`;
    const crowd = await bench.open(speaks);
    const settled = async (session: GatewaySession): Promise<void> => await until(() => session.inFlight === 0);
    await fc.assert(
      fc.asyncProperty(fc.array(hostile(crowd.session.token), { minLength: 12, maxLength: 24 }), async (clients) => {
        const stayed: Socket[] = [];
        const attack = Promise.all(clients.map((client) => play(port, client, stayed)));
        const answers = await Promise.all(DIALECTS.flatMap((dialect) => [true, false].map(async (stream) => (await DIALOGUES[dialect](base, honest.token, "hello").ask(stream)).text)));
        expect(answers).toEqual(answers.map(() => "honest words"));
        await attack;
        for (const socket of stayed) socket.destroy();
      }),
      { numRuns: 12 },
    );
    await crowd.session.close(0);
    await settled(crowd.session);
    await settled(honest);
    const calls = await crowd.calls();
    expect(new Set(calls.map(({ status }) => status))).toContain("complete");
    expect(calls.map(({ number: place }) => place).toSorted((a, b) => a - b)).toEqual(calls.map((_, index) => index + 1));
    for (const { status, answer, failure } of calls) {
      if (status === "complete") expect(answer?.blocks).toEqual([{ type: "text", text: "word ".repeat(20) }]);
      else expect(failure?.kind).toMatch(/cancelled|closed|invalid_request/);
    }
    // The gateway is as it was.
    expect((await DIALOGUES["openai-chat"](base, honest.token, "still there?").ask(false)).text).toBe("honest words");
    await honest.close();
  });

  it("get an answer in the shape of their dialect to any JSON, never a broken connection", async () => {
    const { session } = await bench.open(says("fine"));
    await fc.assert(
      fc.asyncProperty(dialects, fc.jsonValue({ maxDepth: 4 }), async (dialect, body) => {
        const response = await fetch(`${bench.url}${PATHS[dialect]}`, { method: "POST", headers: { authorization: `Bearer ${session.token}`, "content-type": "application/json" }, body: JSON.stringify(body) });
        expect(response.status).toBe(400);
        const answer = (await response.json()) as { readonly error: { readonly message: string } };
        expect(answer.error.message).not.toBe("");
      }),
      { numRuns: 200 },
    );
    await session.close();
  });
});
