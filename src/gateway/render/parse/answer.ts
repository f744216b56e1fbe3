/** The answer of a model as blocks: reasoning, texts, tool calls. */
import { Input, type Step } from "./input.ts";
import { Output, type Piece } from "./output.ts";

export interface CallContext {
  readonly input: Input;
  readonly output: Output;
  /** JSON schema of a tool's parameters, as the harness gave it; null for a tool that it did not name. */
  readonly schema: (tool: string) => unknown;
}

/**
 * How a family writes tool calls into its text. `read` is called after one of `marks` was met and reads up to the end of that call or section. It returns false, without having
 * put anything out, for what is no call: that goes out as text, mark included. Once the head of a call is whole the call stands, and what is malformed within it stays in its
 * arguments as it was sampled: they then do not parse, and the harness can tell the model so.
 */
export interface ToolSyntax {
  readonly marks: readonly string[];
  readonly read: (context: CallContext, mark: string) => Step<boolean>;
  /** Calls stand at the beginning of an answer only, and need no mark. */
  readonly leading?: (context: CallContext) => Step<boolean>;
}

export interface Thought {
  readonly open: string;
  readonly close: string;
}

export interface AnswerForm {
  /** Null for models that do not think aloud. */
  readonly thought: Thought | null;
  /** The prompt has opened the thought already. */
  readonly inThought: boolean;
  /** Null where no tools were offered: then there is no call, whatever the text looks like. */
  readonly tools: ToolSyntax | null;
}

export type AnswerParser = (context: CallContext) => Step;

/** White space around thoughts and calls is framing, and no text. */
export function answerParser(form: AnswerForm): AnswerParser {
  return function* parse(context) {
    const { input, output } = context;
    if (form.thought !== null) {
      const space = form.inThought ? "" : yield* input.space();
      if (form.inThought || (yield* input.accept(form.thought.open))) {
        yield* input.accept("\n");
        yield* input.until([`\n${form.thought.close}`, form.thought.close], (text) => output.reasoning(text));
        yield* input.space();
      } else output.text(space);
    }
    const { tools } = form;
    if (tools?.leading !== undefined) yield* attempt(context, "", tools.leading(context));
    for (;;) {
      const mark = yield* input.until(tools?.marks ?? [], (text) => output.text(text));
      if (mark === null || tools === null) break;
      yield* attempt(context, mark, tools.read(context, mark));
    }
    output.end();
  };
}

function* attempt({ input, output }: CallContext, mark: string, reading: Step<boolean>): Step {
  input.record(mark);
  const isCall = yield* reading;
  const text = input.recorded();
  if (!isCall) output.text(text);
}

/** A call whose head is whole. */
export function announce({ input, output }: CallContext, name: string, id: string | null = null): void {
  input.recorded();
  output.call(name, id);
}

export const TOOL_NAME = /^[\w.:/-]+$/;

/** Drives a parser with the pieces of an answer. */
export class AnswerReader {
  readonly #input = new Input();
  readonly #output = new Output();
  readonly #steps: Step;

  constructor(parser: AnswerParser, schema: CallContext["schema"]) {
    this.#steps = parser({ input: this.#input, output: this.#output, schema });
  }

  push(text: string): readonly Piece[] {
    if (text === "") return [];
    this.#input.feed(text);
    this.#steps.next();
    return this.#output.take();
  }

  end(): readonly Piece[] {
    this.#input.finish();
    this.#steps.next();
    return this.#output.take();
  }
}
