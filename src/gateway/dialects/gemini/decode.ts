/** The body of `generateContent`, `streamGenerateContent` and `countTokens`, read. Facts: Google's API reference as of `@google/genai` 2.32. */
import { z } from "zod";
import { DEFAULT_SAMPLING, type TurnRequest } from "../../conversation.ts";
import type { RouteFacts } from "../dialect.ts";
import { Dropped, invalid, readBody, readObject, shown } from "../read-request.ts";
import { decodeContents, decodeSystem } from "./contents.ts";
import { jsonSchema } from "./json-schema.ts";
import { camelAt } from "./keys.ts";
import { decodeToolConfig, decodeTools } from "./tools.ts";

const generationSchema = z.looseObject({
  temperature: z.number().min(0).max(2).nullish(),
  topP: z.number().min(0).max(1).nullish(),
  topK: z.number().min(0).nullish(),
  maxOutputTokens: z.int().positive().nullish(),
  stopSequences: z.array(z.string()).nullish(),
  seed: z.int().nullish(),
  presencePenalty: z.number().nullish(),
  frequencyPenalty: z.number().nullish(),
  candidateCount: z.literal(1, "only one candidate is sampled here").nullish(),
  responseMimeType: z.string().nullish(),
  responseModalities: z.array(z.string()).nullish(),
  responseLogprobs: z.boolean().nullish(),
  logprobs: z.int().min(0).max(20).nullish(),
});
type Generation = z.infer<typeof generationSchema>;
const thinkingSchema = z.looseObject({ includeThoughts: z.boolean().nullish(), thinkingBudget: z.int().min(-1).nullish(), thinkingLevel: z.string().nullish() });

const GENERATION_FIELDS = new Set([...Object.keys(generationSchema.shape), "responseSchema", "responseJsonSchema", "thinkingConfig"]);
/** Settings of things that are not made or looked at here. */
const GENERATION_WITHOUT_EFFECT = new Set(["mediaResolution", "speechConfig", "audioTimestamp", "audioTranscriptionConfig", "imageConfig", "enableEnhancedCivicAnswers", "enableAffectiveDialog", "routingConfig", "modelSelectionConfig"]);
const KNOWN = new Set(["contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"]);
const WITHOUT_EFFECT = new Set(["safetySettings", "labels", "serviceTier", "store"]);

export function decode(value: unknown, route: RouteFacts): TurnRequest {
  const body = camelAt(value, "");
  const dropped = new Dropped();
  const extra = sortOut(body, KNOWN, WITHOUT_EFFECT, "", dropped);
  if (body["contents"] === null || body["contents"] === undefined) throw invalid("contents", "is missing");
  const config = body["generationConfig"] ? camelAt(body["generationConfig"], "generationConfig") : {};
  const unknown = sortOut(config, GENERATION_FIELDS, GENERATION_WITHOUT_EFFECT, "generationConfig.", dropped);
  const generation = readBody(generationSchema, config, "generationConfig");
  const system = decodeSystem(body["systemInstruction"], dropped);
  const messages = decodeContents(body["contents"], dropped);
  const { choice, tools } = decodeToolConfig(body["toolConfig"], decodeTools(body["tools"], dropped), dropped);
  for (const modality of generation.responseModalities ?? []) if (modality.toUpperCase() !== "TEXT") throw invalid("generationConfig.responseModalities", "only TEXT is made here");
  return {
    dialect: "gemini",
    model: modelName(route.model ?? readBody(z.string().min(1, "is missing"), body["model"], "model")),
    messages: system === null ? messages : [system, ...messages],
    tools,
    toolChoice: choice,
    parallelToolCalls: null,
    sampling: {
      ...DEFAULT_SAMPLING,
      temperature: generation.temperature ?? null,
      topP: generation.topP ?? null,
      topK: generation.topK ?? null,
      maxTokens: generation.maxOutputTokens ?? null,
      stop: generation.stopSequences ?? [],
      seed: generation.seed ?? null,
      presencePenalty: generation.presencePenalty ?? null,
      frequencyPenalty: generation.frequencyPenalty ?? null,
    },
    reasoning: decodeThinking(config["thinkingConfig"], dropped),
    responseFormat: decodeFormat(generation, config),
    logprobs: generation.responseLogprobs === true ? (generation.logprobs ?? 0) : null,
    stream: route.stream ?? false,
    streamUsage: true,
    extra: { ...extra, ...unknown },
    dropped: dropped.list(),
  };
}

/** Without the collection that the API's names begin with. */
function modelName(name: string): string {
  return name.replace(/^models\//, "");
}

/** The fields that are not read: refused, noted, or handed on as unknown. */
function sortOut(object: Readonly<Record<string, unknown>>, known: ReadonlySet<string>, withoutEffect: ReadonlySet<string>, prefix: string, dropped: Dropped): Readonly<Record<string, unknown>> {
  const extra: [string, unknown][] = [];
  for (const [key, value] of Object.entries(object)) {
    if (known.has(key) || value === null || value === undefined || (Array.isArray(value) && value.length === 0)) continue;
    if (key === "cachedContent") throw invalid(key, "cached contents are not kept here; send the contents themselves");
    if (withoutEffect.has(key)) dropped.add(prefix + key, "no effect here");
    else extra.push([prefix + key, value]);
  }
  return Object.fromEntries(extra);
}

/** Budget 0: do not think; -1: as much as the model likes. */
function decodeThinking(value: unknown, dropped: Dropped): TurnRequest["reasoning"] {
  if (value === null || value === undefined) return null;
  const path = "generationConfig.thinkingConfig";
  const config = camelAt(value, path);
  const { includeThoughts, thinkingBudget: budget, thinkingLevel: level } = readBody(thinkingSchema, config, path);
  dropped.unknown(config, path, new Set(Object.keys(thinkingSchema.shape)));
  if (includeThoughts === false) dropped.add(`${path}.includeThoughts`, "thoughts are always given, marked as such");
  const effort = level && level !== "THINKING_LEVEL_UNSPECIFIED" ? level.toLowerCase() : null;
  const asked = typeof budget === "number" || effort !== null;
  return { enabled: asked ? budget !== 0 : null, effort, budgetTokens: typeof budget === "number" && budget > 0 ? budget : null };
}

function decodeFormat(generation: Generation, config: Readonly<Record<string, unknown>>): TurnRequest["responseFormat"] {
  const mime = generation.responseMimeType ?? "text/plain";
  const { responseSchema, responseJsonSchema } = config;
  if (responseSchema && responseJsonSchema) throw invalid("generationConfig.responseJsonSchema", "is given together with responseSchema");
  if (mime === "text/plain") {
    if (responseSchema || responseJsonSchema) throw invalid("generationConfig.responseMimeType", "must be application/json where a schema is given");
    return null;
  }
  if (mime !== "application/json") throw invalid("generationConfig.responseMimeType", `${shown(mime)} is not one of text/plain, application/json`);
  if (responseJsonSchema) return { type: "json_schema", name: null, schema: readObject(responseJsonSchema, "generationConfig.responseJsonSchema"), strict: null };
  if (responseSchema) return { type: "json_schema", name: null, schema: jsonSchema(responseSchema, "generationConfig.responseSchema"), strict: null };
  return { type: "json_object" };
}
