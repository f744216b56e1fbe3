/**
 * Runs `native/unpack`, which makes and reads file trees without following links. Everything that touches the content of an image goes through here.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import type { Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { MwError } from "../core/errors.ts";
import { bytesField, DATA_BYTES, dataHead, decodeEvent, decodeFrames, encodeEntry, encodeFrame, FIELD, FRAME, numberField, REF_FATAL, type Frame } from "./frames.ts";
import { ownersMode } from "./owners.ts";
import type { Refusal, TreeEntry, TreeEvent } from "./tree.ts";

const PROGRAM = fileURLToPath(new URL("../../dist-native/unpack", import.meta.url));

export interface WriteReport {
  readonly entries: number;
  /** Bytes of file content. */
  readonly bytes: number;
  readonly refused: readonly Refusal[];
  /** Entries whose owner became the user's. */
  readonly flattened: number;
  /** Extended attributes that the file system or the user's rights did not allow. */
  readonly lostAttributes: number;
}

/** Writes one tree. `push` waits while the unpacker is busy; a tree counts only once `finish` has resolved. `abort` is safe at any time. */
export class TreeWriter {
  readonly #child: ChildProcess;
  readonly #answers: Promise<Frame | null>;
  readonly #refused: Refusal[] = [];
  /** Paths by ref, of entries that may still be refused: the unpacker answers late, so all are kept as long as they are few. */
  readonly #paths: Buffer[] = [];
  #fatal: MwError | null = null;
  #ref = 0;

  /** `directory` exists. */
  constructor(directory: string) {
    this.#child = start("write", directory, ownersArguments(), "pipe");
    this.#answers = this.#readAnswers(directory);
    // Reported by `finish`; a push that hits the closed pipe waits for it too.
    this.#answers.catch(() => undefined);
    this.#child.stdin?.on("error", () => undefined);
  }

  async push(event: TreeEvent): Promise<void> {
    if (event.type === "entry") {
      this.#paths.push(event.entry.path);
      await this.#send(encodeEntry(++this.#ref, event.entry));
      return;
    }
    for (let at = 0; at < event.bytes.length; at += DATA_BYTES) {
      const part = event.bytes.subarray(at, at + DATA_BYTES);
      await this.#send(dataHead(this.#ref, event.offset + at, part.length), part);
    }
  }

  async finish(): Promise<WriteReport> {
    await this.#send(encodeFrame(FRAME.finish, 0, []));
    this.#child.stdin?.end();
    const done = await this.#answers;
    if (done === null) throw new MwError("internal", "the unpacker ended without an answer");
    return {
      entries: numberField(done, FIELD.entries),
      bytes: numberField(done, FIELD.total),
      refused: this.#refused,
      flattened: numberField(done, FIELD.flattened),
      lostAttributes: numberField(done, FIELD.lost),
    };
  }

