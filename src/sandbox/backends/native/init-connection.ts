/**
 * One connection to the init of a machine: requests matched to their answers, and the frames of execs handed to their owners.
 *
 * The far side may be broken: a frame that nobody waits for or a broken stream ends the connection, and everything that waited on it.
 */
import { createConnection } from "node:net";
import type { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import { INIT, TAG } from "./init-protocol.ts";
import { encodeFrame, type FieldList, type Frame, FrameDecoder } from "./wire.ts";

/** Takes the frames of one ref until it is released; `lost` is called at most once, when the connection ends first. */
export interface FrameReceiver {
  frame(frame: Frame): void;
  lost(error: MwError): void;
  /** For those that can go on over another connection: sends nothing from now on. Resolves when the far side knows of it. */
  stand?(): Promise<void>;
  /** Goes on, over this one. */
  move?(to: InitConnection): void;
}

export interface ExecEntry {
  readonly id: string;
  readonly state: "running" | "draining" | "finished";
  readonly pid: number;
}

/**
 * Where all connections read into: the bytes of a read are taken before the next read of any of them begins. Memory of its own for every read would cost more
 * than everything else in moving output, most of it in garbage collections.
 */
const RECEIVE_BUFFER = Buffer.allocUnsafeSlow(512 * 1024);

/** Frames that are smaller than this together are sent as one. */
const TOGETHER_BYTES = 32 * 1024;
/** The ref of a request about one exec that is not answered. */
const NO_ANSWER = 0;
/** How long what nobody waits for may wait itself. */
const LATER_MS = 20;
/** How often an answer that is due before a connection is parted from is waited for, 5 ms each. */
const PARTING_TRIES = 40;

export class InitConnection {
  readonly #socket: Duplex;
  readonly #decoder: FrameDecoder;
  readonly #receivers = new Map<number, FrameReceiver>();
  #nextRef = 1;
  #outgoing: Buffer[] = [];
  #outgoingBytes = 0;
  #scheduled = false;
  #later: NodeJS.Timeout | null = null;
  #failure: MwError | null = null;
  readonly #closed: Promise<void>;

  private constructor(socket: Duplex, chunks: "borrowed" | "owned") {
    this.#socket = socket;
    this.#decoder = new FrameDecoder(chunks);
    socket.on("error", (error) => this.#fail(error instanceof MwError ? error : gone(error)));
    // Its bytes do not come as events, but its end does.
    socket.resume();
    this.#closed = new Promise((resolve) => {
      socket.on("close", () => {
        if (!this.#failure) this.#fail(gone());
        resolve();
      });
    });
  }

  /** Rejects `sandbox_gone` when nothing listens there. */
  static connect(path: string): Promise<InitConnection> {
    return new Promise((resolve, reject) => {
      let connection: InitConnection | null = null;
      const callback = (bytes: number): boolean => {
        if (connection !== null) connection.#receive(RECEIVE_BUFFER.subarray(0, bytes));
        return true;
      };
      const socket = createConnection({ path, onread: { buffer: RECEIVE_BUFFER, callback } });
      const onError = (error: Error): void => reject(gone(error));
      socket.once("error", onError);
      socket.once("connect", () => {
        socket.off("error", onError);
        connection = new InitConnection(socket, "borrowed");
        resolve(connection);
      });
    });
  }

  /** Over a stream that leads to an init. Throws for one that has ended already. */
  static over(stream: Duplex): InitConnection {
    if (stream.destroyed) throw stream.errored instanceof MwError ? stream.errored : gone();
    const connection = new InitConnection(stream, "owned");
    stream.on("data", (chunk: Buffer) => connection.#receive(chunk));
    return connection;
  }

  /** Resolves when the connection has ended, for whatever reason. */
  get closed(): Promise<void> {
    return this.#closed;
  }

  /**
   * Closes it without loss: what can go on over another connection is returned, and is owed `move` or `lost`. Resolves when the far side has closed it as well. Rejects `busy`, with
   * nothing changed but that they stand, while something that cannot is under way.
   */
  async part(): Promise<readonly FrameReceiver[]> {
    await Promise.all([...this.#receivers.values()].map(async (receiver) => receiver.stand?.()));
    // By its answer everything that was sent before has been taken.
    for (let tries = 0; ; tries++) {
      await this.ping();
      const bound = [...this.#receivers.values()].some((receiver) => receiver.move === undefined);
      if (!bound) break;
      if (tries === PARTING_TRIES) throw new MwError("busy", "Something that cannot be interrupted is under way in the sandbox", { fix: "try again in a moment" });
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const moving = [...this.#receivers.values()];
    this.#receivers.clear();
    this.#failure ??= gone();
    this.#socket.end();
    await this.#closed;
    return moving;
  }

  /** Those that stand go on here. */
  stay(): void {
    // Those that move come again behind the others.
    const all = [...this.#receivers.values()];
    for (const receiver of all) receiver.move?.(this);
  }

  close(why = new MwError("sandbox_gone", "The connection to the machine was closed")): void {
    this.#fail(why);
  }

  /** Time to and from init, milliseconds. */
  async ping(): Promise<number> {
    const start = performance.now();
    await this.request(INIT.ping);
    return performance.now() - start;
  }

  async list(): Promise<readonly ExecEntry[]> {
    const states = ["running", "draining", "finished"] as const;
    const frames = await this.requestMany(INIT.list, [], INIT.ok);
    return frames.map((frame) => ({
      id: frame.text(TAG.id) ?? "",
      state: states[frame.number(TAG.state) ?? 0] ?? "running",
      pid: frame.number(TAG.pid) ?? 0,
    }));
  }

  /** Kills every process of the machine but init, until none is left. Rejects `timeout` when some do not die within ten seconds. */
  async killAll(): Promise<void> {
    await this.request(INIT.killAll);
  }

  /** Sends a request and resolves to its one answer; an error answer rejects. */
  async request(type: number, fields: FieldList = []): Promise<Frame> {
    return new Promise((resolve, reject) => {
      const ref = this.open({
        frame: (frame) => {
          this.release(ref);
          const error = frame.error();
          if (error) reject(initError(error));
          else resolve(frame);
        },
        lost: reject,
      });
      this.send(type, ref, fields);
    });
  }

  /** Like `request` for answers of many frames that end with one of type `last`. */
  async requestMany(type: number, fields: FieldList, last: number): Promise<readonly Frame[]> {
    return new Promise((resolve, reject) => {
      const frames: Frame[] = [];
      const ref = this.open({
        frame: (frame) => {
          const error = frame.error();
          if (!error && frame.type !== last) {
            frames.push(frame);
            return;
          }
          this.release(ref);
          if (error) reject(initError(error));
          else resolve(frames);
        },
        lost: reject,
      });
      this.send(type, ref, fields);
    });
  }

  /** Registers a receiver and returns its ref. On a connection that has ended, the receiver learns of it at once. */
  open(receiver: FrameReceiver): number {
    const ref = this.#nextRef;
    this.#nextRef = (this.#nextRef + 1) >>> 0 || 1;
    if (this.#failure) receiver.lost(this.#failure);
    else this.#receivers.set(ref, receiver);
    return ref;
  }

  release(ref: number): void {
    this.#receivers.delete(ref);
  }

  /**
   * Throws when the frame would be too large; on a connection that has ended it does nothing. Frames of one turn of the event loop go out together: a system
   * call, and waking init, cost more than most requests.
   */
  send(type: number, ref: number, fields: FieldList = []): void {
    this.#add(encodeFrame(type, ref, fields));
    if (this.#scheduled) return;
    this.#scheduled = true;
    // After everything that runs because of what runs now, and before the loop looks for events.
    process.nextTick(() => queueMicrotask(() => process.nextTick(() => this.#flush())));
  }

  /** Sends a request that is not answered: at once, or with the next frame, at most a moment later. */
  sendAside(type: number, fields: FieldList, when: "now" | "later"): void {
    this.#add(encodeFrame(type, NO_ANSWER, fields));
    if (when === "now") this.#flush();
    else this.#later ??= setTimeout(() => this.#flush(), LATER_MS).unref();
  }

  #add(frame: Buffer): void {
    if (this.#failure) return;
    this.#outgoing.push(frame);
    this.#outgoingBytes += frame.length;
    // Large ones are not copied together, and do not wait.
    if (this.#outgoingBytes >= TOGETHER_BYTES) this.#flush();
  }

  #flush(): void {
    this.#scheduled = false;
    if (this.#later !== null) clearTimeout(this.#later);
    this.#later = null;
    const frames = this.#outgoing;
    if (frames.length === 0 || this.#failure) return;
    this.#outgoing = [];
    const together = this.#outgoingBytes < TOGETHER_BYTES && frames.length > 1 ? [Buffer.concat(frames, this.#outgoingBytes)] : frames;
    this.#outgoingBytes = 0;
    for (const bytes of together) this.#socket.write(bytes);
  }

  /** Ends the connection because the far side broke the protocol. */
  fail(what: string): void {
    this.#fail(new MwError("sandbox_failed", `The machine's init broke its protocol: ${what}`));
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#decoder.push(chunk)) {
        if (this.#failure) return;
        this.#receivers.get(frame.ref)?.frame(frame);
      }
    } catch (error) {
      this.#fail(error instanceof MwError ? error : new MwError("internal", "A frame of init could not be handled", { cause: error }));
    }
  }

  #fail(error: MwError): void {
    if (this.#failure) return;
    this.#failure = error;
    this.#outgoing = [];
    if (this.#later !== null) clearTimeout(this.#later);
    this.#socket.destroy();
    const waiting = [...this.#receivers.values()];
    this.#receivers.clear();
    for (const receiver of waiting) receiver.lost(error);
  }
}

function gone(cause?: Error): MwError {
  return new MwError("sandbox_gone", "The machine is gone: its init no longer answers", { cause });
}

/** An error answer of init in terms of the catalogue. */
export function initError({ code, message }: { readonly code: string; readonly message: string }): MwError {
  const facts = { errno: code };
  switch (code) {
    case "ENOENT":
    case "ESRCH":
      return new MwError("not_found", `Init refused: ${message}`, { facts });
    case "no_cwd":
      return new MwError("invalid_input", `The working directory cannot be entered: ${message}`, { fix: "Name an existing directory, or make it first.", facts });
    case "no_user":
    case "no_group":
      return new MwError("invalid_input", `The command's user cannot be used: ${message}`, { fix: "Use a number, or a name that the image knows.", facts });
    case "no_pty":
      return new MwError("unsupported", "The machine has no terminals (no devpts at /dev/pts)", { facts });
    case "EBUSY":
      return new MwError("busy", `Init refused: ${message}`, { facts });
    case "limit":
      return new MwError("limit_exceeded", `Init refused: ${message}`, { facts });
    case "EINVAL":
      return new MwError("internal", `Init did not understand a request: ${message}`, { facts });
    case "timeout":
      return new MwError("timeout", `Init gave up: ${message}`, { facts });
    default:
      return new MwError("sandbox_failed", `The machine could not do it: ${message}`, { facts });
  }
}
