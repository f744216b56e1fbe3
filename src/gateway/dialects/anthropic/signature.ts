/**
 * The signature that thinking blocks carry on Anthropic's wire. Open models sign nothing, but clients drop an unsigned block, or turn it into plain text, before they
 * send it back: so their reasoning goes out with a constant mark, and comes back without.
 */

/** Base64, as real signatures are, of the product's name. */
const MARK = Buffer.from("manyworlds").toString("base64");

export function signatureOut(signature: string | null): string {
  return signature === null || signature === "" ? MARK : signature;
}

export function signatureIn(signature: string | null | undefined): string | null {
  return signature === undefined || signature === null || signature === "" || signature === MARK ? null : signature;
}
