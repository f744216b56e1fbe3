/**
 * A connection to the init that we run in a machine of somebody else's: stdin and stdout of one process there, carried by the service's guest agent.
 *
 * Its output comes as the messages of one long answer, its input goes out in requests that follow each other. Whatever breaks on the way ends the connection.
 * Source: https://github.com/e2b-dev/E2B, spec/envd/process/process.proto.
 */
import { Duplex, type Readable } from "node:stream";
import type { Dispatcher } from "undici";
import { messageOf, MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import { COMPRESSED, END_OF_STREAM, envelope, EnvelopeDecoder } from "../../../protocol/e2b/envelope.ts";
import type { RemoteHttp } from "./http.ts";

export interface GuestAgent {
  readonly http: RemoteHttp;
  /** Of the data plane. */
  readonly base: URL;
  readonly sandboxID: string;
  readonly token: string | null;
}

/** The port at which the guest agent of this protocol is found. */
const AGENT_PORT = "49983";

function headersOf({ sandboxID, token }: GuestAgent): Record<string, string> {
  // Root: the protocol names the user in this way, without a password.
  return { "e2b-sandbox-id": sandboxID, "e2b-sandbox-port": AGENT_PORT, authorization: `Basic ${Buffer.from("root:").toString("base64")}`, "connect-protocol-version": "1", ...(token === null ? {} : { "x-access-token": token }) };
}

function urlOf({ base }: GuestAgent, path: string): URL {
  return new URL(`${base.pathname.replace(/\/$/, "")}${path}`, base);
}

/** Puts a file into the machine, over what is there, whose mode it keeps. */
export async function putFile(agent: GuestAgent, path: string, data: Buffer | Readable): Promise<void> {
  const url = urlOf(agent, `/files?path=${encodeURIComponent(path)}&username=root`);
  await agent.http.ask({ method: "POST", url, headers: { ...headersOf(agent), "content-type": "application/octet-stream" }, body: data, repeatable: Buffer.isBuffer(data), deadlineMs: LIMITS.remoteTransferMs });
}

/** Starts the process and waits until it runs. */
export async function openGuestLink(agent: GuestAgent, command: readonly [string, ...string[]]): Promise<GuestLink> {
  const [cmd, ...args] = command;
  const start = envelope(0, { process: { cmd, args, envs: {}, cwd: "/" }, stdin: true });
  const headers = { ...headersOf(agent), "content-type": "application/connect+json", "keepalive-ping-interval": String(Math.round(LIMITS.remoteSilenceMs / 3000)) };
  const response = await agent.http.open({ method: "POST", url: urlOf(agent, "/process.Process/Start"), headers, body: start, deadlineMs: 2 * LIMITS.remotePulseMs });
  const link = new GuestLink(agent, response.body);
  await link.started;
  return link;
}

interface Event {
  readonly event?: {
    readonly start?: { readonly pid?: unknown };
    readonly data?: { readonly stdout?: unknown; readonly stderr?: unknown };
    readonly end?: { readonly status?: unknown; readonly exitCode?: unknown };
  };
  readonly error?: { readonly code?: unknown; readonly message?: unknown };
}

export class GuestLink extends Duplex {
  /** Rejects when it could not be started. */
  readonly started: Promise<void>;
  readonly #agent: GuestAgent;
  readonly #body: Dispatcher.ResponseData["body"];
  readonly #decoder = new EnvelopeDecoder(LIMITS.envdMessageBytes);
  #pid: number | null = null;
  #silence: NodeJS.Timeout | null = null;
  #resolveStarted: () => void = () => undefined;
  #rejectStarted: (error: Error) => void = () => undefined;

  constructor(agent: GuestAgent, body: Dispatcher.ResponseData["body"]) {
    super({ allowHalfOpen: false });
    this.#agent = agent;
    this.#body = body;
    this.started = new Promise((resolve, reject) => {
      this.#resolveStarted = resolve;
      this.#rejectStarted = reject;
    });
    this.started.catch(() => undefined);
    // Whoever waits for its start learns of what comes before anybody else listens.
    this.on("error", () => undefined);
    body.on("data", (chunk: Buffer) => this.#receive(chunk));
    body.once("error", (error) => this.#fail(`the connection broke: ${messageOf(error)}`));
    body.once("end", () => this.#fail(this.#decoder.held > 0 ? "the stream ends in the middle of a message" : "the stream ended"));
    this.#listen();
  }

  override _read(): void {
    this.#body.resume();
  }

  override _writev(chunks: { readonly chunk: Buffer }[], done: (error?: Error | null) => void): void {
    this.#input(Buffer.concat(chunks.map(({ chunk }) => chunk))).then(() => done(), done);
  }

  override _write(chunk: Buffer, _encoding: string, done: (error?: Error | null) => void): void {
    this.#input(chunk).then(() => done(), done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    if (this.#silence !== null) clearTimeout(this.#silence);
    this.#rejectStarted(error ?? new MwError("sandbox_gone", "The connection to the machine was closed"));
    this.#body.on("error", () => undefined);
    this.#body.destroy();
    // The process there ends with its input. That it cannot be told is as good: the machine has gone, or the service has.
    if (this.#pid !== null) void this.#call("CloseStdin", { process: { pid: this.#pid } }).catch(() => undefined);
    done(error);
  }

  #receive(chunk: Buffer): void {
    this.#listen();
    try {
      for (const { flags, bytes } of this.#decoder.push(chunk)) {
        if (this.destroyed) return;
        if ((flags & COMPRESSED) !== 0) throw new Error("a compressed message, which was not asked for");
        this.#take(flags, JSON.parse(bytes.toString("utf8")) as Event | null);
      }
    } catch (error) {
      this.#fail(`it sent ${messageOf(error)}`);
    }
  }

  #take(flags: number, message: Event | null): void {
    if ((flags & END_OF_STREAM) !== 0) {
      const { error } = message ?? {};
      this.#fail(error === undefined ? "the stream ended" : `${text(error.code)}: ${text(error.message)}`, text(error?.code));
      return;
    }
    const event = message?.event;
    const pid = event?.start?.pid;
    if (typeof pid === "number" && Number.isSafeInteger(pid) && pid >= 0) {
      this.#pid = pid;
      this.#resolveStarted();
    }
    const out = event?.data?.stdout;
    if (typeof out === "string" && !this.push(Buffer.from(out, "base64"))) this.#body.pause();
    if (event?.end !== undefined) this.#fail(`the process in it ended: ${text(event.end.status ?? event.end.exitCode)}`);
  }

  async #input(bytes: Buffer): Promise<void> {
    for (let at = 0; at < bytes.length; at += LIMITS.remoteInputBytes) {
      const part = bytes.subarray(at, at + LIMITS.remoteInputBytes).toString("base64");
      await this.#call("SendInput", { process: { pid: this.#pid ?? 0 }, input: { stdin: part } });
    }
  }

  async #call(method: string, message: unknown): Promise<void> {
    const { http } = this.#agent;
    await http.ask({ method: "POST", url: urlOf(this.#agent, `/process.Process/${method}`), headers: { ...headersOf(this.#agent), "content-type": "application/json" }, body: JSON.stringify(message) });
  }

  #listen(): void {
    if (this.#silence !== null) this.#silence.refresh();
    else this.#silence = setTimeout(() => this.#fail(`nothing was heard of it for ${LIMITS.remoteSilenceMs / 1000} s`), LIMITS.remoteSilenceMs).unref();
  }

  #fail(why: string, code = ""): void {
    const gone = code === "unavailable" || code === "not_found";
    this.destroy(new MwError(gone ? "sandbox_gone" : "sandbox_failed", `The machine ${this.#agent.sandboxID} cannot be reached any more: ${why}`, { facts: { remote: this.#agent.sandboxID } }));
  }
}

function text(value: unknown): string {
  return typeof value === "string" || typeof value === "number" ? String(value).slice(0, 300) : "";
}
