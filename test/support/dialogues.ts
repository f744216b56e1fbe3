/** An agent's conversation with the gateway in each dialect, held by the vendor's own client. */
import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI, type Content, type GenerateContentResponse, type Part } from "@google/genai";
import OpenAI from "openai";

export interface Heard {
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly { readonly id: string; readonly name: string; readonly args: unknown }[];
  /** Of the answer. */
  readonly tokens: number;
  /** Why it ended, in the dialect's own word. */
  readonly stop: string | null;
}

export interface DialogueOptions {
  /** PNG in base64, sent with the prompt. */
  readonly image?: string;
  readonly maxTokens?: number;
  readonly temperature?: number;
  /** A stop sequence, which Responses do not have. */
  readonly stop?: string;
}

export interface Dialogue {
  /** Sends the conversation so far, and appends the answer to it as the client has it. */
  ask(stream: boolean): Promise<Heard>;
  /** What the tools said, by the calls' ids. */
  results(outputs: Readonly<Record<string, string>>): void;
}

const COMMAND = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };
const NOTHING = { type: "object", properties: {} };
const MODEL = "some-model";

/** `url`: the session's. Retries are the client's own. */
export type OpenDialogue = (url: string, token: string, prompt: string, options?: DialogueOptions) => Dialogue;

