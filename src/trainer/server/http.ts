/** The policy server: SGLang's API over `Engine`, on this host's loopback, for whoever has the key. */
import { createHash, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { z } from "zod";
import { messageOf, MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { seededRandom, type Runtime } from "../../core/runtime.ts";
import { answerBody } from "./answer.ts";
import type { Ask, Engine, SampledToken, Weights } from "./engine.ts";
import { abortSchema, generateSchema, samplingRules, updateWeightsSchema, type GenerateRequest } from "./protocol.ts";

export interface PolicyServerOptions {
  readonly engine: Engine;
  /** As clients name it. */
  readonly model: string;
  readonly key: string;
  /** Rejects for a directory without weights of the engine's form. */
  readonly readWeights: (directory: string, version: string) => Promise<Weights>;
  readonly runtime: Runtime;
}

export interface PolicyServer {
  readonly url: string;
  close(): Promise<void>;
}

class Refusal extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export async function startPolicyServer(options: PolicyServerOptions): Promise<PolicyServer> {
  const server = createServer((request, response) => {
    void answer(options, request, response).catch((error: unknown) => refuse(response, error));
  });
  await new Promise<void>((resolve, reject) => server.once("error", reject).listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, close: () => close(server) };
}

async function answer(options: PolicyServerOptions, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { engine, model } = options;
  const path = new URL(request.url ?? "/", "http://localhost").pathname;
  if (path === "/health") return send(response, 200, {});
  if (!isKey(request.headers.authorization, options.key)) throw new Refusal(401, "this server needs its API key");
  switch (`${request.method ?? ""} ${path}`) {
    case "GET /v1/models":
      return send(response, 200, { object: "list", data: [{ id: model, object: "model", owned_by: "manyworlds", max_model_len: engine.weights.model.shape.context }] });
    case "GET /model_info":
    case "GET /get_model_info":
      return send(response, 200, { model_path: model, is_generation: true, weight_version: engine.weights.version });
    case "POST /generate":
      return await generate(options, await readBody(request, generateSchema), response);
    case "POST /abort_request": {
      const { rid, abort_all: all } = await readBody(request, abortSchema);
      if (all || rid !== "") engine.abort(all ? "" : rid);
      return send(response, 200, {});
    }
    case "POST /update_weights_from_disk": {
      const { model_path: directory, weight_version: version, abort_all_requests: abortAll } = await readBody(request, updateWeightsSchema);
      const weights = await options.readWeights(directory, version).catch((error: unknown) => {
        throw new Refusal(400, messageOf(error));
      });
      if (abortAll) engine.abort("");
      engine.load(weights);
      return send(response, 200, { success: true, message: `weights ${version} sample from here on`, num_paused_requests: 0 });
    }
    default:
      throw new Refusal(404, `${request.method ?? ""} ${path} is nothing here`);
  }
}

async function generate({ engine, runtime }: PolicyServerOptions, request: GenerateRequest, response: ServerResponse): Promise<void> {
  const ask = askOf(engine, request, runtime);
  const told: SampledToken[] = [];
  const facts = { id: ask.requestId, request, weightVersion: engine.weights.version };
  if (request.stream) response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  // Its last word comes with the end of the answer.
  let waiting = false;
  const generation = engine.generate(ask, (token) => {
    if (request.stream && waiting) event(response, answerBody(told, told.length - 1, { ...facts, finish: null }));
    waiting = true;
    told.push(token);
  });
  if (generation === null) throw new Refusal(503, `${LIMITS.policyGenerations} answers are being sampled already`);
  // A client that is gone wants no more.
  response.once("close", () => engine.abort(ask.requestId));
  const { tokens, finish } = await generation;
  if (!request.stream) return send(response, 200, answerBody(tokens, 0, { ...facts, finish }));
  event(response, answerBody(tokens, Math.max(0, tokens.length - 1), { ...facts, finish }));
  response.end("data: [DONE]\n\n");
}

let unnamed = 0;

function askOf(engine: Engine, { rid, input_ids: promptIds, sampling_params: sampling, top_logprobs_num: alternatives }: GenerateRequest, runtime: Runtime): Ask {
  const { context, vocabulary } = engine.weights.model.shape;
  if (promptIds.length > context) throw new Refusal(400, `The input (${promptIds.length} tokens) is longer than the model's context length (${context} tokens).`);
  const unknown = promptIds.find((id) => id >= vocabulary);
  if (unknown !== undefined) throw new Refusal(400, `input_ids: token ${unknown} is not in the vocabulary of ${vocabulary}`);
  const { sampling_seed: seed } = sampling;
  return {
    requestId: rid ?? `unnamed-${unnamed++}`,
    promptIds,
    rules: samplingRules(sampling),
    maxTokens: sampling.max_new_tokens,
    endIds: new Set(sampling.stop_token_ids ?? []),
    random: seededRandom(seed === null || seed === undefined ? Buffer.from(runtime.randomBytes(16)).toString("hex") : String(seed)),
    alternatives,
  };
}

async function readBody<Schema extends z.ZodType>(request: IncomingMessage, schema: Schema): Promise<z.infer<Schema>> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > LIMITS.policyRequestBytes) throw new Refusal(413, `a request is larger than ${LIMITS.policyRequestBytes} bytes`);
    chunks.push(chunk);
  }
  let body: unknown;
  try {
    body = JSON.parse(Buffer.concat(chunks).toString("utf8"));
  } catch {
    throw new Refusal(400, "the body is not JSON");
  }
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new Refusal(400, `${issue?.path.join(".") ?? "body"}: ${issue?.message ?? "invalid"}`);
}

/** Digests have one length, whatever was given. */
function isKey(header: string | undefined, key: string): boolean {
  const digest = (text: string): Buffer => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(header ?? ""), digest(`Bearer ${key}`));
}

function event(response: ServerResponse, body: unknown): void {
  response.write(`data: ${JSON.stringify(body)}\n\n`);
}

function send(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}

function refuse(response: ServerResponse, error: unknown): void {
  if (response.headersSent) return void response.destroy();
  const status = error instanceof Refusal ? error.status : error instanceof MwError ? 400 : 500;
  send(response, status, { error: { message: messageOf(error), type: status < 500 ? "BadRequestError" : "InternalServerError", code: status } });
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });
}
