/** The scripted model's answers in each of the four model APIs, streamed in one piece where the request asks for a stream. */
import type { Dialect } from "../../gateway/conversation.ts";
import type { ModelRequest } from "./scripted-model.ts";

export type ScriptedAnswer = { readonly kind: "text"; readonly text: string } | { readonly kind: "command"; readonly command: string };

/** By what name and with which argument agents offer a shell. */
const SHELL_TOOLS: readonly (readonly [name: string, args: (command: string) => Readonly<Record<string, unknown>>])[] = [
  ["bash", (command) => ({ command })],
  ["Bash", (command) => ({ command, description: "A step of the rehearsal" })],
  ["run_shell_command", (command) => ({ command, description: "A step of the rehearsal", is_background: false })],
  ["exec_command", (command) => ({ cmd: command })],
  ["shell", (command) => ({ command: ["/bin/sh", "-c", command] })],
];

export interface Body {
  readonly contentType: string;
  readonly body: string;
}

export function answerTo(request: ModelRequest, answer: ScriptedAnswer): Body {
  const call = answer.kind === "command" ? shellCall(request, answer.command) : null;
  const text = answer.kind === "text" ? answer.text : call === null ? "There is no shell tool." : "";
  return WRITERS[request.dialect](request, text, call);
}

interface Call {
  readonly id: string;
  readonly name: string;
  readonly args: Readonly<Record<string, unknown>>;
}

function shellCall(request: ModelRequest, command: string): Call | null {
  const tool = SHELL_TOOLS.find(([name]) => request.tools.includes(name));
  return tool === undefined ? null : { id: `call_${String(request.turn + 1).padStart(8, "0")}`, name: tool[0], args: tool[1](command) };
}

/** Small and constant: large numbers make CLIs summarise. */
const [PROMPT, COMPLETION] = [100, 10];

const WRITERS: Readonly<Record<Dialect, (request: ModelRequest, text: string, call: Call | null) => Body>> = {
  "openai-chat": ({ body }, text, call) => {
    const calls = call === null ? undefined : [{ index: 0, id: call.id, type: "function", function: { name: call.name, arguments: JSON.stringify(call.args) } }];
    const message = { role: "assistant", content: call === null ? text : null, ...(calls === undefined ? {} : { tool_calls: calls }) };
    const head = { id: "chatcmpl-rehearsal", created: 1, model: field(body, "model") };
    const finish = call === null ? "stop" : "tool_calls";
    const usage = { prompt_tokens: PROMPT, completion_tokens: COMPLETION, total_tokens: PROMPT + COMPLETION };
    if (field(body, "stream") !== true) return json({ ...head, object: "chat.completion", choices: [{ index: 0, message, finish_reason: finish }], usage });
    const chunk = { ...head, object: "chat.completion.chunk" };
    return events([
      [null, { ...chunk, choices: [{ index: 0, delta: message, finish_reason: null }] }],
      [null, { ...chunk, choices: [{ index: 0, delta: {}, finish_reason: finish }] }],
      [null, { ...chunk, choices: [], usage }],
      [null, "[DONE]"],
    ]);
  },
  "openai-responses": ({ body, turn }, text, call) => {
    const item = call === null
      ? { type: "message", id: `msg_${turn}`, role: "assistant", status: "completed", content: [{ type: "output_text", text, annotations: [] }] }
      : { type: "function_call", id: `fc_${turn}`, call_id: call.id, name: call.name, arguments: JSON.stringify(call.args), status: "completed" };
    const usage = { input_tokens: PROMPT, input_tokens_details: { cached_tokens: 0 }, output_tokens: COMPLETION, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: PROMPT + COMPLETION };
    const response = { id: `resp_${turn}`, object: "response", created_at: 1, model: field(body, "model"), status: "completed", output: [item], usage };
    if (field(body, "stream") !== true) return json(response);
    return events([
      ["response.created", { type: "response.created", response: { ...response, status: "in_progress", output: [], usage: null } }],
      ["response.output_item.added", { type: "response.output_item.added", output_index: 0, item }],
      ["response.output_item.done", { type: "response.output_item.done", output_index: 0, item }],
      ["response.completed", { type: "response.completed", response }],
    ]);
  },
  anthropic: ({ body }, text, call) => {
    const block = call === null ? { type: "text", text } : { type: "tool_use", id: `toolu_${call.id}`, name: call.name, input: call.args };
    const stop = { stop_reason: call === null ? "end_turn" : "tool_use", stop_sequence: null };
    const message = { id: "msg_rehearsal", type: "message", role: "assistant", model: field(body, "model") };
    const usage = { input_tokens: PROMPT, output_tokens: COMPLETION };
    if (field(body, "stream") !== true) return json({ ...message, content: [block], ...stop, usage });
    const delta = call === null ? { type: "text_delta", text } : { type: "input_json_delta", partial_json: JSON.stringify(call.args) };
    const opened = call === null ? { type: "text", text: "" } : { ...block, input: {} };
    return events(
      [
        { type: "message_start", message: { ...message, content: [], stop_reason: null, stop_sequence: null, usage: { ...usage, output_tokens: 1 } } },
        { type: "content_block_start", index: 0, content_block: opened },
        { type: "content_block_delta", index: 0, delta },
        { type: "content_block_stop", index: 0 },
        { type: "message_delta", delta: stop, usage },
        { type: "message_stop" },
      ].map((event) => [event.type, event]),
    );
  },
  gemini: ({ path }, text, call) => {
    const part = call === null ? { text } : { functionCall: { name: call.name, args: call.args } };
    const response = {
      candidates: [{ index: 0, content: { role: "model", parts: [part] }, finishReason: "STOP" }],
      usageMetadata: { promptTokenCount: PROMPT, candidatesTokenCount: COMPLETION, totalTokenCount: PROMPT + COMPLETION },
      modelVersion: "rehearsal",
    };
    return path.includes(":streamGenerateContent") ? events([[null, response]]) : json(response);
  },
};

function field(body: unknown, name: string): unknown {
  return (body as Readonly<Record<string, unknown>>)[name];
}

function json(document: unknown): Body {
  return { contentType: "application/json", body: JSON.stringify(document) };
}

function events(list: readonly (readonly [name: string | null, data: unknown])[]): Body {
  const body = list.map(([name, data]) => `${name === null ? "" : `event: ${name}\n`}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`).join("");
  return { contentType: "text/event-stream", body };
}
