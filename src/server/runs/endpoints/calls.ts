/** The model calls of a rollout: how they hang together, each as it went over the wire, and the tokens that are trained on. */
import { z } from "zod";
import { BUILDERS } from "../../../gateway/samples/sample.ts";
import { endpoint, type AnyEndpoint } from "../../endpoint.ts";
import { rawCallSchema, samplesSchema, tokensPageSchema, traceSchema, type TraceView } from "../contract/calls.ts";
import { attachment, type ReadContext } from "../http.ts";
import { rawBody, rawCall } from "../raw-call.ts";
import { versionOf, type CallHead } from "../rollout-record.ts";
import { sampleAt, samplesView, tokensBinary, tokensPage, TokenStore } from "../tokens.ts";
import { ofRollout, openRollout, type Opened } from "./rollout.ts";

const TOKENS_A_PAGE = 65_536;
const SAYS_CHARACTERS = 200;
const builderSchema = z.object({ builder: z.enum(BUILDERS).default("prefix-merge") });

export function callEndpoints(context: ReadContext): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/trace",
      id: "getTrace",
      summary: "The graph of the rollout's calls: main line, branches, sub-agents, compactions",
      params: ofRollout,
      responses: { 200: { description: "The trace", schema: traceSchema } },
      handle: async ({ params }): Promise<TraceView> => {
        const { version, calls, trace } = await context.records.of((await openRollout(context, params.rollout)).directory);
        const byNumber = new Map(calls.map((call) => [call.number, call]));
        return { version, mainLine: [...trace.mainLine], nodes: trace.nodes.flatMap((node) => {
          const call = byNumber.get(node.call);
          return call === undefined ? [] : [{ ...node, ...callFacts(call) }];
        }) };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/calls/{number}",
      id: "getCall",
      summary: "A call as it went over the wire, in the dialect of its request",
      params: ofRollout.extend({ number: z.coerce.number().int().min(1) }),
      responses: { 200: { description: "The call", schema: rawCallSchema } },
      handle: async ({ params }) => rawCall((await openRollout(context, params.rollout)).directory, params.number),
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/calls/{number}/{side}",
      id: "getCallBody",
      summary: "Its request or response alone, however long",
      params: ofRollout.extend({ number: z.coerce.number().int().min(1), side: z.enum(["request", "response"]) }),
      responses: { 200: { description: "The body", contentTypes: ["application/json"] } },
      handle: async ({ params: { rollout, number, side }, reply }) => attachment(reply, `${rollout}-call-${number}-${side}.json`, "application/json; charset=utf-8", [await rawBody((await openRollout(context, rollout)).directory, number, side)]),
    }),
    ...tokenEndpoints(context),
  ];
}

function tokenEndpoints(context: ReadContext): readonly AnyEndpoint[] {
  const tokens = new TokenStore();
  const tokenizerOf = ({ run }: Opened): string | null => run.config?.upstream?.tokenizer?.directory ?? run.config?.trainer?.tokenizer?.directory ?? null;
  return [
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/samples",
      id: "listSamples",
      summary: "Samples that a builder cuts, without their tokens, and the account of what was sampled, trained and dropped",
      params: ofRollout,
      query: builderSchema,
      responses: { 200: { description: "The samples", schema: samplesSchema } },
      handle: async ({ params, query: { builder } }) => {
        const opened = await openRollout(context, params.rollout);
        const version = await versionOf(opened.directory);
        return samplesView(await tokens.set(opened.directory, builder), version, (await tokens.tokenizer(tokenizerOf(opened))) !== null);
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/samples/{sample}/tokens",
      id: "getTokens",
      summary: "Tokens of a sample: four little-endian arrays behind each other (ids i32, logprobs f32, versions i32, mask u8), or with `text=1` as JSON",
      params: ofRollout.extend({ sample: z.coerce.number().int().min(0) }),
      query: builderSchema.extend({ from: z.coerce.number().int().min(0).default(0), to: z.coerce.number().int().min(0).default(TOKENS_A_PAGE), text: z.enum(["0", "1"]).default("0") }),
      responses: { 200: { description: "A page of tokens; with `text=1`", schema: tokensPageSchema } },
      handle: async ({ params, query, reply }) => {
        const opened = await openRollout(context, params.rollout);
        const sample = sampleAt(await tokens.set(opened.directory, query.builder), params.sample);
        const to = Math.min(query.to, query.from + TOKENS_A_PAGE, sample.tokenIds.length);
        if (query.text === "1") return tokensPage(sample, query.from, to, await tokens.tokenizer(tokenizerOf(opened)));
        return reply.type("application/octet-stream").header("x-total", String(sample.tokenIds.length)).send(tokensBinary(sample, query.from, to));
      },
    }),
  ];
}

function callFacts(call: CallHead): Omit<TraceView["nodes"][number], "call" | "kind" | "relation" | "parent" | "thread" | "spawnedBy"> {
  const says = (call.answer?.blocks ?? []).map((block) => (block.type === "tool_call" ? `${block.name} ${block.arguments}` : block.type === "reasoning" ? "" : block.text)).join(" ");
  return {
    at: call.at,
    durationMs: call.durationMs,
    firstDeltaMs: call.firstDeltaMs,
    dialect: call.dialect,
    model: call.model,
    status: call.status,
    failure: call.failure?.message ?? null,
    finish: call.answer?.finish ?? null,
    promptTokens: call.promptTokens,
    completionTokens: call.completionTokens,
    capture: call.capture,
    versions: [...call.versions],
    replays: call.replays,
    says: says.trim().slice(0, SAYS_CHARACTERS),
  };
}
