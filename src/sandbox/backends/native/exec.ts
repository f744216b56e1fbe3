/**
 * Commands in a machine: starts them through init, delivers their output with back-pressure, and collects results.
 *
 * Init sends at most one window of output beyond what was acknowledged, and output is acknowledged as it is consumed: a reader that stops stops the command,
 * and this process never holds more than a window per stream.
 */
import { constants } from "node:os";
import { MwError } from "../../../core/errors.ts";
import type { ExecId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Exec, ExecChunk, ExecExit, ExecOptions, ExecResult } from "../../sandbox.ts";
import { type InitConnection, initError } from "./init-connection.ts";
import { INIT, STDIN_WINDOW_BYTES, TAG } from "./init-protocol.ts";
import type { FieldList, Frame } from "./wire.ts";

/** `ExecOptions` with everything decided: complete environment, directory, user. */
export interface ExecRequest extends Omit<ExecOptions, "env" | "cwd" | "user" | "id"> {
  readonly id: ExecId;
  /** The complete environment; init adds HOME, USER and LOGNAME of the user where they are absent. */
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  /** Empty means root. */
  readonly user: string;
}

/** Input frames are cut to this size. */
const STDIN_CHUNK_BYTES = 64 * 1024;
/** Consumed output is acknowledged in steps of this size: a fraction of the window, so that init always has room to go on. */
const CREDIT_BYTES = 256 * 1024;

/** A finished command that said no more than this may be forgotten a moment later. */
const LATER_BYTES = 4096;

/**
 * Starts a command, or attaches to the one with the same id. A command that cannot be executed is a result (127, 126), not an error.
 * Rejects `invalid_input` for an unknown user or missing directory, `limit_exceeded` for a request too large for one frame.
 */
export async function startExec(connection: InitConnection, request: ExecRequest): Promise<NativeExec> {
  request.signal?.throwIfAborted();
  const exec = new NativeExec(connection, request.id, INIT.start, startFields(request));
  const { attached } = await exec.started;
  // What started it has fed it. The command may end, or close its input, before it has read everything: no failure of the exec.
  if (!attached && request.stdin !== undefined) feed(exec, request.stdin, request.openStdin === true).catch(() => undefined);
  const onAbort = (): void => void exec.kill().catch(() => undefined);
  if (request.signal) {
    request.signal.addEventListener("abort", onAbort, { once: true });
    exec.exit.finally(() => request.signal?.removeEventListener("abort", onAbort)).catch(() => undefined);
    if (request.signal.aborted) onAbort();
  }
  return exec;
}

/** Starts a command under an id that is new, without waiting until it has started: input can be sent at once, a refusal is the failure of its output and exit. */
export function openExec(connection: InitConnection, request: ExecRequest): NativeExec {
  return new NativeExec(connection, request.id, INIT.start, startFields(request));
}

/** Attaches to an exec at byte offsets of its output. Rejects `not_found` for an unknown id. */
export async function attachExec(
  connection: InitConnection,
  id: ExecId,
  offsets: { readonly stdout?: number; readonly stderr?: number } = {},
): Promise<NativeExec> {
  const exec = new NativeExec(connection, id, INIT.attach, [[TAG.id, id], [TAG.stdout, offsets.stdout ?? 0], [TAG.stderr, offsets.stderr ?? 0]]);
  await exec.started;
  return exec;
}

/** Runs to the end, collects the output and forgets the exec. */
export async function runExec(connection: InitConnection, request: ExecRequest): Promise<ExecResult> {
  const exec = await startExec(connection, request);
  const chunks = await exec.collect();
  const exit = await exec.exit;
  if (exit.ended !== "lost") exec.forget();
  return { ...exit, stdout: Buffer.concat(chunks.stdout), stderr: Buffer.concat(chunks.stderr) };
}