export const DIALOGUES: Readonly<Record<"openai-chat" | "openai-responses" | "anthropic" | "gemini", OpenDialogue>> = {
  "openai-chat": (url, token, prompt, { image, maxTokens = null, temperature = null, stop = null } = {}) => {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token });
    const content = image === undefined ? prompt : [{ type: "text" as const, text: prompt }, { type: "image_url" as const, image_url: { url: `data:image/png;base64,${image}` } }];
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "system", content: "Be brief." }, { role: "user", content }];
    const tools: OpenAI.ChatCompletionTool[] = [
      { type: "function", function: { name: "bash", parameters: COMMAND } },
      { type: "function", function: { name: "now", parameters: NOTHING } },
    ];
    return {
      ask: async (stream) => {
        const body = { model: MODEL, messages, tools, max_completion_tokens: maxTokens, temperature, stop };
        let reasoning = "";
        let completion: OpenAI.ChatCompletion;
        if (stream) {
          const run = client.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
          run.on("chunk", (chunk) => (reasoning += (chunk.choices[0]?.delta as { reasoning_content?: string } | undefined)?.reasoning_content ?? ""));
          completion = await run.finalChatCompletion();
        } else completion = await client.chat.completions.create(body);
        const message = completion.choices[0]?.message;
        if (message === undefined) throw new Error("no choice");
        if (!stream) reasoning = (message as { reasoning_content?: string }).reasoning_content ?? "";
        // As agents do that know of reasoning; the client's types do not.
        messages.push({ role: "assistant", content: message.content, ...(reasoning === "" ? {} : { reasoning_content: reasoning }), ...(message.tool_calls === undefined ? {} : { tool_calls: message.tool_calls }) } as OpenAI.ChatCompletionMessageParam);
        const calls = (message.tool_calls ?? []).flatMap((call) => (call.type === "function" ? [{ id: call.id, name: call.function.name, args: JSON.parse(call.function.arguments) as unknown }] : []));
        return { text: message.content ?? "", reasoning, calls, tokens: completion.usage?.completion_tokens ?? 0, stop: completion.choices[0]?.finish_reason ?? null };
      },
      results: (outputs) => void messages.push(...Object.entries(outputs).map(([id, content]) => ({ role: "tool" as const, tool_call_id: id, content }))),
    };
  },

  "openai-responses": (url, token, prompt, { image, maxTokens = null, temperature = null } = {}) => {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token });
    const content = image === undefined ? prompt : [{ type: "input_text" as const, text: prompt }, { type: "input_image" as const, image_url: `data:image/png;base64,${image}`, detail: "auto" as const }];
    const input: OpenAI.Responses.ResponseInputItem[] = [{ role: "user", content }];
    const tools: OpenAI.Responses.Tool[] = [
      { type: "function", name: "bash", parameters: COMMAND, strict: false },
      { type: "function", name: "now", parameters: NOTHING, strict: false },
    ];
    return {
      ask: async (stream) => {
        const body = { model: MODEL, instructions: "Be brief.", input, tools, store: false, max_output_tokens: maxTokens, temperature };
        const response = stream ? await client.responses.stream(body).finalResponse() : await client.responses.create(body);
        // The client hands it over like any other.
        if (response.error !== null) throw new Error(response.error.message);
        input.push(...(response.output as OpenAI.Responses.ResponseInputItem[]));
        const reasoning = response.output.map((item) => (item.type === "reasoning" ? (item.content ?? item.summary).map((part) => part.text).join("") : "")).join("");
        const calls = response.output.flatMap((item) => (item.type === "function_call" ? [{ id: item.call_id, name: item.name, args: JSON.parse(item.arguments) as unknown }] : []));
        return { text: response.output_text, reasoning, calls, tokens: response.usage?.output_tokens ?? 0, stop: response.incomplete_details?.reason ?? response.status ?? null };
      },
      results: (outputs) => void input.push(...Object.entries(outputs).map(([id, output]) => ({ type: "function_call_output" as const, call_id: id, output }))),
    };
  },

  anthropic: (url, token, prompt, { image, maxTokens = 4096, temperature, stop } = {}) => {
    const client = new Anthropic({ baseURL: url, apiKey: token });
    const content = image === undefined ? prompt : [{ type: "text" as const, text: prompt }, { type: "image" as const, source: { type: "base64" as const, media_type: "image/png" as const, data: image } }];
    const messages: Anthropic.MessageParam[] = [{ role: "user", content }];
    const tools = [
      { name: "bash", input_schema: COMMAND },
      { name: "now", input_schema: NOTHING },
    ] as Anthropic.Tool[];
    return {
      ask: async (stream) => {
        const body = { model: MODEL, max_tokens: maxTokens, system: "Be brief.", messages, tools, ...(temperature === undefined ? {} : { temperature }), ...(stop === undefined ? {} : { stop_sequences: [stop] }) };
        const message = stream ? await client.messages.stream(body).finalMessage() : await client.messages.create(body);
        messages.push({ role: "assistant", content: message.content });
        return {
          text: message.content.map((block) => (block.type === "text" ? block.text : "")).join(""),
          reasoning: message.content.map((block) => (block.type === "thinking" ? block.thinking : "")).join(""),
          calls: message.content.flatMap((block) => (block.type === "tool_use" ? [{ id: block.id, name: block.name, args: block.input }] : [])),
          tokens: message.usage.output_tokens,
          stop: message.stop_reason,
        };
      },
      results: (outputs) => void messages.push({ role: "user", content: Object.entries(outputs).map(([id, content]) => ({ type: "tool_result" as const, tool_use_id: id, content })) }),
    };
  },

  gemini: (url, token, prompt, { image, maxTokens, temperature, stop } = {}) => {
    const client = new GoogleGenAI({ apiKey: token, httpOptions: { baseUrl: url, retryOptions: { attempts: 3 } } });
    const contents: Content[] = [{ role: "user", parts: [{ text: prompt }, ...(image === undefined ? [] : [{ inlineData: { mimeType: "image/png", data: image } }])] }];
    const tools = [{ functionDeclarations: [{ name: "bash", parametersJsonSchema: COMMAND }, { name: "now", parametersJsonSchema: NOTHING }] }];
    const names = new Map<string, string>();
    return {
      ask: async (stream) => {
        const body = { model: MODEL, contents, config: { systemInstruction: "Be brief.", tools, ...(maxTokens === undefined ? {} : { maxOutputTokens: maxTokens }), ...(temperature === undefined ? {} : { temperature }), ...(stop === undefined ? {} : { stopSequences: [stop] }) } };
        const parts: Part[] = [];
        let tokens = 0;
        let end: string | null = null;
        const take = (response: GenerateContentResponse): void => {
          parts.push(...(response.candidates?.[0]?.content?.parts ?? []));
          end = response.candidates?.[0]?.finishReason ?? end;
          tokens = (response.usageMetadata?.candidatesTokenCount ?? 0) + (response.usageMetadata?.thoughtsTokenCount ?? 0) || tokens;
        };
        if (stream) for await (const chunk of await client.models.generateContentStream(body)) take(chunk);
        else take(await client.models.generateContent(body));
        contents.push({ role: "model", parts });
        const text = (thought: boolean): string => parts.map((part) => ((part.thought ?? false) === thought ? (part.text ?? "") : "")).join("");
        const calls = parts.flatMap(({ functionCall }) => (functionCall === undefined ? [] : [{ id: functionCall.id ?? "", name: functionCall.name ?? "", args: functionCall.args }]));
        for (const { id, name } of calls) names.set(id, name);
        return { text: text(false), reasoning: text(true), calls, tokens, stop: end };
      },
      results: (outputs) => void contents.push({ role: "user", parts: Object.entries(outputs).map(([id, output]) => ({ functionResponse: { id, name: names.get(id) ?? "", response: { output } } })) }),
    };
  },
};
