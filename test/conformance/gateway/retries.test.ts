import { request as httpRequest, type ClientRequest, type IncomingMessage } from "node:http";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { LIMITS } from "../../../src/core/limits.ts";
import type { GatewaySession } from "../../../src/gateway/session.ts";
import { connectFrom, gate, generation, newSandbox, openBench, says, until, type Bench } from "../../support/gateway.ts";

let bench: Bench;
beforeAll(async () => {
  bench = await openBench();
});
afterAll(() => bench.close());

const BODY = { model: "m", stream: true, messages: [{ role: "user", content: "hello" }], metadata: { a: "1", b: "2" } };

interface Sent {
  readonly request: ClientRequest;
  readonly response: Promise<IncomingMessage>;
  /** All of the body; rejects when it breaks off. */
  text(): Promise<string>;
}

/** A client on a connection of its own. */
function send(session: GatewaySession, body: unknown, headers: Readonly<Record<string, string>> = {}): Sent {
  const request = httpRequest(`${bench.url}/v1/chat/completions`, { method: "POST", agent: false, headers: { authorization: `Bearer ${session.token}`, "content-type": "application/json", ...headers } });
  const response = new Promise<IncomingMessage>((resolve, reject) => request.once("response", resolve).once("error", reject));
  response.catch(() => undefined);
  request.end(JSON.stringify(body));
  return {
    request,
    response,
    text: async () => {
      let text = "";
      for await (const chunk of await response) text += (chunk as Buffer).toString();
      return text;
    },
  };
}

function contentOf(events: string): string {
  return [...events.matchAll(/^data: (\{.*\})$/gm)].map((match) => (JSON.parse(match[1] ?? "") as { choices: { delta: { content?: string } }[] }).choices[0]?.delta.content ?? "").join("");
}

describe("an answer and its log", () => {
  it("is in the log before the client sees its end: 100 of 100 clients that leave on the terminal event", async () => {
    for (let round = 0; round < 100; round++) {
      const { session, calls } = await bench.open(says(`answer ${round} is this`));
      const { request, response } = send(session, BODY);
      const stream = await response;
      let seen = "";
      await new Promise<void>((resolve) => {
        stream.on("data", (chunk: Buffer) => {
          seen += chunk.toString();
          if (!seen.includes('"finish_reason":"stop"')) return;
          request.destroy();
          resolve();
        });
        stream.on("error", () => undefined);
      });
      // What a grader that starts at this very moment finds.
      const found = await calls();
      expect(found.map(({ status, answer }) => [status, answer?.blocks])).toEqual([["complete", [{ type: "text", text: `answer ${round} is this` }]]]);
      await session.close();
    }
  });
});

describe("a retry", () => {
  it("gets the stored answer when the first was lost in transit, whether its SDK says so or not, and with keys in another order", async () => {
    for (const headers of [{ "x-stainless-retry-count": "1" }, { "x-stainless-retry-count": "0" }, {}] as const) {
      const finished = gate();
      const { session, calls } = await bench.open(async (job, number) => {
        await finished.passed;
        return says(`sampled ${number}`)(job, number);
      });
      const first = send(session, BODY);
      await until(() => session.inFlight === 1);
      first.request.destroy();
      // Others are answered meanwhile, so it has been noticed. The engine ends although nobody listens.
      await (await fetch(bench.url)).text();
      finished.open();
      await until(() => session.inFlight === 0);
      const again = await send(session, { metadata: { b: "2", a: "1" }, messages: BODY.messages, stream: true, model: "m" }, headers).text();
      const [call, second] = await calls();
      expect(second).toBeUndefined();
      expect(contentOf(again)).toBe(textOf(call?.answer?.blocks));
      await until(async () => (await calls())[0]?.replays === 1);
      await session.close();
    }
  });

  it("joins an answer in flight, and gets all of it", async () => {
    const half = gate();
    const rest = gate();
    const { session, calls } = await bench.open(async ({ onDelta }) => {
      await onDelta?.({ type: "text", text: "first " });
      half.open();
      await rest.passed;
      await onDelta?.({ type: "text", text: "second" });
      return generation([{ type: "text", text: "first second" }]);
    });
    const first = send(session, BODY);
    await half.passed;
    await first.response;
    first.request.destroy();
    const again = send(session, BODY);
    await again.response;
    rest.open();
    expect(contentOf(await again.text())).toBe("first second");
    expect((await calls()).map(({ status, replays }) => [status, replays])).toEqual([["complete", 1]]);
    await session.close();
  });

  it("may ask for the whole answer where it asked for a stream before", async () => {
    const { session, calls } = await bench.open(says("one two"));
    await send(session, BODY).text();
    const { stream: _streamed, ...whole } = BODY;
    const again = JSON.parse(await send(session, whole, { "x-stainless-retry-count": "2" }).text()) as { choices: { message: { content: string } }[] };
    expect(again.choices[0]?.message.content).toBe("one two");
    expect((await calls()).length).toBe(1);
    await session.close();
  });

  it("is none when the first was delivered: an equal request is sampled anew", async () => {
    const { session, calls } = await bench.open((job, number) => says(`sampled ${number}`)(job, number));
    const answers = new Set<string>();
    for (let round = 0; round < 3; round++) answers.add(contentOf(await send(session, BODY, round === 1 ? { "x-stainless-retry-count": "0" } : {}).text()));
    expect(answers.size).toBe(3);
    expect((await calls()).length).toBe(3);
    await session.close();
  });

  it("is none beside an equal request whose client waits: agents sample in parallel", async () => {
    const all = gate();
    const { session, calls } = await bench.open(async (job, number) => {
      await all.passed;
      return says(`sampled ${number}`)(job, number);
    });
    const sent = [send(session, BODY), send(session, BODY), send(session, BODY)];
    await until(() => session.inFlight === 3);
    all.open();
    expect(new Set(await Promise.all(sent.map((one) => one.text()))).size).toBe(3);
    expect((await calls()).map(({ replays }) => replays)).toEqual([0, 0, 0]);
    await session.close();
  });

  it("is sampled when the first failed, and is another session's business in another session", async () => {
    const { session } = await bench.open((job, number) => says(`sampled ${number}`)(job, number));
    const other = await bench.open(says("elsewhere"));
    await send(session, BODY).text();
    expect(contentOf(await send(other.session, BODY, { "x-stainless-retry-count": "1" }).text())).toBe("elsewhere");
    await Promise.all([session.close(), other.session.close()]);
  });
});

