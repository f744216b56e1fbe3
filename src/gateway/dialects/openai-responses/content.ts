/** The parts of messages and of tool outputs. */
import { z } from "zod";
import type { AnswerBlock, ContentBlock } from "../../conversation.ts";
import { imageSource } from "../image-source.ts";
import { type Dropped, invalid, readBody, readList, readObject, shown } from "../read-request.ts";

const textSchema = z.looseObject({ text: z.string() });
const refusalSchema = z.looseObject({ refusal: z.string() });
const imageSchema = z.looseObject({ image_url: z.string().nullish(), file_id: z.string().nullish(), detail: z.string().nullish() });

const TEXT_FIELDS = new Set(["type", "text", "annotations", "logprobs"]);
const IMAGE_FIELDS = new Set(["type", "image_url", "file_id", "detail"]);

export function decodeContent(value: unknown, path: string, dropped: Dropped): readonly ContentBlock[] {
  if (typeof value === "string") return [{ type: "text", text: value }];
  return readList(value, path).map((entry, index) => decodePart(entry, `${path}[${index}]`, dropped));
}

function decodePart(value: unknown, path: string, dropped: Dropped): ContentBlock {
  const part = readObject(value, path);
  switch (part["type"]) {
    case "input_text":
    case "output_text":
    case "text":
      dropped.unknown(part, path, TEXT_FIELDS);
      return { type: "text", text: readBody(textSchema, part, path).text };
    case "input_image": {
      const { image_url: url, file_id: file, detail } = readBody(imageSchema, part, path);
      dropped.unknown(part, path, IMAGE_FIELDS);
      if (typeof url !== "string") throw invalid(`${path}.image_url`, file ? "uploaded files are not kept here; send the image as a data URL" : "is missing");
      return { type: "image", source: imageSource(url), ...(typeof detail === "string" ? { detail } : {}) };
    }
    default:
      throw invalid(`${path}.type`, `content of type ${shown(part["type"])} is not supported`);
  }
}

/** What the assistant said: texts and refusals. */
export function decodeAnswerContent(value: unknown, path: string, dropped: Dropped): readonly AnswerBlock[] {
  if (typeof value === "string") return [{ type: "text", text: value }];
  return readList(value, path).map((entry, index): AnswerBlock => {
    const at = `${path}[${index}]`;
    const part = readObject(entry, at);
    if (part["type"] === "refusal") return { type: "refusal", text: readBody(refusalSchema, part, at).refusal };
    const block = decodePart(part, at, dropped);
    if (block.type !== "text") throw invalid(`${at}.type`, "an assistant message holds texts and refusals only");
    return block;
  });
}
