/** Compressed streams by their magic bytes: gzip, zstd, and through the programs of the host xz and bzip2; anything else passes as it is. */
import { spawn, type ChildProcess } from "node:child_process";
import { Transform, type Readable, type TransformCallback } from "node:stream";
import * as zlib from "node:zlib";
import { Decompress } from "fzstd";
import { MwError } from "../core/errors.ts";

/** `name` is for messages. The result must be read to its end: a truncated or damaged stream is an error there. */
export async function decompressed(source: Readable, name: string): Promise<Readable> {
  const head = await peek(source, 6);
  if (head[0] === 0x1f && head[1] === 0x8b) return joined(source, zlib.createGunzip(), name);
  if (head.readUInt32LE(0) === 0xfd2fb528) return joined(source, zstdDecompress(), name);
  if (head.subarray(0, 6).equals(Buffer.from("\xfd7zXZ\0", "latin1"))) return joined(source, new ProgramDecoder("xz", "xz-utils"), name);
  if (head.toString("latin1", 0, 3) === "BZh") return joined(source, new ProgramDecoder("bzip2", "bzip2"), name);
  return source;
}

/** The first bytes (zeros where the stream is shorter), put back for the next reader. */
async function peek(source: Readable, count: number): Promise<Buffer> {
  const parts: Buffer[] = [];
  let have = 0;
  while (have < count) {
    const part = await nextChunk(source);
    if (part === null) break;
    parts.push(part);
    have += part.length;
  }
  const head = Buffer.concat(parts);
  if (head.length > 0) source.unshift(head);
  return Buffer.concat([head.subarray(0, count), Buffer.alloc(Math.max(0, count - head.length))]);
}

function nextChunk(source: Readable): Promise<Buffer | null> {
  return new Promise((resolve, reject) => {
    const done = (settle: () => void): void => {
      source.off("readable", onReadable).off("end", onEnd).off("error", onError).off("close", onEnd);
      settle();
    };
    const onReadable = (): void => {
      const chunk = source.read() as Buffer | null;
      if (chunk !== null) done(() => resolve(chunk));
    };
    const onEnd = (): void => done(() => resolve(null));
    const onError = (error: Error): void => done(() => reject(error));
    source.on("readable", onReadable).on("end", onEnd).on("error", onError).on("close", onEnd);
    onReadable();
  });
}

function joined(source: Readable, decoder: Transform, name: string): Readable {
  // A failure of the source or the decoder reaches the reader as the error of the last stream; a source that is cut off is a failure too.
  const out = new Transform({ transform: (chunk: Buffer, _encoding, done) => done(null, chunk) });
  const fail = (error: Error): void => {
    source.unpipe(decoder);
    decoder.destroy();
    out.destroy(error instanceof MwError ? error : new MwError("invalid_image", `${name} is damaged: ${error.message}`, { fix: "make or fetch it again", cause: error }));
  };
  source.on("error", fail).on("close", () => {
    if (!source.readableEnded) fail(new Error("it ended early"));
  });
  decoder.on("error", fail);
  source.pipe(decoder).pipe(out);
  return out;
}

/** A decoder of zstd, Node's own where it has one. */
export function zstdDecompress(): Transform {
  const create = (zlib as { createZstdDecompress?: () => Transform }).createZstdDecompress;
  return create === undefined ? new ZstdFallback() : create();
}

/** For Node versions without zstd of their own. */
class ZstdFallback extends Transform {
  readonly #decoder = new Decompress((chunk) => void this.push(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)));

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    this.#decode(chunk, false, done);
  }

  override _flush(done: TransformCallback): void {
    this.#decode(Buffer.alloc(0), true, done);
  }

  #decode(chunk: Buffer, last: boolean, done: TransformCallback): void {
    try {
      // The decoder keeps what it was given until a block is whole.
      this.#decoder.push(new Uint8Array(chunk), last);
      done();
    } catch (error) {
      done(error instanceof Error ? error : new Error(String(error)));
    }
  }
}

/** Node has no decoder for these formats: the host's own program, in a process that sees nothing but the stream. */
class ProgramDecoder extends Transform {
  readonly #child: ChildProcess;
  readonly #ended: Promise<Error | null>;

  constructor(program: "xz" | "bzip2", debianPackage: string) {
    super();
    this.#child = spawn(program, ["--decompress", "--stdout"], { stdio: ["pipe", "pipe", "pipe"], env: { PATH: process.env["PATH"] ?? "/usr/bin:/bin" } });
    let said = "";
    this.#child.stderr?.on("data", (chunk: Buffer) => (said = `${said}${chunk.toString()}`.slice(0, 500)));
    this.#child.stdout?.on("data", (chunk: Buffer) => {
      if (!this.push(chunk)) this.#child.stdout?.pause();
    });
    // It may end before it has read everything; what it says then counts.
    this.#child.stdin?.on("error", () => undefined);
    this.#ended = new Promise((resolve) => {
      this.#child.on("error", (cause) => {
        resolve(new MwError("environment", `${program} is needed to read this archive and cannot be run`, { fix: `apt-get install ${debianPackage}, or compress it with gzip or zstd`, cause }));
      });
      this.#child.on("close", (code) => resolve(code === 0 ? null : new Error(said.trim().replace(/^\w+: /, "") || `${program} ended with ${code}`)));
    });
    void this.#ended.then((error) => error !== null && this.destroy(error));
  }

  override _read(size: number): void {
    this.#child.stdout?.resume();
    super._read(size);
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    if (this.#child.stdin?.write(chunk) !== false) done();
    else void Promise.race([new Promise((resolve) => this.#child.stdin?.once("drain", resolve)), this.#ended]).then(() => done());
  }

  override _flush(done: TransformCallback): void {
    this.#child.stdin?.end();
    void this.#ended.then(done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#child.kill("SIGKILL");
    done(error);
  }
}
