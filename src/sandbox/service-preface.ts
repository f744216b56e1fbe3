/** The line with which a connection from a machine begins: `MW1 <sandbox id> <port>\n`, written by the forwarder on the host's side. */
import type { Socket } from "node:net";
import { isId, type SandboxId } from "../core/ids.ts";

const PREFACE_BYTES = 64;

/** The machine; null (and the socket destroyed) for anything that does not begin so. What follows the line stays in the socket. */
export function readPreface(socket: Socket, timeoutMs: number): Promise<SandboxId | null> {
  return new Promise((resolve) => {
    let head: Buffer = Buffer.alloc(0);
    const done = (sandbox: SandboxId | null): void => {
      clearTimeout(timer);
      socket.off("readable", onReadable).off("end", onEnd).off("close", onEnd).off("error", onEnd);
      // Errors that come before anybody else listens.
      socket.on("error", () => undefined);
      if (sandbox === null) socket.destroy();
      resolve(sandbox);
    };
    const onEnd = (): void => done(null);
    const onReadable = (): void => {
      for (let chunk = socket.read() as Buffer | null; chunk !== null; chunk = socket.read() as Buffer | null) {
        head = head.length === 0 ? chunk : Buffer.concat([head, chunk]);
        const end = head.subarray(0, PREFACE_BYTES).indexOf(10);
        if (end < 0 && head.length >= PREFACE_BYTES) return done(null);
        if (end < 0) continue;
        const sandbox = sandboxOf(head.toString("latin1", 0, end));
        if (sandbox !== null && head.length > end + 1) socket.unshift(head.subarray(end + 1));
        return done(sandbox);
      }
    };
    const timer = setTimeout(onEnd, timeoutMs);
    socket.on("readable", onReadable).on("end", onEnd).on("close", onEnd).on("error", onEnd);
  });
}

function sandboxOf(line: string): SandboxId | null {
  const id = /^MW1 (\S+) \d{1,5}$/.exec(line)?.[1];
  return id !== undefined && isId("sbx", id) ? id : null;
}
