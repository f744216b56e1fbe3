/**
 * A model that plays a script, for rehearsing agent CLIs without one: the gateway's upstream in this process. Its tokens are bytes, so that each call has exact ones.
 *
 * The turn is read off the conversation, by counting the tool results in it, never counted here: CLIs repeat requests, resume and summarise.
 */
import type { Answer, Delta, TurnRequest } from "../../gateway/conversation.ts";
import type { GatewayFailure } from "../../gateway/failure.ts";
import type { GenerateJob, Generation, Upstream, UpstreamFacts } from "../../gateway/upstreams/upstream.ts";

/** What the model does at one turn: a shell command, by whatever tool the CLI offers for that; after the last one it says `final`. */
export interface Script {
  readonly commands: readonly string[];
  readonly final: string;
  /** Failures instead. */
  readonly fault?: (request: TurnRequest) => GatewayFailure | null;
}

/** By what name and with which arguments agents offer a shell. */
const SHELL_TOOLS: readonly (readonly [name: string, args: (command: string) => Readonly<Record<string, unknown>>])[] = [
  ["bash", (command) => ({ command })],
  ["Bash", (command) => ({ command, description: "A step of the rehearsal" })],
  ["run_shell_command", (command) => ({ command, description: "A step of the rehearsal", is_background: false })],
  ["exec_command", (command) => ({ cmd: command })],
];

export class ScriptedUpstream implements Upstream {
  readonly name = "script";
  /** As they came, in order. */
  readonly requests: TurnRequest[] = [];
  readonly #script: Script;

  constructor(script: Script) {
    this.#script = script;
  }

  probe(): Promise<UpstreamFacts> {
    return Promise.resolve({ capture: "tokens", reason: null, models: null });
  }

  async generate({ request, requestId, onDelta }: GenerateJob): Promise<Generation> {
    this.requests.push(request);
    const fault = this.#script.fault?.(request) ?? null;
    if (fault !== null) throw fault;
    const deltas = this.#answer(request, requestId);
    for (const delta of deltas) await onDelta?.(delta);
    const completion = bytes(JSON.stringify(deltas));
    const prompt = bytes(JSON.stringify(request.messages));
    return {
      // Small and constant: large numbers make CLIs summarise.
      answer: { ...joined(deltas), usage: { promptTokens: 100, completionTokens: 10, cachedTokens: 0, reasoningTokens: 0 } },
      tokens: { promptIds: prompt, completionIds: completion, logprobs: completion.map(() => 0), versions: [["script", completion.length]] },
      upstreamId: null,
      notes: [],
    };
  }

  countTokens(request: TurnRequest): Promise<number> {
    return Promise.resolve(Buffer.byteLength(JSON.stringify(request.messages)));
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  #answer({ messages, tools }: TurnRequest, requestId: string): readonly Delta[] {
    const command = this.#script.commands[messages.filter(({ role }) => role === "tool").length];
    if (command === undefined || tools.length === 0) return [{ type: "text", text: this.#script.final }];
    for (const [name, args] of SHELL_TOOLS) {
      const tool = tools.find((candidate) => candidate.name === name);
      if (tool === undefined) continue;
      const { namespace } = tool;
      return [{ type: "tool_call", id: `call_${requestId}`, name, ...(namespace === undefined ? {} : { namespace }) }, { type: "arguments", text: JSON.stringify(args(command)) }];
    }
    return [{ type: "text", text: "There is no shell among the tools." }];
  }
}

function joined(deltas: readonly Delta[]): Pick<Answer, "blocks" | "finish" | "stopSequence" | "logprobs"> {
  const [first, second] = deltas;
  if (first?.type === "tool_call") {
    const { type: _type, ...call } = first;
    return { blocks: [{ type: "tool_call", ...call, arguments: second?.type === "arguments" ? second.text : "{}" }], finish: "tool_calls", stopSequence: null, logprobs: null };
  }
  return { blocks: [{ type: "text", text: first?.type === "text" ? first.text : "" }], finish: "stop", stopSequence: null, logprobs: null };
}

function bytes(text: string): readonly number[] {
  return [...Buffer.from(text)];
}
