/** One answer as its tokens come: their ids, logprobs and versions kept as they are, and their text read into blocks. It may take several requests, where new weights end one. */
import type { Answer, Delta, TokenLogprob, TurnRequest } from "../../conversation.ts";
import { GatewayFailure } from "../../failure.ts";
import type { RenderedPrompt, Renderer } from "../../render/renderer.ts";
import type { Piece } from "../../render/parse/output.ts";
import { AnswerBuilder } from "../answer-builder.ts";
import type { AnswerReader } from "../answer-sink.ts";
import { record } from "../chat/tokens.ts";
import type { CallTokens } from "../upstream.ts";
import { StopStrings } from "./stop-strings.ts";
import type { TokenPiece, TokenWire } from "./wire.ts";

export interface GenerationOptions {
  readonly renderer: Renderer;
  readonly request: TurnRequest;
  readonly requestId: string;
  readonly prompt: RenderedPrompt;
  /** The end of the context is nearer than the limit that was asked for. */
  readonly atContext: boolean;
}

export class TokenGeneration {
  readonly #options: GenerationOptions;
  readonly #builder: AnswerBuilder;
  readonly #reader: ReturnType<Renderer["reader"]>;
  readonly #text: ReturnType<Renderer["detokeniser"]>;
  readonly #stops: StopStrings;
  readonly #ids: number[] = [];
  /** Null once a token came without one. */
  #logprobs: number[] | null = [];
  /** Versions of earlier requests of this answer, and of the one that runs. */
  #versions: (readonly [string, number])[] = [];
  #runVersions: readonly (readonly [string, number])[] = [];
  #runStart = 0;
  readonly #shown: TokenLogprob[] = [];
  #finish: TokenPiece["finish"] = null;
  #stopString: string | null = null;
  #reasoningTokens = 0;
  #cachedTokens = 0;
  #upstreamId: string | null = null;
  #calls = 0;

  constructor(options: GenerationOptions) {
    const { renderer, request, requestId, prompt } = options;
    this.#options = options;
    this.#builder = new AnswerBuilder(request, requestId);
    this.#reader = renderer.reader(request, prompt);
    this.#text = renderer.detokeniser();
    this.#stops = new StopStrings(request.sampling.stop);
  }

  get ids(): readonly number[] {
    return this.#ids;
  }

  get finish(): TokenPiece["finish"] {
    return this.#finish;
  }