  async abort(): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#answers.catch(() => undefined);
  }

  async #send(...parts: Uint8Array[]): Promise<void> {
    const { stdin } = this.#child;
    if (this.#fatal !== null) throw this.#fatal;
    if (stdin === null || !stdin.writable) {
      await this.#answers;
      throw new MwError("internal", "the unpacker went away");
    }
    let room = true;
    for (const part of parts) room = stdin.write(part);
    if (!room) await drained(stdin);
  }

  async #readAnswers(directory: string): Promise<Frame | null> {
    let done: Frame | null = null;
    const exited = exitOf(this.#child);
    for await (const frame of frames(this.#child)) {
      if (frame.type === FRAME.done) done = frame;
      if (frame.type !== FRAME.error) continue;
      const code = bytesField(frame, 1)?.toString() ?? "";
      const reason = bytesField(frame, 2)?.toString() ?? "";
      if (frame.ref === REF_FATAL) this.#fatal ??= unpackError(directory, code, reason);
      else if (this.#refused.length < 1000) this.#refused.push({ path: this.#paths[frame.ref - 1]?.toString() ?? "", code, reason });
    }
    const code = await exited;
    if (this.#fatal !== null) throw this.#fatal;
    if (done === null) throw brokenOff(`unpacking into ${directory} was interrupted`, code);
    return done;
  }
}

/** Reads a tree that was made here (or by a machine), with the owners that it has inside. */
export async function* readTree(directory: string): AsyncGenerator<TreeEvent> {
  for await (const frame of stream("read", directory, ownersArguments())) {
    const event = decodeEvent(frame);
    if (event !== null) yield event;
  }
}

/**
 * Reads a tree of the host's. `readable` leaves out what the caller may not read instead of failing. What belongs to the caller, an ordinary user, becomes root's:
 * that is who made it from the image's point of view.
 */
export async function* readHostTree(directory: string, options: { readonly readable?: boolean } = {}): AsyncGenerator<TreeEvent> {
  const [uid, gid] = ownersMode().kind === "kept" ? [0, 0] : [process.getuid?.(), process.getgid?.()];
  for await (const frame of stream(options.readable === true ? "readable" : "read", directory)) {
    const event = decodeEvent(frame);
    if (event?.type === "entry") yield { type: "entry", entry: { ...event.entry, uid: event.entry.uid === uid ? 0 : event.entry.uid, gid: event.entry.gid === gid ? 0 : event.entry.gid } };
    else if (event !== null) yield event;
  }
}

/** `kept` owners need no options; others are told how. */
function ownersArguments(): readonly string[] {
  const mode = ownersMode();
  if (mode.kind === "mapped") return ["mapped", String(mode.firstUid), String(mode.firstGid)];
  return mode.kind === "flattened" ? ["flatten"] : [];
}

/** Entries below the directory that not everybody may read, sockets and devices, and names that are known to hold secrets; not what is below them. */
export async function scanHidden(directory: string): Promise<readonly TreeEntry[]> {
  const found: TreeEntry[] = [];
  for await (const frame of stream("scan", directory)) {
    const event = decodeEvent(frame);
    if (event?.type === "entry") found.push(event.entry);
  }
  return found;
}

/** A digest over names, inode numbers, sizes, modes and times: equal means that nobody changed the tree meanwhile. Does not read contents. */
export async function treeFingerprint(directory: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const frame of stream("stat", directory)) for (const field of frame.fields) hash.update(field.bytes).update("\0");
  return hash.digest("hex");
}

/** Removes a tree of any depth, never following links. Nothing there is no error. */
export async function removeTree(path: string): Promise<void> {
  for (let left = REMOVALS; ; left--) {
    try {
      for await (const frame of stream("remove", path, ownersArguments())) void frame;
      return;
    } catch (error) {
      // Who was killed in the middle of it goes on where it was.
      if (left === 1 || !(error instanceof MwError) || error.code !== "sandbox_failed") throw error;
    }
  }
}

const REMOVALS = 3;

/** Whoever kills the unpacker (the kernel, for memory) says nothing about the image. */
function brokenOff(what: string, code: string): MwError {
  return new MwError(code.startsWith("code ") ? "image_failed" : "sandbox_failed", `${what}: the unpacker ended with ${code}`);
}

async function* stream(command: string, path: string, options: readonly string[] = []): AsyncGenerator<Frame> {
  const child = start(command, path, options, "ignore");
  const exited = exitOf(child);
  let done = command === "remove";
  try {
    for await (const frame of frames(child)) {
      if (frame.type === FRAME.error) throw unpackError(path, bytesField(frame, 1)?.toString() ?? "", bytesField(frame, 2)?.toString() ?? "");
      if (frame.type === FRAME.done) done = true;
      yield frame;
    }
    const code = await exited;
    if (!done || code !== "code 0") throw brokenOff(`cannot ${command} ${path}`, code);
  } finally {
    child.kill("SIGKILL");
    await exited;
  }
}

/** Resolves when the stream takes more, or never will. */
function drained(stream: Writable): Promise<void> {
  return new Promise((resolve) => {
    const onEvent = (): void => {
      stream.off("drain", onEvent).off("close", onEvent);
      resolve();
    };
    stream.on("drain", onEvent).on("close", onEvent);
  });
}

function start(command: string, path: string, options: readonly string[], stdin: "pipe" | "ignore"): ChildProcess {
  if (!existsSync(PROGRAM)) {
    throw new MwError("environment", `the program that unpacks images is not built (${PROGRAM})`, { fix: process.platform === "linux" ? "npm run build" : "images need Linux" });
  }
  return spawn(PROGRAM, [command, path, ...options], { stdio: [stdin, "pipe", "ignore"], env: {} });
}

function frames(child: ChildProcess): AsyncIterable<Frame> {
  if (child.stdout === null) throw new MwError("internal", "the unpacker has no output");
  return decodeFrames(child.stdout);
}

function exitOf(child: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("close", (code, signal) => resolve(signal ?? `code ${code}`));
  });
}

function unpackError(directory: string, code: string, reason: string): MwError {
  if (code === "ENOSPC" || code === "EDQUOT") {
    return new MwError("host_exhausted", `no room for an image below ${directory}: ${reason}`, { fix: "free some space (mw image gc), or set MW_HOME to a larger file system" });
  }
  if (code === "EACCES") return new MwError("invalid_image", `cannot read ${directory}: ${reason}`, { fix: "make it readable, or run as the user who owns it" });
  return new MwError("image_failed", `cannot process the tree ${directory}: ${reason}`, { facts: { errno: code } });
}
