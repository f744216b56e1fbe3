/** A real HTTP server that answers official SDK clients through one dialect's codec, with what a test says the model sampled. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Answer, AnswerBlock, Delta, TurnRequest } from "../../src/gateway/conversation.ts";
import type { DialectCodec, StreamEncoder } from "../../src/gateway/dialects/dialect.ts";
import { GatewayFailure } from "../../src/gateway/failure.ts";

export interface CodecServerOptions {
  readonly codec: DialectCodec;
  /** `call` counts from 1. A failure before the stream; one in the middle is `failAfter`. */
  readonly answer: (request: TurnRequest, call: number) => Answer | GatewayFailure;
  /** Code points in a delta; default: each text is one. */
  readonly deltaLength?: number;
  /** Bytes in one write; default: an event. */
  readonly writeBytes?: number;
  /** Ends the stream with a failure after so many deltas. */
  readonly failAfter?: { readonly deltas: number; readonly failure: GatewayFailure };
}

export interface CodecServer {
  readonly url: string;
  readonly requests: readonly TurnRequest[];
  readonly bodies: readonly unknown[];
  close(): Promise<void>;
}

export async function serveCodec(options: CodecServerOptions): Promise<CodecServer> {
  const requests: TurnRequest[] = [];
  const bodies: unknown[] = [];
  const server = createServer((incoming, response) => {
    void respond(incoming, response).catch((error: unknown) => response.destroy(error as Error));
  });
  const respond = async (incoming: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { codec } = options;
    try {
      if (incoming.method === "GET") return sendJson(response, 200, codec.encodeModels([{ id: "model", contextTokens: 4096 }]));
      const body: unknown = JSON.parse(await textOf(incoming));
      bodies.push(body);
      const { pathname, searchParams } = new URL(incoming.url ?? "/", "http://localhost");
      const [, model = null, method = null] = /\/models\/(.+):(\w+)$/.exec(pathname) ?? [];
      const request = codec.decode(body, { model, stream: method === null ? null : method === "streamGenerateContent" });
      requests.push(request);
      if (/(count_tokens|input_tokens|:countTokens)$/.test(pathname) && codec.encodeCount !== null) return sendJson(response, 200, codec.encodeCount(42));
      const answer = options.answer(request, requests.length);
      if (answer instanceof GatewayFailure) throw answer;
      const context = { callId: `call-${requests.length}`, createdAt: 1_700_000_000_000, request };
      if (!request.stream) return sendJson(response, 200, codec.encode(answer, context));
      const asArray = method !== null && searchParams.get("alt") !== "sse";
      response.writeHead(200, { "content-type": asArray ? "application/json" : "text/event-stream" });
      const encoder = (asArray ? codec.streamJson?.(context) : undefined) ?? codec.stream(context);
      for (const text of streamTexts(options, answer, encoder)) await write(response, text, options.writeBytes);
      response.end();
    } catch (error) {
      if (!(error instanceof GatewayFailure)) throw error;
      const failure = codec.encodeFailure(error);
      sendJson(response, failure.status, failure.body, failure.headers);
    }
  };
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    bodies,
    close: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

function* streamTexts({ deltaLength, failAfter }: CodecServerOptions, answer: Answer, stream: StreamEncoder): Generator<string> {
  yield stream.start(null);
  for (const [position, delta] of cutDeltas(answer.blocks, deltaLength ?? Number.POSITIVE_INFINITY).entries()) {
    if (failAfter?.deltas === position) return yield stream.fail(failAfter.failure);
    yield stream.delta(delta);
  }
  yield stream.end(answer);
}

/** The pieces of a streamed answer, none longer than `length` code points. */
export function cutDeltas(blocks: readonly AnswerBlock[], length: number): readonly Delta[] {
  return blocks.flatMap((block): readonly Delta[] => {
    switch (block.type) {
      case "text":
      case "refusal":
        return cut(block.text, length).map((text) => ({ type: block.type, text }));
      case "reasoning": {
        const pieces = block.redacted === true ? [] : cut(block.text, length).map((text): Delta => ({ type: "reasoning", text }));
        return block.signature === null ? pieces : [...pieces, { type: "signature", signature: block.signature, ...(block.redacted === true ? { redacted: true } : {}) }];
      }
      case "tool_call": {
        const { arguments: text, ...opening } = block;
        return [opening, ...(text === "" ? [] : cut(text, length)).map((piece): Delta => ({ type: "arguments", text: piece }))];
      }
    }
  });
}

function cut(text: string, length: number): readonly string[] {
  const points = Array.from(text);
  const size = Math.min(length, Math.max(points.length, 1));
  return Array.from({ length: Math.max(1, Math.ceil(points.length / size)) }, (_, index) => points.slice(index * size, (index + 1) * size).join(""));
}

async function write(response: ServerResponse, text: string, bytes: number | undefined): Promise<void> {
  const data = Buffer.from(text);
  const step = bytes ?? Math.max(1, data.length);
  for (let offset = 0; offset < data.length; offset += step) {
    if (!response.write(data.subarray(offset, offset + step))) await once(response, "drain");
    // A turn of the event loop for each piece: the client reads it alone.
    if (bytes !== undefined) await new Promise(setImmediate);
  }
}

function sendJson(response: ServerResponse, status: number, body: unknown, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}

async function textOf(incoming: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of incoming) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString("utf8");
}