function startFields(request: ExecRequest): FieldList {
  // A command that begins with a dash is no option of the shell.
  const argv = typeof request.command === "string" ? ["/bin/sh", "-c", "--", request.command] : request.command;
  const env = Object.entries(request.env).map(([name, value]) => `${name}=${value}`);
  if (argv.length === 0) throw new MwError("usage", "An exec needs a command");
  if ([...argv, ...env, request.cwd, request.user].some((text) => text.includes("\0"))) {
    throw new MwError("usage", "A command, its environment, directory and user cannot hold NUL characters");
  }
  if (env.length > LIMITS.envEntries) throw new MwError("limit_exceeded", `An environment of ${env.length} variables exceeds ${LIMITS.envEntries}`);
  return [
    [TAG.id, request.id],
    [TAG.arg, argv],
    [TAG.env, env],
    [TAG.cwd, request.cwd],
    [TAG.user, request.user],
    [TAG.stdin, request.openStdin === true || request.stdin !== undefined ? 1 : 0],
    [TAG.columns, request.pty?.columns],
    [TAG.rows, request.pty?.rows],
    [TAG.deadlineMs, request.timeoutMs === undefined ? undefined : Math.max(1, Math.ceil(request.timeoutMs))],
    [TAG.cap, request.maxOutputBytes ?? LIMITS.execOutputBytes],
  ];
}

async function feed(exec: NativeExec, stdin: Uint8Array | string, more: boolean): Promise<void> {
  await exec.writeStdin(stdin);
  if (!more) await exec.closeStdin();
}

/** The client's half of one exec. */
export class NativeExec implements Exec {
  readonly id: ExecId;
  pid: number | null = null;
  inputBytes = 0;
  readonly exit: Promise<ExecExit>;
  /** Resolves once the command runs or is known not to be executable. `attached`: it had been started before. */
  readonly started: Promise<{ readonly attached: boolean }>;
  #connection: InitConnection;
  #ref: number;
  /** Set while it changes from one connection to another: what is to be sent waits. */
  #standing: { readonly over: Promise<void>; readonly end: () => void } | null = null;
  #moved = false;
  readonly #queue: ExecChunk[] = [];
  /** Offsets per stream: received from init, consumed by the reader, acknowledged to init. */
  readonly #offsets = { stdout: { received: 0, consumed: 0, acknowledged: 0 }, stderr: { received: 0, consumed: 0, acknowledged: 0 } };
  #stdinSent = 0;
  #stdinTaken = 0;
  #stdinClosed = false;
  #stdinTail: Promise<void> = Promise.resolve();
  #ended: ExecExit | null = null;
  #failure: MwError | null = null;
  #iterated = false;
  #discarding = false;
  #wake: (() => void)[] = [];
  #resolveExit: (exit: ExecExit) => void = () => undefined;
  #rejectExit: (error: MwError) => void = () => undefined;
  #resolveStarted: (how: { readonly attached: boolean }) => void = () => undefined;
  #rejectStarted: (error: MwError) => void = () => undefined;
  #isStarted = false;

  constructor(connection: InitConnection, id: ExecId, request: number, fields: FieldList) {
    this.#connection = connection;
    this.id = id;
    this.exit = new Promise((resolve, reject) => {
      this.#resolveExit = resolve;
      this.#rejectExit = reject;
    });
    this.started = new Promise((resolve, reject) => {
      this.#resolveStarted = resolve;
      this.#rejectStarted = reject;
    });
    // Whoever awaits them sees the rejection; nobody has to.
    this.exit.catch(() => undefined);
    this.started.catch(() => undefined);
    this.#ref = this.#open(connection);
    connection.send(request, this.#ref, fields);
  }

  #open(connection: InitConnection): number {
    return connection.open({ frame: (frame) => this.#receive(frame), lost: (error) => this.#lost(error), stand: () => this.#stand(), move: (to) => this.#move(to) });
  }

  async #stand(): Promise<void> {
    if (this.#standing === null) {
      let end = (): void => undefined;
      const over = new Promise<void>((resolve) => (end = resolve));
      this.#standing = { over, end };
    }
    await this.started.catch(() => undefined);
  }

  /** Init knows the exec by its id, and sends again what lies behind the offset. */
  #move(to: InitConnection): void {
    this.#connection.release(this.#ref);
    this.#connection = to;
    this.#moved = true;
    this.#ref = this.#open(to);
    const { stdout, stderr } = this.#offsets;
    to.send(INIT.attach, this.#ref, [[TAG.id, this.id], [TAG.stdout, stdout.received], [TAG.stderr, stderr.received]]);
  }

  #goOn(): void {
    this.#standing?.end();
    this.#standing = null;
  }

  /** Between two connections nothing can be sent. */
  async #steady(): Promise<void> {
    while (this.#standing !== null) await this.#standing.over;
  }

