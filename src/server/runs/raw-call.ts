/** A call as it went over the wire: its request as the harness sent it, its answer written in the same dialect. */
import { join } from "node:path";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Call } from "../../gateway/call.ts";
import { CODECS } from "../../gateway/dialects/codecs.ts";
import { readCalls } from "../../gateway/log/read-calls.ts";
import { turnOf } from "../../gateway/trace/turn-of-call.ts";
import type { RawCall } from "./contract/calls.ts";

export async function rawCall(directory: string, number: number): Promise<RawCall> {
  const call = await findCall(directory, number);
  const request = JSON.stringify(call.request, null, 2) ?? "";
  const response = responseOf(call);
  return {
    number,
    dialect: call.dialect,
    status: call.status,
    at: call.at,
    durationMs: call.durationMs,
    model: call.model,
    sampling: call.sampling,
    notes: [...call.notes],
    failure: call.failure,
    request: request.length > LIMITS.viewedTextBytes ? null : request,
    requestCharacters: request.length,
    response: response === null || response.length > LIMITS.viewedTextBytes ? null : response,
    responseCharacters: response?.length ?? 0,
  };
}

/** The whole body of one side, for saving. */
export async function rawBody(directory: string, number: number, side: "request" | "response"): Promise<string> {
  const call = await findCall(directory, number);
  return side === "request" ? (JSON.stringify(call.request, null, 2) ?? "") : (responseOf(call) ?? "");
}

/** Calls refer to those before them, so the log is read up to it. */
async function findCall(directory: string, number: number): Promise<Call> {
  for await (const call of readCalls(join(directory, "calls.jsonl"))) if (call.number === number) return call;
  throw new MwError("not_found", `there is no call ${number} in ${directory}`, { fix: "look at the rollout's list of calls" });
}

function responseOf(call: Call): string | null {
  const { answer, dialect } = call;
  if (answer === null) return null;
  const codec = dialect === "turn" ? undefined : CODECS[dialect];
  if (codec === undefined) return JSON.stringify(answer, null, 2);
  return JSON.stringify(codec.encode(answer, { callId: call.id, createdAt: Date.parse(call.at), request: turnOf(call) }), null, 2);
}
