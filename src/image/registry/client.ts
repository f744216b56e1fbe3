/**
 * A pull client for registries (https://github.com/opencontainers/distribution-spec): token and basic authentication, redirects, retries, resumed downloads.
 *
 * The registry is not trusted: its redirects get no credentials, its bodies are bounded, its digests are checked by the caller, and it can make us wait only so long.
 */
import { Readable } from "node:stream";
import { Agent, EnvHttpProxyAgent, request, type Dispatcher } from "undici";
import { MwError, messageOf } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import { parseJson } from "../layers.ts";
import { collect, type Descriptor } from "../oci.ts";
import { isLoopback, type RegistryEndpoint } from "./config.ts";

const ACCEPT = [
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
  "application/vnd.docker.distribution.manifest.v2+json",
].join(", ");

const ATTEMPTS = 5;
const REDIRECTS = 5;
const PAUSE_MS = 500;
/** A registry that wants a longer pause is reported instead. */
const MAX_PAUSE_MS = 60_000;
const ERROR_BODY_BYTES = 64 * 1024;
const TOKEN_BYTES = 1024 * 1024;
const TIMEOUTS = { connectTimeout: 10_000, headersTimeout: 30_000, bodyTimeout: 60_000 } as const;

type Response = Dispatcher.ResponseData;

export class RegistryClient {
  readonly #endpoint: RegistryEndpoint;
  readonly #repository: string;
  readonly #runtime: Runtime;
  readonly #dispatcher: Dispatcher;
  /** The header that the registry asked for last. */
  #authorization: string | null = null;

  constructor(endpoint: RegistryEndpoint, repository: string, runtime: Runtime) {
    this.#endpoint = endpoint;
    this.#repository = repository;
    this.#runtime = runtime;
    this.#dispatcher = isLoopback(new URL(endpoint.origin).host) ? new Agent(TIMEOUTS) : new EnvHttpProxyAgent(TIMEOUTS);
  }

  async close(): Promise<void> {
    await this.#dispatcher.destroy();
  }

  get label(): string {
    return `${this.#endpoint.registry}/${this.#repository}`;
  }

  /** A manifest or index by tag or digest; its bytes as they came. */
  async manifest(reference: string, signal: AbortSignal): Promise<Buffer> {
    const response = await this.#get(`manifests/${reference}`, { accept: ACCEPT }, signal);
    return collect(response.body, LIMITS.imageManifestBytes, `the manifest of ${this.label}:${reference}`);
  }

