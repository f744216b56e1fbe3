/** What is said over the spawner's socket: requests with their answers, events. Who is at the other end, a child of this process or not, is its maker's business. */
import type { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import { EVENT, type MachineEnded, readBlank, readEnded, spawnerError } from "./spawner-protocol.ts";
import { encodeFrame, type FieldList, type Frame, FrameDecoder } from "./wire.ts";

interface Waiter {
  readonly resolve: (frame: Frame) => void;
  readonly reject: (error: MwError) => void;
}

export class SpawnerChannel {
  /** What it says first: `hello` or `busy`. */
  readonly first: Promise<Frame>;
  readonly ended = new Set<(ended: MachineEnded) => void>();
  blank: (name: string) => void = () => undefined;
  readonly #socket: Duplex;
  readonly #decoder = new FrameDecoder();
  readonly #waiting = new Map<number, Waiter>();
  #nextRef = 1;
  #failure: MwError | null = null;
  #announce: Waiter | null = null;

  constructor(socket: Duplex) {
    this.first = new Promise((resolve, reject) => {
      this.#announce = { resolve, reject };
    });
    // Nobody may be waiting for the announcement any more.
    this.first.catch(() => undefined);
    this.#socket = socket;
    socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    socket.on("error", () => undefined);
  }

  /** Answers to requests of the controller before this one, which may still come, have other numbers. */
  startAt(epoch: number): void {
    this.#nextRef = (((epoch & 0xff) << 24) >>> 0) + 1;
  }

  request(type: number, fields: FieldList): Promise<Frame> {
    return new Promise((resolve, reject) => {
      if (this.#failure) {
        reject(this.#failure);
        return;
      }
      const ref = this.#nextRef;
      // 0 is for events.
      this.#nextRef = ref === 0xffff_ffff ? 1 : ref + 1;
      const frame = encodeFrame(type, ref, fields);
      this.#waiting.set(ref, { resolve, reject });
      this.#socket.write(frame);
    });
  }

  end(): void {
    this.#socket.end();
  }

  destroy(): void {
    this.#socket.destroy();
  }

  /** Nothing comes any more. The first reason counts. */
  fail(error: MwError): void {
    this.#failure ??= error;
    this.#announce?.reject(this.#failure);
    for (const waiter of this.#waiting.values()) waiter.reject(this.#failure);
    this.#waiting.clear();
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#decoder.push(chunk)) this.#take(frame);
    } catch (error) {
      this.fail(error instanceof MwError ? error : new MwError("internal", "Reading from the spawner failed", { cause: error }));
      this.#socket.destroy();
    }
  }

  #take(frame: Frame): void {
    if (frame.ref === 0) {
      this.#event(frame);
      return;
    }
    const waiter = this.#waiting.get(frame.ref);
    if (!waiter) return;
    this.#waiting.delete(frame.ref);
    const error = frame.error();
    if (error) waiter.reject(spawnerError(error));
    else waiter.resolve(frame);
  }

  #event(frame: Frame): void {
    if (frame.type === EVENT.ended) {
      const ended = readEnded(frame);
      for (const listener of this.ended) listener(ended);
      return;
    }
    if (frame.type === EVENT.blank) {
      this.blank(readBlank(frame));
      return;
    }
    this.#announce?.resolve(frame);
  }
}
