/** The control plane of an E2B-compatible service: sandboxes, what is kept of them, and templates. Source: https://github.com/e2b-dev/E2B, spec/openapi.yml. */
import { createHash } from "node:crypto";
import { z } from "zod";
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import type { RemoteAnswer, RemoteHttp, RemoteRequest } from "./http.ts";

const ID = z.string().regex(/^[A-Za-z0-9_-]{1,128}$/);
/** A template's or snapshot's name goes into paths and requests, never into a shell. */
const REFERENCE = z.string().min(1).max(512);
const created = z.object({ sandboxID: ID, envdAccessToken: z.string().min(1).max(4096).nullish() });
const listed = z.array(z.object({ sandboxID: ID }));
const detail = z.object({ state: z.enum(["running", "paused"]) });
const snapshotTaken = z.object({ snapshotID: REFERENCE });
const snapshots = z.array(z.object({ snapshotID: REFERENCE }));
const samples = z.array(z.object({ timestampUnix: z.number().optional(), memUsed: z.number().nullish(), diskUsed: z.number().nullish() }));
const begun = z.object({ templateID: ID, buildID: ID });
const place = z.object({ present: z.boolean(), url: z.string().max(8192).nullish() });
const build = z.object({ status: z.string(), reason: z.object({ message: z.string() }).nullish() });

export interface RemoteSandbox {
  readonly sandboxID: string;
  /** For its data plane; null when it wants none. */
  readonly token: string | null;
}

export interface TemplateBuild {
  readonly name: string;
  readonly fromImage: string;
  /** An archive, and the directory of it that is copied to `/`, with its owner root and this mode. */
  readonly archive: Buffer;
  readonly directory: string;
  readonly mode: string;
  /** Of the files. Empty where there are no users yet: then root's number. */
  readonly owner: string;
}

export class ControlPlane {
  readonly #http: RemoteHttp;
  readonly #base: URL;
  readonly #key: string;
  readonly #runtime: Runtime;

  constructor(http: RemoteHttp, base: URL, key: string, runtime: Runtime) {
    this.#http = http;
    this.#base = base;
    this.#key = key;
    this.#runtime = runtime;
  }

  /** Rejects when the service does not answer, or not to this key. */
  async check(): Promise<void> {
    await this.#ask({ method: "GET", path: "/v2/sandboxes?limit=1", repeatable: true }, listed);
  }

  /** `mark` is unique: a sandbox that was made although the answer never came is found by it, and killed. */
  async create(wanted: { readonly template: string; readonly ttlMs: number; readonly internet: boolean; readonly metadata: Readonly<Record<string, string>>; readonly mark: string }): Promise<RemoteSandbox> {
    const metadata = { ...wanted.metadata, [MARK]: wanted.mark };
    const body = { templateID: wanted.template, timeout: seconds(wanted.ttlMs), allow_internet_access: wanted.internet, metadata };
    try {
      const { sandboxID, envdAccessToken } = await this.#ask({ method: "POST", path: "/v2/sandboxes", body, deadlineMs: LIMITS.remoteCreateMs }, created);
      return { sandboxID, token: envdAccessToken ?? null };
    } catch (error) {
      if (error instanceof MwError && typeof error.facts["status"] !== "number") await this.#killMarked(wanted.mark).catch(() => undefined);
      throw error;
    }
  }

  /** Null for one that is no more. */
  async state(sandboxID: string): Promise<"running" | "paused" | null> {
    const found = await this.#ask({ method: "GET", path: `/sandboxes/${sandboxID}`, repeatable: true }, detail).catch(nullWhenAbsent);
    return found?.state ?? null;
  }

