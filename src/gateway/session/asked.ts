/** A request as it reached its session, and the record that becomes of it. */
import type { CallId } from "../../core/ids.ts";
import type { Call } from "../call.ts";
import { DEFAULT_SAMPLING, type Dialect, type TurnRequest } from "../conversation.ts";
import type { RouteFacts } from "../dialects/dialect.ts";
import type { CaptureLevel } from "../upstreams/upstream.ts";
import type { RequestDigest } from "./request-digest.ts";

/** What of it stands whether or not it could be read. */
export interface AskedBody {
  readonly dialect: Dialect | "turn";
  readonly route: RouteFacts;
  /** As the harness sent it. */
  readonly body: unknown;
}

export interface Asked extends AskedBody {
  readonly request: TurnRequest;
  /** Null: nothing can be a retry of it. */
  readonly digest: RequestDigest | null;
  /** The client says that this is a retry. */
  readonly saysRetry: boolean;
  /** Gets the record before the outcome is known. */
  readonly onRecord?: (call: Call) => void;
}

/** The record of a call of which nothing has come: to be filled in. */
export function emptyRecord(
  { id, number, createdAt }: { readonly id: CallId; readonly number: number; readonly createdAt: number },
  { dialect, route, body }: AskedBody,
  { model, capture }: { readonly model: string; readonly capture: CaptureLevel },
): Call {
  return {
    id,
    number,
    at: new Date(createdAt).toISOString(),
    durationMs: 0,
    firstDeltaMs: null,
    dialect,
    route,
    status: "failed",
    failure: null,
    request: body,
    conversation: { tools: "", toolCount: 0, messages: [], roles: "", structured: false },
    model,
    sampling: DEFAULT_SAMPLING,
    notes: [],
    answer: null,
    capture,
    tokens: null,
    replays: 0,
  };
}
