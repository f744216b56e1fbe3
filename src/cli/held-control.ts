/**
 * How other commands ask a holder for what only it can do with its machines (its process owns the spawner): one JSON line each way over a unix socket that only this user reaches.
 */
import { createConnection } from "node:net";
import { createInterface } from "node:readline";
import { z } from "zod";
import { ERROR_CATALOGUE, type ErrorCode, MwError, toMwError } from "../core/errors.ts";
import type { HeldMachine } from "./held-machines.ts";
import { listenPrivately } from "./private-socket.ts";

export const HeldRequest = z.discriminatedUnion("do", [
  z.strictObject({ do: z.literal("snapshot"), id: z.string(), name: z.string().nullable(), memory: z.boolean() }),
  z.strictObject({ do: z.literal("fork"), id: z.string(), count: z.int(), memory: z.boolean() }),
  z.strictObject({ do: z.literal("pause"), id: z.string(), memory: z.boolean() }),
  z.strictObject({ do: z.literal("resume"), id: z.string() }),
  z.strictObject({ do: z.literal("kill"), id: z.string() }),
  z.strictObject({ do: z.literal("network"), id: z.string(), /** The new list; null leaves it. */ allow: z.array(z.string()).nullable() }),
]);
export type HeldRequest = z.infer<typeof HeldRequest>;

const Answer = z.union([
  z.strictObject({ ok: z.literal(true), result: z.unknown() }),
  z.strictObject({ ok: z.literal(false), code: z.custom<ErrorCode>((code) => typeof code === "string" && Object.hasOwn(ERROR_CATALOGUE, code)), message: z.string(), fix: z.string().nullable() }),
]);

const LINE_BYTES = 64 * 1024;

/** Answers until it is closed. */
export function serveHeld(path: string, carryOut: (request: HeldRequest) => Promise<unknown>): Promise<() => Promise<void>> {
  return listenPrivately(path, (socket) => {
    let length = 0;
    socket.on("data", (chunk: Buffer) => {
      length += chunk.length;
      if (length > LINE_BYTES) socket.destroy();
    });
    createInterface({ input: socket }).once("line", (line) => {
      void answer(line, carryOut).then((text) => socket.end(`${text}\n`));
    });
  });
}

async function answer(line: string, carryOut: (request: HeldRequest) => Promise<unknown>): Promise<string> {
  try {
    return JSON.stringify({ ok: true, result: (await carryOut(HeldRequest.parse(JSON.parse(line)))) ?? null });
  } catch (error) {
    const { code, message, fix } = toMwError(error);
    return JSON.stringify({ ok: false, code, message, fix: fix ?? null });
  }
}

/** Rejects with the holder's own error. */
export async function askHolder(machine: HeldMachine, request: HeldRequest): Promise<unknown> {
  const socket = createConnection(machine.control);
  try {
    const line = await new Promise<string>((resolve, reject) => {
      const gone = (cause?: Error): void => reject(new MwError("sandbox_gone", `The holder of ${machine.id} (process ${machine.pid}) does not answer`, { cause }));
      socket.once("error", gone);
      createInterface({ input: socket }).once("line", resolve).once("close", () => gone());
      socket.write(`${JSON.stringify(request)}\n`);
    });
    const said = Answer.parse(JSON.parse(line));
    if (said.ok) return said.result;
    throw new MwError(said.code, said.message, said.fix === null ? {} : { fix: said.fix });
  } finally {
    socket.destroy();
  }
}
