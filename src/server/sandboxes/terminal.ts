/**
 * Terminals over WebSockets. Binary frames are bytes of the terminal, both ways; text frames are JSON: `{"resize": {"columns", "rows"}}` and `{"eof": true}` from the client,
 * `{"exit": …}` or `{"error": …}` from the server before it closes.
 */
import type { RawData, WebSocket } from "ws";
import { z } from "zod";
import type { Exec } from "../../sandbox/sandbox.ts";
import { checked } from "../endpoint.ts";
import { problemOf } from "../problem.ts";
import type { Services } from "../services.ts";
import type { ExecHandles } from "./exec-handles.ts";
import { exitDocument, outputQuery, resizeRequest } from "./wire.ts";

const size = z.coerce.number().int().min(1).max(65_535);
const shellQuery = z.strictObject({ columns: size.default(80), rows: size.default(24), command: z.string().min(1).max(4096).exactOptional(), user: z.string().exactOptional(), cwd: z.string().exactOptional() });
const control = z.union([z.strictObject({ resize: resizeRequest }), z.strictObject({ eof: z.literal(true) })]);

const SHELL = "if command -v bash > /dev/null; then exec bash -il; fi; exec /bin/sh -il";

export function mountTerminals({ sandboxes, upgrades }: Services, handles: ExecHandles): void {
  // A shell of its own, which ends with the connection.
  upgrades.add(/^\/v1\/sandboxes\/(?<id>[a-z0-9]+)\/shell$/, async ({ owner, url, params }) => {
    const { columns, rows, command, user, cwd } = checked(shellQuery, Object.fromEntries(url.searchParams), "the query");
    const sandbox = await sandboxes.running(sandboxes.get(owner.id, params["id"] ?? ""));
    const exec = await sandbox.exec({
      command: ["/bin/sh", "-c", command ?? SHELL],
      env: { TERM: "xterm-256color" },
      openStdin: true,
      pty: { columns, rows },
      maxOutputBytes: Number.MAX_SAFE_INTEGER,
      ...(user === undefined ? {} : { user }),
      ...(cwd === undefined ? {} : { cwd }),
    });
    return (socket) => {
      socket.once("close", () => void exec.kill().then(() => exec.exit).then(() => exec.acknowledge()).catch(() => undefined));
      void connect(socket, exec);
    };
  });
  // A command that was started before, and goes on when the connection ends.
  upgrades.add(/^\/v1\/sandboxes\/(?<id>[a-z0-9]+)\/execs\/(?<exec>[A-Za-z0-9._-]+)\/terminal$/, async ({ owner, url, params }) => {
    const offsets = checked(outputQuery, Object.fromEntries(url.searchParams), "the query");
    const exec = await handles.read(await sandboxes.running(sandboxes.get(owner.id, params["id"] ?? "")), params["exec"] ?? "", offsets);
    return (socket) => void connect(socket, exec);
  });
}

async function connect(socket: WebSocket, exec: Exec): Promise<void> {
  let closed = false;
  socket.on("error", () => socket.terminate());
  socket.once("close", () => (closed = true));
  socket.on("message", (data: RawData, binary: boolean) => {
    const bytes = bytesOf(data);
    if (!binary) {
      obey(exec, bytes).catch((error: unknown) => say({ error: problemOf(error).body }));
      return;
    }
    // Whoever types faster than the command reads waits.
    socket.pause();
    exec.writeStdin(bytes).catch(() => undefined).finally(() => socket.resume());
  });
  const say = (document: unknown): void => {
    if (!closed) socket.send(JSON.stringify(document));
  };
  try {
    for await (const { data } of exec.output) {
      if (closed) return;
      await new Promise<void>((resolve) => socket.send(data, { binary: true }, () => resolve()));
    }
    say({ exit: exitDocument(await exec.exit) });
  } catch (error) {
    say({ error: problemOf(error).body });
  }
  socket.close(1000);
}

async function obey(exec: Exec, text: Buffer): Promise<void> {
  let document: unknown;
  try {
    document = JSON.parse(text.toString("utf8"));
  } catch {
    document = null;
  }
  const message = checked(control, document, "the message");
  if ("eof" in message) await exec.closeStdin();
  else await exec.resize(message.resize.columns, message.resize.rows);
}

function bytesOf(data: RawData): Buffer {
  if (Array.isArray(data)) return Buffer.concat(data);
  return Buffer.isBuffer(data) ? data : Buffer.from(data);
}