  /** A blob as a stream that goes on where a broken connection ended. */
  blob(descriptor: Descriptor, signal: AbortSignal): Readable {
    return Readable.from(this.#resumed(descriptor, signal), { objectMode: false, highWaterMark: 1024 * 1024 });
  }

  async *#resumed(descriptor: Descriptor, signal: AbortSignal): AsyncGenerator<Uint8Array> {
    let received = 0;
    for (let attempt = 1; ; attempt++) {
      const before = received;
      try {
        const response = await this.#get(`blobs/${descriptor.digest}`, received > 0 ? { range: `bytes=${received}-` } : {}, signal);
        // A server that does not know ranges sends everything again.
        let skip = response.statusCode === 206 ? 0 : received;
        for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
          const part = chunk.subarray(Math.min(skip, chunk.length));
          skip -= chunk.length - part.length;
          if (part.length === 0) continue;
          received += part.length;
          if (received > descriptor.size) throw new MwError("invalid_image", `${this.label} sends more bytes than it announced for ${descriptor.digest}`, { fix: "the registry or something before it is broken" });
          yield part;
        }
        if (received === descriptor.size) return;
        throw new Error(`the connection ended after ${received} of ${descriptor.size} bytes`);
      } catch (error) {
        signal.throwIfAborted();
        if (error instanceof MwError) throw error;
        if (received > before) attempt = 1;
        if (attempt >= ATTEMPTS) throw this.#failed(`cannot fetch ${descriptor.digest} of ${this.label}: ${describe(error)}`, error);
        await this.#runtime.sleep(PAUSE_MS * 2 ** (attempt - 1), signal);
      }
    }
  }

  /** A successful GET below the repository, authenticated and redirected as the registry asks. Other answers are errors that say what to do. */
  async #get(path: string, headers: Readonly<Record<string, string>>, signal: AbortSignal): Promise<Response> {
    const url = new URL(`${this.#endpoint.origin}/v2/${this.#repository}/${path}`);
    let asked = false;
    for (let attempt = 1; ; attempt++) {
      let response: Response;
      try {
        response = await this.#follow(url, headers, signal);
      } catch (error) {
        signal.throwIfAborted();
        if (error instanceof MwError) throw error;
        if (attempt >= ATTEMPTS || isHopeless(error)) throw this.#unreachable(error);
        await this.#runtime.sleep(PAUSE_MS * 2 ** (attempt - 1), signal);
        continue;
      }
      const { statusCode } = response;
      if (statusCode === 200 || statusCode === 206) return response;
      const body = await collect(response.body, ERROR_BODY_BYTES, "an error answer").catch(() => Buffer.alloc(0));
      if (statusCode === 401 && !asked) {
        asked = true;
        this.#authorization = await this.#authorize(response.headers["www-authenticate"], signal);
        if (this.#authorization !== null) continue;
      }
      if ((statusCode === 429 || statusCode >= 500) && attempt < ATTEMPTS) {
        const pause = retryAfterMs(response.headers["retry-after"], this.#runtime) ?? PAUSE_MS * 2 ** (attempt - 1);
        if (pause <= MAX_PAUSE_MS) {
          await this.#runtime.sleep(pause, signal);
          continue;
        }
      }
      throw this.#refused(statusCode, path, body, response.headers["retry-after"]);
    }
  }

  /** Follows redirects; the authorization stays with the origin that it is for. */
  async #follow(start: URL, headers: Readonly<Record<string, string>>, signal: AbortSignal): Promise<Response> {
    let url = start;
    for (let hop = 0; hop <= REDIRECTS; hop++) {
      const own = url.origin === start.origin && this.#authorization !== null ? { authorization: this.#authorization } : {};
      const response = await request(url, { dispatcher: this.#dispatcher, headers: { "user-agent": "manyworlds", ...headers, ...own }, signal });
      if (![301, 302, 303, 307, 308].includes(response.statusCode)) return response;
      await response.body.dump();
      const location = response.headers["location"];
      const next = typeof location === "string" && URL.canParse(location, url.href) ? new URL(location, url.href) : null;
      if (next === null || !(next.protocol === "https:" || (next.protocol === "http:" && url.protocol === "http:"))) {
        throw this.#failed(`${this.label} redirects to ${JSON.stringify(String(location).slice(0, 200))}, which is not followed`, null);
      }
      url = next;
    }
    throw this.#failed(`${this.label} redirects more than ${REDIRECTS} times`, null);
  }

  /** The header that a challenge asks for, or null when it cannot be met. */
  async #authorize(challenge: string | string[] | undefined, signal: AbortSignal): Promise<string | null> {
    const { credentials } = this.#endpoint;
    for (const text of [challenge ?? []].flat()) {
      const scheme = text.split(" ", 1)[0]?.toLowerCase();
      if (scheme === "basic" && credentials?.kind === "basic") return basic(credentials.user, credentials.password);
      if (scheme === "bearer") return this.#token(parameters(text), signal);
    }
    return null;
  }

  async #token(challenge: ReadonlyMap<string, string>, signal: AbortSignal): Promise<string> {
    const { credentials, insecure } = this.#endpoint;
    const realm = challenge.get("realm") ?? "";
    const url = URL.canParse(realm) ? new URL(realm) : null;
    if (url === null || (url.protocol !== "https:" && !(url.protocol === "http:" && insecure))) {
      throw this.#failed(`${this.#endpoint.registry} sends us to ${JSON.stringify(realm.slice(0, 200))} for a token, which is not a secure address`, null);
    }
    const service = challenge.get("service") ?? "";
    const scope = challenge.get("scope") ?? `repository:${this.#repository}:pull`;
    let response: Response;
    try {
      if (credentials?.kind === "token") {
        const body = new URLSearchParams({ grant_type: "refresh_token", refresh_token: credentials.identityToken, service, scope, client_id: "manyworlds" }).toString();
        response = await request(url, { method: "POST", dispatcher: this.#dispatcher, headers: { "content-type": "application/x-www-form-urlencoded" }, body, signal });
      } else {
        if (service !== "") url.searchParams.set("service", service);
        url.searchParams.set("scope", scope);
        response = await request(url, { dispatcher: this.#dispatcher, headers: credentials === null ? {} : { authorization: basic(credentials.user, credentials.password) }, signal });
      }
    } catch (error) {
      signal.throwIfAborted();
      throw this.#unreachable(error);
    }
    const body = await collect(response.body, TOKEN_BYTES, "a token answer");
    if (response.statusCode !== 200) throw this.#refused(response.statusCode, "token", body, response.headers["retry-after"]);
    const answer = parseJson(body.toString()) as { token?: unknown; access_token?: unknown } | null | undefined;
    const token = answer?.token ?? answer?.access_token;
    if (typeof token !== "string" || !/^[\x21-\x7e]+$/.test(token)) throw this.#failed(`${url.host} sent no token for ${this.label}`, null);
    return `Bearer ${token}`;
  }

  #refused(statusCode: number, path: string, body: Buffer, retryAfter: string | string[] | undefined): MwError {
    const { registry, credentials } = this.#endpoint;
    const said = reason(body);
    const facts = { registry, status: statusCode };
    const login = credentials === null ? `docker login ${registry} (or write "auths" in ~/.docker/config.json)` : `the credentials for ${registry} in ~/.docker/config.json are not accepted: docker login ${registry} again`;
    if (statusCode === 401 || statusCode === 403) {
      return new MwError("registry_failed", `${registry} does not let us pull ${this.#repository}: status ${statusCode}${said}`, { fix: `check the name; if the image is private: ${login}`, facts });
    }
    if (statusCode === 404) return new MwError("not_found", `${registry} has no ${this.#repository} (${path})${said}`, { fix: "check the name and the tag", facts });
    if (statusCode === 429) {
      const pause = retryAfterMs(retryAfter, this.#runtime);
      const when = pause === null ? "later" : `in ${Math.ceil(pause / 1000)} s`;
      return new MwError("registry_failed", `${registry} limits the rate of pulls: status 429 for ${this.#repository}${said}`, {
        fix: `try again ${when}${credentials === null ? `, or log in for a higher limit: docker login ${registry}` : ""}, or name a mirror in registries.toml`,
        facts,
      });
    }
    return new MwError("registry_failed", `${registry} answered with status ${statusCode} for ${this.#repository}/${path}${said}`, { fix: statusCode >= 500 ? "try again later" : "check the name", facts });
  }

  #unreachable(error: unknown): MwError {
    return new MwError("registry_failed", `cannot reach the registry ${this.#endpoint.registry} (${this.#endpoint.origin}): ${describe(error)}`, {
      fix: "check the network; a proxy is taken from HTTPS_PROXY, a mirror from registries.toml",
      cause: error,
      facts: { registry: this.#endpoint.registry, unreachable: true },
    });
  }

  #failed(message: string, cause: unknown): MwError {
    return new MwError("registry_failed", message, { fix: "try again; if it stays so, the registry is broken", ...(cause === null ? {} : { cause }), facts: { registry: this.#endpoint.registry } });
  }
}

function basic(user: string, password: string): string {
  return `Basic ${Buffer.from(`${user}:${password}`).toString("base64")}`;
}

/** `key="value"` pairs of a challenge. */
function parameters(challenge: string): ReadonlyMap<string, string> {
  return new Map([...challenge.matchAll(/(\w+)=(?:"([^"]*)"|([^\s,]+))/g)].map((match) => [(match[1] ?? "").toLowerCase(), match[2] ?? match[3] ?? ""]));
}

/** What the registry said, one line. */
function reason(body: Buffer): string {
  const answer = parseJson(body.toString()) as { errors?: readonly { message?: unknown; code?: unknown }[]; details?: unknown } | null | undefined;
  const first = Array.isArray(answer?.errors) ? answer.errors[0] : undefined;
  const text = first?.message ?? first?.code ?? answer?.details ?? body.toString();
  const line = String(text).replaceAll(/\s+/g, " ").trim().slice(0, 300);
  return line === "" ? "" : `: ${line}`;
}

function retryAfterMs(header: string | string[] | undefined, runtime: Runtime): number | null {
  const text = [header ?? []].flat()[0];
  if (text === undefined) return null;
  const ms = /^\d{1,9}$/.test(text) ? Number(text) * 1000 : Date.parse(text) - runtime.now();
  return Number.isFinite(ms) ? Math.max(0, ms) : null;
}

/** Failures that another attempt meets again. */
function isHopeless(error: unknown): boolean {
  const code = (error as { code?: unknown }).code;
  return code === "ENOTFOUND" || code === "ECONNREFUSED" || code === "ENETUNREACH" || (typeof code === "string" && (code.startsWith("ERR_TLS") || code.includes("CERT") || code === "EPROTO"));
}

function describe(error: unknown): string {
  const code = (error as { code?: unknown }).code;
  const message = messageOf(error);
  return typeof code === "string" && !message.includes(code) ? `${message || "failed"} (${code})` : message || "failed";
}
