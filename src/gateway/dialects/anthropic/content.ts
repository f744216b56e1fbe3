/** Content blocks of Anthropic's messages. */
import type { AnswerBlock, ContentBlock, TextBlock } from "../../conversation.ts";
import { jsonText, type Dropped } from "../read-request.ts";
import { unwrapArguments } from "../tool-arguments.ts";
import type { WireContent, WireMessage } from "./schema.ts";
import { signatureIn } from "./signature.ts";

/** Of a user, or of a tool's result. */
export function readContent(content: string | readonly WireContent[], prefix: string, dropped: Dropped): readonly ContentBlock[] {
  if (typeof content === "string") return [{ type: "text", text: content }];
  return content.flatMap((block): readonly ContentBlock[] => {
    dropped.fields(block, prefix, ["cache_control", "citations", "transformations"]);
    switch (block.type) {
      case "text":
        return [{ type: "text", text: block.text }];
      case "image": {
        const { source } = block;
        return [{ type: "image", source: source.type === "url" ? { kind: "url", url: source.url } : { kind: "base64", mediaType: source.media_type, data: source.data } }];
      }
      case "document": {
        const head = [block.title, block.context].filter((line) => typeof line === "string" && line !== "");
        const body = block.source.type === "text" ? block.source.data : block.source.content;
        return [...head.map((line): TextBlock => ({ type: "text", text: `${line}\n` })), ...readContent(body, `${prefix}.source.content[]`, dropped)];
      }
      case "tool_reference":
        // Every tool is offered from the start; what is left to say is that the search found it.
        return [{ type: "text", text: `Tool found: ${block.tool_name}` }];
    }
  });
}

export function readTexts(content: string | readonly Extract<WireContent, { type: "text" }>[], prefix: string, dropped: Dropped): readonly TextBlock[] {
  if (typeof content === "string") return content === "" ? [] : [{ type: "text", text: content }];
  return content.map((block) => {
    dropped.fields(block, prefix, ["cache_control", "citations"]);
    return { type: "text", text: block.text };
  });
}

export function readAssistant(content: Extract<WireMessage, { role: "assistant" }>["content"], path: string, dropped: Dropped): readonly AnswerBlock[] {
  if (typeof content === "string") return content === "" ? [] : [{ type: "text", text: content }];
  return content.flatMap((block, index): readonly AnswerBlock[] => {
    dropped.fields(block, "messages[].content[]", ["cache_control", "citations", "caller"]);
    switch (block.type) {
      case "text":
        return block.text === "" ? [] : [{ type: "text", text: block.text }];
      case "thinking":
        return [{ type: "reasoning", text: block.thinking, signature: signatureIn(block.signature) }];
      case "redacted_thinking":
        return [{ type: "reasoning", text: "", signature: block.data, redacted: true }];
      case "tool_use": {
        const input = block.input ?? {};
        return [{ type: "tool_call", id: block.id, name: block.name, arguments: unwrapArguments(input) ?? jsonText(input, `${path}[${index}].input`) }];
      }
    }
  });
}