describe("a client that hangs up", () => {
  it("ends the generation after the time in which it could have come back", async () => {
    const begun = gate();
    const { session, calls } = await bench.open(async ({ onDelta, signal }) => {
      await onDelta?.({ type: "text", text: "half" });
      begun.open();
      return new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error)));
    });
    const { request, response } = send(session, BODY);
    await begun.passed;
    await response;
    const leftAt = performance.now();
    request.destroy();
    await until(() => session.inFlight === 0);
    expect(performance.now() - leftAt).toBeGreaterThan(LIMITS.retryJoinMs - 100);
    const [call] = await calls();
    expect(call).toMatchObject({ status: "incomplete", failure: { kind: "cancelled" }, answer: { blocks: [{ type: "text", text: "half" }] } });
    expect(session.totals()).toMatchObject({ incomplete: 1, lastFailure: null });
    await session.close();
  });

  it("is noticed through a machine's forwarder, which passes on that it says no more", async () => {
    const sandbox = newSandbox();
    const { session, calls } = await bench.open(({ signal }) => new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error))), { sandbox });
    const body = JSON.stringify(BODY);
    const socket = connectFrom(bench.gateway, `MW1 ${sandbox} 1\nPOST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
    await until(() => session.inFlight === 1);
    socket.end();
    await until(() => session.inFlight === 0);
    expect((await calls()).map(({ failure }) => failure?.kind)).toEqual(["cancelled"]);
    await session.close();
  });

  it("gets a broken answer, not a silent one, when what it asked for cannot be written", async () => {
    const { session } = await bench.open(async ({ onDelta }) => {
      await onDelta?.({ type: "text", text: "fine so far" });
      // No answer that an engine can give.
      return generation([{ type: "text", text: "fine so far" }], { finish: "nonsense" as never, usage: 5 as never, logprobs: 5 as never });
    });
    const { response } = send(session, { ...BODY, logprobs: true, stream_options: { include_usage: true } });
    const read = async (): Promise<string> => {
      let text = "";
      for await (const chunk of await response) text += (chunk as Buffer).toString();
      return text;
    };
    const ended = await read().catch((error: unknown) => String(error));
    expect(ended).not.toContain("[DONE]");
    await session.close();
  });

  it("is not waited for when the session closes", async () => {
    const { session, calls } = await bench.open(({ signal }) => new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error))));
    const { request } = send(session, BODY);
    await until(() => session.inFlight === 1);
    request.destroy();
    await session.close(600_000);
    expect((await calls()).map(({ status }) => status)).toEqual(["failed"]);
  });
});

function textOf(blocks: readonly { readonly type: string; readonly text?: string }[] | undefined): string {
  return (blocks ?? []).map((block) => block.text ?? "").join("");
}