  get output(): AsyncIterable<ExecChunk> {
    return { [Symbol.asyncIterator]: () => this.#chunks() };
  }

  /** All of the output, by stream: `output` for one that wants everything and nothing earlier. */
  async collect(): Promise<{ readonly stdout: readonly Uint8Array[]; readonly stderr: readonly Uint8Array[] }> {
    const chunks: { stdout: Uint8Array[]; stderr: Uint8Array[] } = { stdout: [], stderr: [] };
    for (;;) {
      for (const { stream, data } of this.#queue) chunks[stream].push(data);
      this.#consumeQueue();
      if (this.#ended) return chunks;
      if (this.#failure) throw this.#failure;
      await new Promise<void>((resolve) => this.#wake.push(resolve));
    }
  }

  async writeStdin(data: Uint8Array | string): Promise<void> {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    // Writes of several callers follow each other, each whole.
    const writing = this.#stdinTail.then(() => this.#write(bytes));
    this.#stdinTail = writing.catch(() => undefined);
    await writing;
  }

  async closeStdin(): Promise<void> {
    await this.#stdinTail;
    await this.#steady();
    this.#connection.send(INIT.stdin, this.#ref, [[TAG.eof, 1]]);
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    await this.#steady();
    if (this.#ended) return;
    if (signal === "SIGKILL") await this.#connection.request(INIT.kill, [[TAG.id, this.id]]);
    else await this.#connection.request(INIT.signal, [[TAG.id, this.id], [TAG.signal, constants.signals[signal]]]);
  }

  async resize(columns: number, rows: number): Promise<void> {
    await this.#steady();
    await this.#connection.request(INIT.resize, [[TAG.id, this.id], [TAG.columns, columns], [TAG.rows, rows]]);
  }

  async acknowledge(): Promise<void> {
    await this.#steady();
    await this.#connection.request(INIT.forget, [[TAG.id, this.id]]);
  }

  /** `acknowledge` for one that nobody else knows of: later requests on the same connection find it forgotten. Much output is memory of the machine: at once. */
  forget(): void {
    const { stdout, stderr } = this.#offsets;
    this.#connection.sendAside(INIT.forget, [[TAG.id, this.id]], stdout.received + stderr.received > LATER_BYTES ? "now" : "later");
  }

  /** Takes no more output, waits for the end and forgets the exec: for an owner that has what it wanted. */
  async discard(): Promise<void> {
    this.#discarding = true;
    this.#consumeQueue();
    const exit = await this.exit.catch(() => null);
    if (exit !== null && exit.ended !== "lost") this.forget();
  }

  #consumeQueue(): void {
    for (const { stream, data } of this.#queue.splice(0)) this.#offsets[stream].consumed += data.length;
    this.#credit();
  }

  async *#chunks(): AsyncGenerator<ExecChunk, void, undefined> {
    if (this.#iterated) throw new MwError("internal", "The output of an exec can be iterated once");
    this.#iterated = true;
    for (;;) {
      const chunk = this.#queue.shift();
      if (chunk === undefined) {
        if (this.#ended) return;
        if (this.#failure) throw this.#failure;
        await new Promise<void>((resolve) => this.#wake.push(resolve));
        continue;
      }
      yield chunk;
      // Asked for the next one: this one is consumed.
      this.#offsets[chunk.stream].consumed += chunk.data.length;
      this.#credit();
    }
  }

  #credit(): void {
    const { stdout, stderr } = this.#offsets;
    const owed = stdout.consumed - stdout.acknowledged + (stderr.consumed - stderr.acknowledged);
    // Whoever attaches acknowledges by that.
    if (owed < CREDIT_BYTES || this.#standing !== null) return;
    stdout.acknowledged = stdout.consumed;
    stderr.acknowledged = stderr.consumed;
    this.#connection.send(INIT.credit, this.#ref, [[TAG.stdout, stdout.consumed], [TAG.stderr, stderr.consumed]]);
  }

  async #write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; at += STDIN_CHUNK_BYTES) {
      const part = bytes.subarray(at, at + STDIN_CHUNK_BYTES);
      while (!this.#inputOver() && this.#stdinSent - this.#stdinTaken + part.length > STDIN_WINDOW_BYTES) {
        await new Promise<void>((resolve) => this.#wake.push(resolve));
      }
      await this.#steady();
      if (this.#inputOver()) throw new MwError("conflict", "The command no longer reads its input: it has ended or closed it");
      this.#stdinSent += part.length;
      this.#connection.send(INIT.stdin, this.#ref, [[TAG.data, part]]);
    }
  }

  #inputOver(): boolean {
    return this.#stdinClosed || this.#ended !== null || this.#failure !== null;
  }

  #notify(): void {
    const wake = this.#wake;
    this.#wake = [];
    for (const resolve of wake) resolve();
  }

  #receive(frame: Frame): void {
    const error = frame.error();
    if (error) this.#refused(initError(error));
    else if (frame.type === INIT.started) this.#onStarted(frame);
    else if (frame.type === INIT.output) this.#onOutput(frame);
    else if (frame.type === INIT.stdinCredit) this.#onStdinCredit(frame);
    else if (frame.type === INIT.exit) this.#finish(exitOf(frame));
    else if (frame.type === INIT.detached) this.#refused(new MwError("conflict", `Exec ${this.id} was attached elsewhere`));
    else this.#connection.fail(`frame type ${frame.type} for an exec`);
    this.#notify();
  }

  #onStarted(frame: Frame): void {
    this.#isStarted = true;
    this.pid = frame.number(TAG.pid) ?? null;
    for (const [stream, tag] of [["stdout", TAG.stdout], ["stderr", TAG.stderr]] as const) {
      const at = frame.number(tag) ?? 0;
      const { received, consumed } = this.#offsets[stream];
      if (this.#moved && at !== received) return this.#connection.fail("output that does not go on where it was");
      this.#offsets[stream] = { received: at, consumed: this.#moved ? consumed : at, acknowledged: at };
    }
    const attached = frame.number(TAG.attached) === 1;
    if (attached) {
      // It continues where the one before ended, with no credit until init has told how much of it was read.
      this.#stdinSent = frame.number(TAG.accepted) ?? 0;
      this.inputBytes = this.#stdinSent;
      this.#stdinTaken = this.#stdinSent - STDIN_WINDOW_BYTES;
    }
    this.#resolveStarted({ attached });
    this.#goOn();
  }

  #onOutput(frame: Frame): void {
    const stream = frame.number(TAG.stream) === 1 ? "stderr" : "stdout";
    const data = frame.bytes(TAG.data);
    const state = this.#offsets[stream];
    if (data === null || frame.number(TAG.offset) !== state.received) {
      this.#connection.fail("output out of order");
      return;
    }
    state.received += data.length;
    if (state.received - state.acknowledged > LIMITS.execWindowBytes) {
      this.#connection.fail("more output than its window");
      return;
    }
    this.#queue.push({ stream, data });
    if (this.#discarding) this.#consumeQueue();
  }

  #onStdinCredit(frame: Frame): void {
    this.#stdinTaken = frame.number(TAG.accepted) ?? this.#stdinTaken;
    if (frame.number(TAG.closed) === 1) this.#stdinClosed = true;
  }

  #finish(exit: ExecExit): void {
    this.#connection.release(this.#ref);
    this.#ended = exit;
    this.#goOn();
    this.#resolveExit(exit);
    this.#notify();
  }

  #refused(error: MwError): void {
    this.#connection.release(this.#ref);
    this.#failure = error;
    this.#goOn();
    this.#rejectStarted(error);
    this.#rejectExit(error);
  }

  /** The connection ended. A command that ran is lost with its machine; one that never started is an error of the request. */
  #lost(error: MwError): void {
    if (this.#isStarted) {
      const { stdout, stderr } = this.#offsets;
      this.#finish({
        code: 128 + constants.signals.SIGKILL,
        signal: "SIGKILL",
        ended: "lost",
        cause: null,
        durationMs: 0,
        stdoutBytes: stdout.received,
        stderrBytes: stderr.received,
        truncated: false,
      });
    } else {
      this.#refused(error);
    }
    this.#notify();
  }
}

const SIGNAL_NAMES = new Map(Object.entries(constants.signals).map(([name, number]) => [number, name]));
const ENDED = ["exited", "timed_out", "killed"] as const;

function exitOf(frame: Frame): ExecExit {
  const signal = frame.number(TAG.signal) ?? 0;
  return {
    code: frame.number(TAG.code) ?? 255,
    signal: signal === 0 ? null : (SIGNAL_NAMES.get(signal) ?? `SIG${signal}`),
    ended: ENDED[frame.number(TAG.ended) ?? 0] ?? "exited",
    cause: null,
    durationMs: (frame.number(TAG.durationUs) ?? 0) / 1000,
    stdoutBytes: frame.number(TAG.stdoutBytes) ?? 0,
    stderrBytes: frame.number(TAG.stderrBytes) ?? 0,
    truncated: frame.number(TAG.truncated) === 1,
  };
}