  /** Takes the tokens of one more request. */
  run(wire: TokenWire, fail: (error: unknown) => GatewayFailure): AnswerReader<void> {
    const read = wire.reader();
    let begun = false;
    this.#finish = null;
    this.#runVersions = [];
    this.#runStart = this.#ids.length;
    const take = (body: unknown): void => {
      const fields = record(body);
      if (fields["error"] !== undefined && fields["error"] !== null) throw fail(fields["error"]);
      if (fields["object"] === "error") throw fail(fields);
      const piece = read(fields);
      if (piece === null) return;
      begun ||= piece.ids.length > 0;
      this.#add(piece);
    };
    const isDone = (): boolean => this.#stopString !== null;
    const ended = (): boolean => this.#finish !== null || isDone();
    return {
      get begun() {
        return begun;
      },
      get isDone() {
        return isDone();
      },
      chunk: take,
      whole: (body) => {
        take(body);
        if (!ended()) throw new GatewayFailure("upstream", "The model server answered with JSON that is no generation.");
      },
      take: () => this.#builder.take(),
      end: () => {
        if (!ended()) throw new GatewayFailure(begun ? "truncated" : "upstream", begun ? "The model server's answer broke off before its end." : "The model server's stream ended without an answer.");
        if (this.#finish === "error") throw new GatewayFailure("upstream", "The model server ended the generation by itself.");
      },
    };
  }

  /**
   * After each request, also one that broke off: its tokens keep the versions that the server gave them. `version` is that of tokens of which the server says nothing, or nothing
   * that is a version of a policy; null where there is no policy, so that whatever the server says holds.
   */
  endRun(version: string | null): void {
    const count = this.#ids.length - this.#runStart;
    const said = this.#runVersions.reduce((sum, [, of]) => sum + of, 0);
    const known = said >= count && (version === null || this.#runVersions.every(([name]) => isPolicyVersion(name)));
    if (known) this.#versions.push(...upTo(this.#runVersions, count));
    else if (version !== null && count > 0) this.#versions.push([version, count]);
    this.#runVersions = [];
    this.#runStart = this.#ids.length;
  }

  /** Names of the versions so far, in order of their first token. */
  get versions(): readonly string[] {
    return [...new Set(this.#versions.map(([version]) => version))];
  }

  #add({ ids, logprobs, top, finish, versions, cachedTokens, upstreamId }: TokenPiece): void {
    if (logprobs !== null && logprobs.length !== ids.length) throw new GatewayFailure("upstream", `The model server gave ${logprobs.length} logprobs for ${ids.length} tokens.`);
    if (logprobs === null && ids.length > 0) this.#logprobs = null;
    for (const [at, id] of ids.entries()) {
      if (this.#stopString !== null) break;
      this.#ids.push(id);
      const logprob = logprobs?.[at] ?? Number.NaN;
      this.#logprobs?.push(logprob);
      if (this.#options.request.logprobs !== null) this.#shown.push(this.#shownToken(id, logprob, top?.[at] ?? []));
      this.#read(this.#text.push(id));
    }
    if (versions !== null) this.#runVersions = versions;
    if (finish !== null) this.#finish = finish;
    this.#cachedTokens = Math.max(this.#cachedTokens, cachedTokens ?? 0);
    this.#upstreamId ??= upstreamId;
  }

  #read(text: string): void {
    const { text: certain, met } = this.#stops.push(text);
    this.#stopString = met;
    const pieces = this.#reader.push(certain);
    if (pieces.some(({ type }) => type === "reasoning")) this.#reasoningTokens += 1;
    this.#build(pieces);
  }

  #build(pieces: readonly Piece[]): void {
    for (const piece of pieces) {
      if (piece.type === "tool_call") {
        this.#calls += 1;
        this.#builder.toolCall(this.#calls, piece.id ?? this.#options.renderer.callId(this.#options.requestId, this.#calls), piece.name, "");
      } else if (piece.type === "arguments") this.#builder.toolCall(this.#calls, null, null, piece.text);
      else this.#builder.text(piece.type, piece.text);
    }
  }

  /** Once the last request has ended. What is still to be passed on is in `deltas`. */
  end(): { readonly answer: Answer; readonly tokens: CallTokens; readonly deltas: readonly Delta[]; readonly upstreamId: string | null; readonly notes: readonly string[] } {
    if (this.#stopString === null) {
      this.#read(this.#text.end());
      if (this.#stopString === null) this.#build(this.#reader.push(this.#stops.end()));
    }
    this.#build(this.#reader.end());
    const blocks = this.#builder.end();
    const { prompt, request } = this.#options;
    const notes = [...this.#builder.notes];
    if (this.#logprobs !== null && !this.#logprobs.every(Number.isFinite)) {
      notes.push("The model server gave logprobs that are no numbers; they are not kept.");
      this.#logprobs = null;
    }
    const usage = { promptTokens: prompt.ids.length, completionTokens: this.#ids.length, cachedTokens: this.#cachedTokens, reasoningTokens: this.#reasoningTokens };
    return {
      answer: { blocks, ...this.#ending(blocks.some(({ type }) => type === "tool_call")), usage, logprobs: request.logprobs === null ? null : this.#shown },
      tokens: { promptIds: prompt.ids, completionIds: this.#ids, logprobs: this.#logprobs, versions: this.#mergedVersions() },
      deltas: this.#builder.take(),
      upstreamId: this.#upstreamId,
      notes,
    };
  }

  #ending(hasCalls: boolean): Pick<Answer, "finish" | "stopSequence"> {
    if (this.#stopString !== null) return { finish: "stop_sequence", stopSequence: this.#stopString };
    if (this.#finish === "length") return { finish: this.#options.atContext ? "context" : "length", stopSequence: null };
    return { finish: hasCalls ? "tool_calls" : "stop", stopSequence: null };
  }

  /** Runs of equal versions together, and no more tokens than there are: what came after a stop string is dropped. */
  #mergedVersions(): CallTokens["versions"] {
    const merged: [string, number][] = [];
    let left = this.#ids.length;
    for (const [version, count] of this.#versions) {
      const taken = Math.min(count, left);
      left -= taken;
      const last = merged.at(-1);
      if (last?.[0] === version) last[1] += taken;
      else if (taken > 0) merged.push([version, taken]);
    }
    // Where a server says nothing of some tokens, nothing is said of any.
    return left === 0 ? merged : [];
  }

  #shownToken(id: number, logprob: number, top: readonly { readonly id: number; readonly logprob: number }[]): TokenLogprob {
    const { tokenizer } = this.#options.renderer;
    const token = (of: number, value: number): Omit<TokenLogprob, "top"> => ({ token: tokenizer.textOf(of), logprob: value, bytes: [...tokenizer.bytesOf(of)] });
    const wanted = this.#options.request.logprobs ?? 0;
    return { ...token(id, logprob), top: top.slice(0, wanted).map((one) => token(one.id, one.logprob)) };
  }
}

/** Versions of a policy are numbers; a server that was never told one says something else. */
export function isPolicyVersion(name: string): boolean {
  return /^(0|[1-9]\d{0,9})$/.test(name);
}

/** The first `count` tokens of runs; what a server counted and did not send is not there. */
function upTo(runs: CallTokens["versions"], count: number): CallTokens["versions"] {
  let left = count;
  return runs.flatMap(([version, of]) => {
    const taken = Math.min(of, left);
    left -= taken;
    return taken === 0 ? [] : [[version, taken] as const];
  });
}