  /** False when there was none. */
  async kill(sandboxID: string): Promise<boolean> {
    return (await this.#send({ method: "DELETE", path: `/sandboxes/${sandboxID}`, repeatable: true }).catch(nullWhenAbsent)) !== null;
  }

  /** From now. False when there is no such sandbox. */
  async renew(sandboxID: string, ttlMs: number): Promise<boolean> {
    return (await this.#send({ method: "POST", path: `/sandboxes/${sandboxID}/timeout`, body: { timeout: seconds(ttlMs) }, repeatable: true }).catch(nullWhenAbsent)) !== null;
  }

  async metrics(sandboxID: string): Promise<{ readonly memoryBytes: number | null; readonly diskBytes: number | null }> {
    const last = (await this.#ask({ method: "GET", path: `/sandboxes/${sandboxID}/metrics`, repeatable: true }, samples)).at(-1);
    return { memoryBytes: last?.memUsed ?? null, diskBytes: last?.diskUsed ?? null };
  }

  /** A template that starts as the sandbox is now. */
  async snapshot(sandboxID: string, name?: string): Promise<string> {
    return (await this.#ask({ method: "POST", path: `/sandboxes/${sandboxID}/snapshots`, body: name === undefined ? {} : { name }, deadlineMs: LIMITS.remoteSnapshotMs }, snapshotTaken)).snapshotID;
  }

  async findSnapshot(name: string): Promise<string | null> {
    const [first] = await this.#ask({ method: "GET", path: `/snapshots?name=${encodeURIComponent(name)}&limit=1`, repeatable: true }, snapshots);
    return first?.snapshotID ?? null;
  }

  async removeTemplate(reference: string): Promise<void> {
    await this.#send({ method: "DELETE", path: `/templates/${encodeURIComponent(reference)}`, repeatable: true }).catch(nullWhenAbsent);
  }

  async hasTemplate(name: string): Promise<boolean> {
    return (await this.#send({ method: "GET", path: `/templates/aliases/${encodeURIComponent(name)}`, repeatable: true }).catch(nullWhenAbsent)) !== null;
  }

  async build({ name, fromImage, archive, directory, mode, owner }: TemplateBuild, signal?: AbortSignal): Promise<void> {
    const { templateID, buildID } = await this.#ask({ method: "POST", path: "/v3/templates", body: { name } }, begun);
    const filesHash = createHash("sha256").update(archive).digest("hex");
    const { present, url } = await this.#ask({ method: "GET", path: `/templates/${templateID}/files/${filesHash}` }, place);
    // The address is the right to write: no key goes there.
    if (!present) await this.#http.ask({ method: "PUT", url: uploadUrl(url), headers: { "content-type": "application/octet-stream" }, body: archive });
    const steps = [{ type: "COPY", args: [`${directory}/`, "/", owner, mode], filesHash }];
    await this.#send({ method: "POST", path: `/v2/templates/${templateID}/builds/${buildID}`, body: { fromImage, steps } });
    const until = this.#runtime.monotonic() + LIMITS.templateBuildMs;
    for (;;) {
      const { status, reason } = await this.#ask({ method: "GET", path: `/templates/${templateID}/builds/${buildID}/status`, repeatable: true }, build);
      if (status === "ready") return;
      if (status === "error") throw new MwError("image_failed", `The service could not build a template from ${fromImage}: ${(reason?.message ?? "it does not say why").slice(0, 300)}`, { fix: "name an image that it can build from: remote:URL?from=IMAGE" });
      if (this.#runtime.monotonic() > until) throw new MwError("timeout", `The template ${name} was not built within ${LIMITS.templateBuildMs / 60_000} minutes`);
      await this.#runtime.sleep(250, signal);
    }
  }

  async #killMarked(mark: string): Promise<void> {
    const filter = encodeURIComponent(`${MARK}=${encodeURIComponent(mark)}`);
    for (const { sandboxID } of await this.#ask({ method: "GET", path: `/v2/sandboxes?metadata=${filter}`, repeatable: true }, listed)) await this.kill(sandboxID);
  }

  async #ask<T extends z.ZodType>(request: ControlRequest, schema: T): Promise<z.output<T>> {
    const { text } = await this.#send(request);
    let document: unknown;
    try {
      document = JSON.parse(text);
    } catch {
      throw nonsense(request, "no JSON");
    }
    const result = schema.safeParse(document);
    if (result.success) return result.data;
    const [issue] = result.error.issues;
    throw nonsense(request, `${issue?.path.join(".") ?? ""}: ${issue?.message ?? "malformed"}`);
  }

  async #send({ path, body, ...request }: ControlRequest): Promise<RemoteAnswer> {
    const headers = { "x-api-key": this.#key, accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }) };
    return this.#http.ask({ ...request, url: new URL(`${this.#base.pathname.replace(/\/$/, "")}${path}`, this.#base), headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  }
}

interface ControlRequest extends Pick<RemoteRequest, "method" | "repeatable" | "deadlineMs"> {
  readonly path: string;
  readonly body?: unknown;
}

const MARK = "manyworlds_sandbox";

function seconds(ms: number): number {
  return Math.max(1, Math.ceil(ms / 1000));
}

function nullWhenAbsent(error: unknown): null {
  if (error instanceof MwError && error.code === "not_found") return null;
  throw error;
}

function nonsense({ method, path }: ControlRequest, what: string): MwError {
  return new MwError("sandbox_failed", `The service answered ${method} ${path.split("?")[0]} with something that makes no sense: ${what}`);
}

function uploadUrl(text: string | null | undefined): URL {
  const url = typeof text === "string" && URL.canParse(text) ? new URL(text) : null;
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) throw new MwError("sandbox_failed", "The service named no place for the files of a template");
  return url;
}
