/** Reads a recorded call's request again. */
import { MwError } from "../../core/errors.ts";
import type { Call } from "../call.ts";
import { EMPTY_TURN, type TurnRequest } from "../conversation.ts";
import { CODECS } from "../dialects/codecs.ts";
import { GatewayFailure } from "../failure.ts";

/** A request that was refused because it cannot be read is an empty conversation. */
export function turnOf(call: Call): TurnRequest {
  // What a harness in this process asked was written as it is.
  if (call.dialect === "turn") return call.request as TurnRequest;
  const codec = CODECS[call.dialect];
  if (codec === undefined) throw new MwError("corrupt", `call ${call.number} is in the dialect ${JSON.stringify(call.dialect)}, which this version does not read`, { fix: "use the version of mw that made the run" });
  try {
    return codec.decode(call.request, call.route);
  } catch (error) {
    if (call.status === "failed" && error instanceof GatewayFailure) return { ...EMPTY_TURN, dialect: call.dialect, model: call.model };
    throw error;
  }
}
