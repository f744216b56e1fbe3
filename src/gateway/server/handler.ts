/** From an HTTP request to its response: whose it is, what it asks, and the answer or failure in its dialect. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { CODECS } from "../dialects/codecs.ts";
import type { TurnRequest } from "../conversation.ts";
import type { DialectCodec, RouteFacts } from "../dialects/dialect.ts";
import { GatewayFailure, internalFailure } from "../failure.ts";
import { requestDigest } from "../session/request-digest.ts";
import type { Session } from "../session/session.ts";
import { BodyMemory, readBody } from "./body.ts";
import { keysOf } from "./credentials.ts";
import { Delivery, sendFailure, sendJson } from "./delivery.ts";
import { refuseBeyondMachine } from "./machine-request.ts";
import type { Asker } from "./registry.ts";
import { readTarget, type Route, type Target } from "./routes.ts";

export interface HandlerOptions {
  /** Throws `GatewayFailure` when the request is nobody's. */
  readonly sessionOf: (asker: Asker) => Session | Promise<Session>;
  /** Told of an answer that went out on a connection, until the next request there. */
  readonly onDelivered: (request: IncomingMessage, takeBack: () => void) => void;
}

export class Handler {
  readonly #options: HandlerOptions;
  readonly #memory = new BodyMemory();

  constructor(options: HandlerOptions) {
    this.#options = options;
  }

  /** Never rejects. `sandbox`: the machine that the connection comes from. */
  async handle(request: IncomingMessage, response: ServerResponse, sandbox: string | null): Promise<void> {
    const target = readTarget(request.method ?? "", request.url ?? "", request.headers["anthropic-version"] !== undefined);
    const { route } = target;
    if (route.kind === "probe") {
      sendJson(response, 200, {}, {});
      return;
    }
    const codec = CODECS[route.dialect];
    try {
      const session = await this.#options.sessionOf({ sandbox, path: target.session, keys: keysOf(request.headers, target.query) });
      await this.#answer(session, codec, target, request, response);
    } catch (error) {
      // In the middle of an answer only its breaking off tells.
      if (response.headersSent) response.destroy();
      else sendFailure(response, codec, error instanceof GatewayFailure ? error : internalFailure(error));
    }
  }

  async #answer(session: Session, codec: DialectCodec, { route }: Target, request: IncomingMessage, response: ServerResponse): Promise<void> {
    session.refuseFlood();
    switch (route.kind) {
      case "generate":
        await this.#generate(session, codec, route, request, response);
        break;
      case "count":
        await this.#count(session, codec, route, request, response);
        break;
      case "models": {
        const { model } = session.options;
        sendJson(response, 200, {}, codec.encodeModels([session.facts.models?.find(({ id }) => id === model) ?? { id: model, contextTokens: null }]));
        break;
      }
      case "unknown":
        throw new GatewayFailure("not_found", route.why);
      case "probe":
        break;
    }
  }

  async #generate(session: Session, codec: DialectCodec, { dialect, model, stream, array }: Extract<Route, { kind: "generate" }>, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const gone = new AbortController();
    response.once("close", () => gone.abort("closed"));
    const facts = { model, stream };
    const body = await readBody(request, this.#memory, session);
    try {
      const base = { dialect, route: facts, body: body.value };
      let turn;
      try {
        turn = decode(session, codec, body.value, facts);
      } catch (error) {
        if (error instanceof GatewayFailure) await session.refused(base, error);
        throw error;
      }
      const retries = Number(request.headers["x-stainless-retry-count"] ?? 0);
      const delivery = new Delivery(response, codec, turn, array);
      const asked = { ...base, request: turn, digest: requestDigest(dialect, facts, body.value), saysRetry: retries > 0 };
      const { exchange, leave } = await session.ask(asked, delivery.listen, gone.signal);
      let delivered = false;
      try {
        const outcome = await Promise.race([exchange.outcome, delivery.over.then(() => null)]);
        if (outcome !== null) delivery.finish(outcome);
        delivered = (await delivery.over) && outcome?.kind === "answer";
      } finally {
        delivery.stop();
        leave(delivered);
      }
      if (delivered) this.#options.onDelivered(request, () => (exchange.delivered = false));
    } finally {
      body.release();
    }
  }

  async #count(session: Session, codec: DialectCodec, { model }: Extract<Route, { kind: "count" }>, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const gone = new AbortController();
    response.once("close", () => gone.abort("closed"));
    const body = await readBody(request, this.#memory, session);
    try {
      const turn = decode(session, codec, countedBody(body.value), { model, stream: false });
      const tokens = await session.countTokens(turn, gone.signal);
      if (tokens === null || codec.encodeCount === null) throw new GatewayFailure("not_found", "Tokens cannot be counted here.");
      sendJson(response, 200, {}, codec.encodeCount(tokens));
    } finally {
      body.release();
    }
  }
}

function decode({ options }: Session, codec: DialectCodec, body: unknown, route: RouteFacts): TurnRequest {
  const turn = codec.decode(body, route);
  if (options.sandbox !== null) refuseBeyondMachine(turn, options.purpose === "train");
  return turn;
}

/** Gemini's may wrap the request. */
function countedBody(body: unknown): unknown {
  if (typeof body !== "object" || body === null) return body;
  const wrapped = "generateContentRequest" in body ? body.generateContentRequest : "generate_content_request" in body ? body.generate_content_request : undefined;
  return wrapped ?? body;
}
