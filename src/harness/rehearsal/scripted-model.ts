/**
 * A model that plays a script, for rehearsing agent CLIs without one: a server on a unix socket that speaks the four model APIs as far as a CLI needs them.
 *
 * The turn is read off the request, by counting the tool results in it, never counted here: CLIs repeat requests, resume and summarise.
 */
import { createServer as createHttpServer, type IncomingMessage, type ServerResponse } from "node:http";
import { createServer, type Socket } from "node:net";
import type { Dialect } from "../../gateway/conversation.ts";
import { answerTo, type ScriptedAnswer } from "./scripted-answers.ts";
import { readRequest } from "./scripted-requests.ts";

/** What the model does at one turn: a shell command, by whatever tool the CLI offers for that; after the last one it says `final`. */
export interface Script {
  readonly commands: readonly string[];
  readonly final: string;
}

export interface ModelRequest {
  readonly dialect: Dialect;
  readonly path: string;
  readonly token: string | null;
  readonly body: unknown;
  /** Results of tool calls in it: the turn, from 0. */
  readonly turn: number;
  /** Text blocks of the user, in order. */
  readonly userTexts: readonly string[];
  /** Texts of the tool results, in order. */
  readonly results: readonly string[];
  readonly tools: readonly string[];
}

/** An error that is answered instead of the script. */
export interface Fault {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string;
}

export interface ScriptedModelOptions {
  readonly script: Script;
  /** The sandboxes' service connections begin with `MW1 <sandbox> <port>\n`; absent: they do. */
  readonly fault?: (request: ModelRequest) => Fault | null;
}

export interface ScriptedModel {
  readonly requests: readonly ModelRequest[];
  close(): Promise<void>;
}

/** `socket`: path of the unix socket to listen on. */
export async function startScriptedModel(socket: string, options: ScriptedModelOptions): Promise<ScriptedModel> {
  const requests: ModelRequest[] = [];
  const http = createHttpServer((incoming, response) => {
    void serve(incoming, response, requests, options).catch(() => response.destroy());
  });
  const open = new Set<Socket>();
  const server = createServer((connection) => {
    open.add(connection);
    connection.on("close", () => open.delete(connection));
    connection.on("error", () => undefined);
    afterPreface(connection, () => http.emit("connection", connection));
  });
  await new Promise<void>((resolve, reject) => server.once("error", reject).listen(socket, resolve));
  return {
    requests,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        for (const connection of open) connection.destroy();
      }),
  };
}

/** Reads the forwarder's first line and hands the rest of the connection on. */
function afterPreface(connection: Socket, then: () => void): void {
  let head = Buffer.alloc(0);
  const onData = (chunk: Buffer): void => {
    head = Buffer.concat([head, chunk]);
    const end = head.indexOf(0x0a);
    if (end < 0) {
      if (head.length > 256) connection.destroy();
      return;
    }
    connection.off("data", onData);
    connection.pause();
    if (!head.toString("latin1", 0, end).startsWith("MW1 ")) {
      connection.destroy();
      return;
    }
    if (end + 1 < head.length) connection.unshift(head.subarray(end + 1));
    then();
    // Paused by hand above: a listener alone does not make it flow again.
    connection.resume();
  };
  connection.on("data", onData);
}

async function serve(incoming: IncomingMessage, response: ServerResponse, requests: ModelRequest[], options: ScriptedModelOptions): Promise<void> {
  const parts: Buffer[] = [];
  for await (const part of incoming) parts.push(part as Buffer);
  const request = readRequest(incoming.method ?? "", incoming.url ?? "", incoming.headers, Buffer.concat(parts).toString("utf8"));
  if (request === null) {
    response.writeHead(404, { "content-type": "application/json" }).end('{"error":{"message":"not found"}}');
    return;
  }
  requests.push(request);
  const fault = options.fault?.(request) ?? null;
  if (fault !== null) {
    response.writeHead(fault.status, { "content-type": "application/json", ...fault.headers }).end(fault.body);
    return;
  }
  const command = options.script.commands[request.turn];
  const answer: ScriptedAnswer = command === undefined || request.tools.length === 0 ? { kind: "text", text: options.script.final } : { kind: "command", command };
  const { contentType, body } = answerTo(request, answer);
  response.writeHead(200, { "content-type": contentType }).end(body);
}
