/** What the engine is to answer, and how it is to fail. */
interface ScriptedCall {
  /** Null: the call goes out without an id. */
  readonly id?: string | null;
  readonly name?: string;
  /** Shorthand for arguments `{"command": ...}`. */
  readonly command?: string;
  /** Raw text of the arguments, valid or not. */
  readonly arguments?: string;
}

export interface Reply {
  /** Milliseconds before the first byte of the response. */
  readonly delayMs?: number;
  /** Of the response nothing goes out before that. */
  readonly after?: Promise<unknown>;
  readonly content?: string | null;
  readonly reasoning?: string;
  readonly refusal?: string;
  readonly calls?: readonly ScriptedCall[];
  /** As many random tokens instead, whose bytes need not be text. */
  readonly randomTokens?: number;
  readonly finishReason?: string;
  /** Leave `usage` out. */
  readonly noUsage?: boolean;
  /** An error response, or any raw body. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly raw?: string;
  /** Breaks off: before any header, after the headers, in the middle of the body (of a stream: after half of its events), or stops there for ever. */
  readonly breakOff?: "connection" | "headers" | "body" | "never" | "stall";
  /** Milliseconds between the events of a stream, or the bytes of a body. */
  readonly trickleMs?: number;
  /** Sends this many bytes of body, whatever the content. */
  readonly bytes?: number;
  /** Streams although it was not asked, or answers whole although it was. */
  readonly ignoreStream?: boolean;
  /** Ends its stream without the last chunk's reason, or without `[DONE]`. */
  readonly without?: "finish" | "done" | "both";
  /** An error object in the stream instead of its second half. */
  readonly streamError?: unknown;
}

export interface EngineRequest {
  readonly path: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: Readonly<Record<string, unknown>>;
  /** Answers of the assistant in the conversation so far. */
  readonly turn: number;
  /** Turns whose tools have answered: what tells agent CLIs' retries from progress. */
  readonly toolTurns: number;
  /** How often this very conversation was sent before. */
  readonly attempt: number;
  readonly promptIds: readonly number[];
}

/** What is answered to each turn of every conversation; a list within the list answers the tries of one turn, its last entry all later ones. */
export type EngineScript = readonly (Reply | readonly Reply[])[] | ((request: EngineRequest) => Reply);

export function replyTo(script: EngineScript, request: EngineRequest, turn: number): Reply {
  if (typeof script === "function") return script(request);
  const entry = script[turn] ?? { content: "(the script is over)" };
  if (!isList(entry)) return entry;
  return entry[Math.min(request.attempt, entry.length - 1)] ?? {};
}

function isList(entry: Reply | readonly Reply[]): entry is readonly Reply[] {
  return Array.isArray(entry);
}
