import type { ImageBlock } from "../conversation.ts";

/** An image by its URL, or the data that a base64 `data:` URL holds. */
export function imageSource(url: string): ImageBlock["source"] {
  const [, mediaType, data] = /^data:([^;,]+);base64,(.*)$/s.exec(url) ?? [];
  return mediaType === undefined || data === undefined ? { kind: "url", url } : { kind: "base64", mediaType, data };
}
