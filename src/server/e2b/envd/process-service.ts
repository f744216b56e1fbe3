/** `process.Process`: commands, as the guest agent offers them. Source: https://github.com/e2b-dev/E2B, spec/envd/process/process.proto. */
import type { IncomingMessage } from "node:http";
import { z } from "zod";
import type { Runtime } from "../../../core/runtime.ts";
import type { ExecExit, ExecOptions, Sandbox } from "../../../sandbox/sandbox.ts";
import type { Observations } from "../observations.ts";
import { resolvePath, type Accounts } from "./accounts.ts";
import { clientStream, ConnectFailure, serverStream, unary, type MessageSink, type Rpc } from "./connect-protocol.ts";
import { basicUser, userOf, type Guest } from "./guest.ts";
import { ProcessHub, type Listener, type Process } from "./process-hub.ts";

const sizeSchema = z.object({ cols: z.int().min(1).max(65_535), rows: z.int().min(1).max(65_535) });
const selector = z.object({ pid: z.int().nonnegative().optional(), tag: z.string().optional() }).refine(({ pid, tag }) => pid !== undefined || tag !== undefined, "names no process");
const startSchema = z.object({
  process: z.object({ cmd: z.string().min(1), args: z.array(z.string()).default([]), envs: z.record(z.string(), z.string()).default({}), cwd: z.string().optional() }),
  pty: z.object({ size: sizeSchema }).optional(),
  tag: z.string().max(256).optional(),
  stdin: z.boolean().default(true),
});
const connectSchema = z.object({ process: selector });
const inputSchema = z.object({ stdin: z.base64().optional(), pty: z.base64().optional() });
const sendInputSchema = z.object({ process: selector, input: inputSchema });
const streamInputSchema = z.object({ start: z.object({ process: selector }).optional(), data: z.object({ input: inputSchema }).optional(), keepalive: z.object({}).optional() });
const SIGNALS: Readonly<Record<string, NodeJS.Signals>> = { SIGNAL_SIGKILL: "SIGKILL", 9: "SIGKILL", SIGNAL_SIGTERM: "SIGTERM", 15: "SIGTERM" };
const signalSchema = z.object({ process: selector, signal: z.union([z.string(), z.int()]) });
const updateSchema = z.object({ process: selector, pty: z.object({ size: sizeSchema }).optional() });

/** Seconds between signs of life on a stream, where the client does not say. */
const KEEPALIVE_S = 90;
/** How long a sandbox under a lost command is waited for to end. */
const LOST_MS = 5_000;
/** Bytes of output in one message. */
const CHUNK_BYTES = 32 * 1024;

export interface ProcessServiceOptions {
  readonly runtime: Runtime;
  readonly accounts: Accounts;
  readonly observations: Observations;
  readonly hubOf: (guest: Guest) => ProcessHub;
}

export function processService({ runtime, accounts, observations, hubOf }: ProcessServiceOptions, guest: () => Promise<Guest>): Readonly<Record<string, Rpc>> {
  const find = async (wanted: z.output<typeof selector>, alive: boolean): Promise<Process> => {
    const process = await hubOf(await guest()).find(wanted);
    if (process === null || (alive && process.ended)) throw new ConnectFailure("not_found", `there is no process with ${wanted.pid === undefined ? `the tag ${JSON.stringify(wanted.tag)}` : `the id ${wanted.pid}`}`);
    return process;
  };
  const write = async (process: Process, input: z.output<typeof inputSchema>): Promise<void> => {
    const data = input.pty ?? input.stdin ?? "";
    if (input.pty !== undefined && !process.pty) throw new ConnectFailure("failed_precondition", "the process has no terminal");
    await process.exec.writeStdin(Buffer.from(data, "base64"));
  };
  return {
    List: unary(z.object({}), async () => ({
      processes: (await hubOf(await guest()).running()).map(({ pid, tag, config }) => (tag === null ? { pid, config } : { pid, config, tag })),
    })),

    Start: serverStream(startSchema, async (message, sink, request) => {
      const at = await guest();
      const user = await userOf(accounts, at.sandbox, basicUser(request));
      const { cmd, args, envs, cwd } = message.process;
      const timeoutMs = deadlineOf(request);
      const options: ExecOptions = {
        command: [cmd, ...args],
        env: envs,
        cwd: cwd === undefined || cwd === "" ? user.workdir : resolvePath(cwd, user.workdir),
        openStdin: message.stdin || message.pty !== undefined,
        ...(user.spec === "" ? {} : { user: user.spec }),
        ...(message.pty === undefined ? {} : { pty: { columns: message.pty.size.cols, rows: message.pty.size.rows } }),
        ...(timeoutMs === null ? {} : { timeoutMs }),
      };
      // Output may come before the first message is out: it follows that.
      const first = new Gate();
      const listener = listenerOf(sink, message.pty !== undefined, first.opened);
      const process = await hubOf(at).start(options, { tag: message.tag ?? null, config: message.process }, listener);
      observations.log(at.entry, "info", `started ${cmd}`, { pid: String(process.pid), user: user.name });
      void process.done.then((exit) => observations.log(at.entry, exit.code === 0 ? "info" : "warn", `ended ${cmd}`, { pid: String(process.pid), exit_code: String(exit.code) })).catch(() => undefined);
      await tell(at.sandbox, process, listener, sink, request, runtime, first.open);
    }),

    Connect: serverStream(connectSchema, async (message, sink, request) => {
      const { sandbox } = await guest();
      const process = await find(message.process, false);
      const first = new Gate();
      const listener = listenerOf(sink, process.pty, first.opened);
      process.listeners.add(listener);
      await tell(sandbox, process, listener, sink, request, runtime, first.open);
    }),

    SendInput: unary(sendInputSchema, async (message) => {
      await write(await find(message.process, true), message.input);
      return {};
    }),

    StreamInput: clientStream(streamInputSchema, async (messages) => {
      let process: Process | null = null;
      for await (const { start, data } of messages) {
        if (start !== undefined) process = await find(start.process, true);
        if (data === undefined) continue;
        if (process === null) throw new ConnectFailure("failed_precondition", "the first message names the process");
        await write(process, data.input);
      }
      return {};
    }),

    CloseStdin: unary(connectSchema, async (message) => {
      await (await find(message.process, true)).exec.closeStdin();
      return {};
    }),

    SendSignal: unary(signalSchema, async (message) => {
      const signal = SIGNALS[message.signal];
      if (signal === undefined) throw new ConnectFailure("unimplemented", `the signal ${JSON.stringify(message.signal)} is not offered: SIGNAL_SIGKILL and SIGNAL_SIGTERM are`);
      await (await find(message.process, true)).exec.kill(signal);
      return {};
    }),

    Update: unary(updateSchema, async (message) => {
      const process = await find(message.process, true);
      if (message.pty !== undefined) await process.exec.resize(message.pty.size.cols, message.pty.size.rows);
      return {};
    }),
  };
}

