/** A dialect's codec behind a real HTTP server that gives scripted answers: what an official SDK needs to be tried on the codec alone. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { deltasOf } from "../../src/gateway/dialects/deltas.ts";
import { GatewayFailure, type Answer, type Delta, type DialectCodec, type TurnRequest } from "../../src/gateway/index.ts";

export interface Reply {
  readonly answer: Answer;
  /** As the engine streams it; left out: one piece for each text. */
  readonly deltas?: readonly Delta[];
  /** Comes instead of the answer, or, after `deltas`, instead of its end. */
  readonly failure?: GatewayFailure;
}

export interface DialectServer {
  readonly url: string;
  readonly requests: TurnRequest[];
  /** Headers of each request. */
  readonly headers: IncomingMessage["headers"][];
  /** What the next requests get, in order; the last one stays. */
  script(...replies: readonly Reply[]): void;
  close(): Promise<void>;
}

export async function startDialectServer(codec: DialectCodec): Promise<DialectServer> {
  let replies: readonly Reply[] = [];
  const requests: TurnRequest[] = [];
  const headers: IncomingMessage["headers"][] = [];
  const server = createServer((request, response) => {
    void (async () => {
      headers.push(request.headers);
      const [reply] = replies;
      if (reply === undefined) throw new Error("No reply is scripted.");
      if (replies.length > 1) replies = replies.slice(1);
      try {
        await answer(codec, request, response, reply, requests);
      } catch (error) {
        if (!(error instanceof GatewayFailure)) throw error;
        const failure = codec.encodeFailure(error);
        response.writeHead(failure.status, { "content-type": "application/json", ...failure.headers }).end(JSON.stringify(failure.body));
      }
    })().catch((error: unknown) => response.destroy(error as Error));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    headers,
    script: (...next) => void (replies = next),
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

async function answer(codec: DialectCodec, request: IncomingMessage, response: ServerResponse, reply: Reply, requests: TurnRequest[]): Promise<void> {
  const url = new URL(request.url ?? "/", "http://x");
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const body = Buffer.concat(chunks).toString();
  const model = /\/models\/([^:]+):/.exec(decodeURIComponent(url.pathname))?.[1] ?? null;
  const turn = codec.decode(JSON.parse(body) as unknown, { model, stream: model === null ? null : url.pathname.includes(":stream") });
  requests.push(turn);
  const context = { callId: `call${requests.length}`, createdAt: 1_790_000_000_000, request: turn };
  if (reply.failure !== undefined && (reply.deltas === undefined || !turn.stream)) throw reply.failure;
  if (!turn.stream) {
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(codec.encode(reply.answer, context)));
    return;
  }
  const json = codec.dialect === "gemini" && url.searchParams.get("alt") !== "sse";
  const encoder = (json ? codec.streamJson?.(context) : undefined) ?? codec.stream(context);
  response.writeHead(200, { "content-type": json ? "application/json" : "text/event-stream" });
  response.write(encoder.start(null));
  for (const delta of reply.deltas ?? deltasOf(reply.answer.blocks)) {
    const text = encoder.delta(delta);
    if (text !== "") response.write(text);
  }
  response.end(reply.failure === undefined ? encoder.end(reply.answer) : encoder.fail(reply.failure));
}
