/** Which form a trainer gets, by what it accepts. */
import { MwError } from "../../core/errors.ts";
import type { Encoding } from "./encoding.ts";
import { encodeJson } from "./json.ts";
import { encodeMsgpack } from "./msgpack.ts";
import { encodeSafetensors } from "./safetensors.ts";

export const LEASE_TYPES = ["application/x-safetensors", "application/msgpack", "application/json"] as const;

const ENCODINGS: Readonly<Record<string, Encoding>> = {
  "application/x-safetensors": encodeSafetensors,
  "application/msgpack": encodeMsgpack,
  "application/x-msgpack": encodeMsgpack,
  "application/json": encodeJson,
};

/** The first of the accepted types that there is, whatever their weights; safetensors where anything is accepted. Rejects `invalid_input`. */
export function encodingFor(accept: string | undefined): Encoding {
  for (const part of (accept ?? "*/*").split(",")) {
    const type = part.split(";")[0]?.trim().toLowerCase() ?? "";
    if (type === "*/*" || type === "application/*" || type === "") return encodeSafetensors;
    const encoding = ENCODINGS[type];
    if (encoding !== undefined) return encoding;
  }
  throw new MwError("invalid_input", `a lease cannot be given as ${JSON.stringify(accept?.slice(0, 200))}`, { fix: `accept one of ${LEASE_TYPES.join(", ")}` });
}