/** First the process's number, then what it says, then how it ended. The process goes on when the listener goes. */
async function tell(sandbox: Sandbox, process: Process, listener: Listener, sink: MessageSink, request: IncomingMessage, runtime: Runtime, begun: () => void): Promise<void> {
  const stop = new AbortController();
  const over = (): void => stop.abort("over");
  sink.gone.addEventListener("abort", over, { once: true });
  try {
    await sink.send({ event: { start: { pid: process.pid } } });
    begun();
    void beat(sink, request, runtime, stop.signal);
    const exit = await Promise.race([process.done, gone(stop.signal)]);
    if (exit === null) return;
    if (exit.ended === "timed_out") throw new ConnectFailure("deadline_exceeded", "the command took longer than its time and was killed");
    if (exit.ended === "lost") {
      // A broken connection is what clients look into: they ask whether the sandbox is there, so that it must be known by then that it is not.
      if (sandbox.state === "running") await Promise.race([sandbox.ended, runtime.sleep(LOST_MS, sink.gone).catch(() => undefined)]);
      sink.breakOff();
      return;
    }
    await sink.send({ event: { end: endOf(exit) } });
  } finally {
    process.listeners.delete(listener);
    over();
  }
}

function listenerOf(sink: MessageSink, pty: boolean, first: Promise<void>): Listener {
  return async (stream, data) => {
    await first;
    for (let at = 0; at < data.length; at += CHUNK_BYTES) {
      const part = Buffer.from(data.buffer, data.byteOffset + at, Math.min(CHUNK_BYTES, data.length - at)).toString("base64");
      if (!(await sink.send({ event: { data: pty ? { pty: part } : { [stream]: part } } }))) return false;
    }
    return !sink.gone.aborted;
  };
}

function endOf(exit: ExecExit): Readonly<Record<string, unknown>> {
  if (exit.signal === null) return { exitCode: exit.code, exited: true, status: `exit status ${exit.code}`, ...(exit.code === 0 ? {} : { error: `exit status ${exit.code}` }) };
  const status = `signal: ${SIGNAL_WORDS[exit.signal] ?? exit.signal}`;
  return { exitCode: -1, exited: false, status, error: status };
}

/** As the C library describes them, which clients may have come to read. */
const SIGNAL_WORDS: Readonly<Record<string, string>> = { SIGKILL: "killed", SIGTERM: "terminated", SIGINT: "interrupt", SIGSEGV: "segmentation fault", SIGABRT: "aborted", SIGHUP: "hangup", SIGQUIT: "quit", SIGPIPE: "broken pipe" };

async function beat(sink: MessageSink, request: IncomingMessage, runtime: Runtime, over: AbortSignal): Promise<void> {
  const asked = Number(request.headers["keepalive-ping-interval"]);
  const seconds = Number.isFinite(asked) && asked >= 1 ? Math.min(asked, 3600) : KEEPALIVE_S;
  try {
    for (;;) {
      await runtime.sleep(seconds * 1000, over);
      await sink.send({ event: { keepalive: {} } });
    }
  } catch {
    // It is over.
  }
}

function gone(signal: AbortSignal): Promise<null> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(null);
    else signal.addEventListener("abort", () => resolve(null), { once: true });
  });
}

/** The protocol's deadline of a call is the life of its command. */
function deadlineOf(request: IncomingMessage): number | null {
  const text = request.headers["connect-timeout-ms"];
  if (text === undefined) return null;
  if (typeof text !== "string" || !/^\d{1,10}$/.test(text)) throw new ConnectFailure("invalid_argument", "Connect-Timeout-Ms is no number of milliseconds");
  return Number(text) === 0 ? null : Number(text);
}

class Gate {
  readonly opened: Promise<void>;
  open: () => void = () => undefined;

  constructor() {
    this.opened = new Promise((resolve) => (this.open = resolve));
  }
}
