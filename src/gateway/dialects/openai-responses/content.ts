/** The parts of messages and of tool outputs. */
import { z } from "zod";
import type { AnswerBlock, ContentBlock } from "../../conversation.ts";
import { dataUrl, type Notes, objectAt, parseAt, refuse } from "../fields.ts";

const textSchema = z.looseObject({ text: z.string() });
const refusalSchema = z.looseObject({ refusal: z.string() });
const imageSchema = z.looseObject({ image_url: z.string().nullish(), file_id: z.string().nullish(), detail: z.string().nullish() });

const TEXT_FIELDS = new Set(["type", "text", "annotations", "logprobs"]);
const IMAGE_FIELDS = new Set(["type", "image_url", "file_id", "detail"]);

export function decodeContent(value: unknown, path: string, notes: Notes): readonly ContentBlock[] {
  if (typeof value === "string") return [{ type: "text", text: value }];
  return parts(value, path).map((entry, index) => decodePart(entry, `${path}[${index}]`, notes));
}

function decodePart(value: unknown, path: string, notes: Notes): ContentBlock {
  const part = objectAt(value, path);
  switch (part["type"]) {
    case "input_text":
    case "output_text":
    case "text":
      notes.unknown(part, TEXT_FIELDS, path);
      return { type: "text", text: parseAt(textSchema, part, path).text };
    case "input_image": {
      const { image_url: url, file_id: file, detail } = parseAt(imageSchema, part, path);
      notes.unknown(part, IMAGE_FIELDS, path);
      if (typeof url !== "string") refuse(`${path}.image_url`, file ? "uploaded files are not kept here; send the image as a data URL" : "is missing");
      const inline = dataUrl(url);
      return { type: "image", source: inline === null ? { kind: "url", url } : { kind: "base64", ...inline }, ...(typeof detail === "string" ? { detail } : {}) };
    }
    default:
      return refuse(`${path}.type`, `content of type ${JSON.stringify(part["type"])} is not supported`);
  }
}

/** What the assistant said: texts and refusals. */
export function decodeAnswerContent(value: unknown, path: string, notes: Notes): readonly AnswerBlock[] {
  if (typeof value === "string") return [{ type: "text", text: value }];
  return parts(value, path).map((entry, index): AnswerBlock => {
    const at = `${path}[${index}]`;
    const part = objectAt(entry, at);
    if (part["type"] === "refusal") return { type: "refusal", text: parseAt(refusalSchema, part, at).refusal };
    const block = decodePart(part, at, notes);
    return block.type === "text" ? block : refuse(`${at}.type`, "an assistant message holds texts and refusals only");
  });
}

function parts(value: unknown, path: string): readonly unknown[] {
  if (!Array.isArray(value)) refuse(path, "must be a string or a list");
  return value as readonly unknown[];
}
