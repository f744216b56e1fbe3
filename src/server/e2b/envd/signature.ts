/** Signed addresses of files: who has one may read or write that one path, without the token. Source: the SDKs of https://github.com/e2b-dev/E2B, `getSignature`. */
import { createHash, timingSafeEqual } from "node:crypto";

export interface SignedRequest {
  readonly path: string;
  readonly operation: "read" | "write";
  readonly user: string;
  readonly signature: string;
  /** Seconds since the epoch, as it was signed; null for one that lasts as long as the sandbox. */
  readonly expiration: string | null;
}

const FORM = /^v1_[A-Za-z0-9+/]{43}$/;

/** Null for a request that is not signed, or in no known way. */
export function signedRequest(url: URL, method: string | undefined): SignedRequest | null {
  const signature = url.searchParams.get("signature") ?? "";
  const expiration = url.searchParams.get("signature_expiration");
  if (!FORM.test(signature) || (expiration !== null && !/^\d{1,15}$/.test(expiration))) return null;
  const operation = method === "GET" || method === "HEAD" ? "read" : method === "POST" ? "write" : null;
  return operation === null ? null : { path: url.searchParams.get("path") ?? "", operation, user: url.searchParams.get("username") ?? "", signature, expiration };
}

export function isSignedBy({ path, operation, user, signature, expiration }: SignedRequest, token: string): boolean {
  const text = `${path}:${operation}:${user}:${token}${expiration === null ? "" : `:${expiration}`}`;
  const right = Buffer.from(`v1_${createHash("sha256").update(text).digest("base64").replace(/=+$/, "")}`);
  const given = Buffer.from(signature);
  return given.length === right.length && timingSafeEqual(given, right);
}

export function hasExpired({ expiration }: SignedRequest, nowMs: number): boolean {
  return expiration !== null && Number(expiration) * 1000 < nowMs;
}
