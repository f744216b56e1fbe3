/** When whoever asked has gone. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { MwError } from "../core/errors.ts";

/** Aborted when the connection ends before the answer does. */
export function aborted(request: IncomingMessage, response: ServerResponse): AbortSignal {
  const controller = new AbortController();
  response.once("close", () => {
    if (!response.writableFinished) controller.abort(new MwError("cancelled", "the client went away"));
  });
  if (request.socket.destroyed) controller.abort(new MwError("cancelled", "the client went away"));
  return controller.signal;
}

/** Waits for a slow reader. False once it has gone. */
export async function send(response: ServerResponse, data: string | Uint8Array): Promise<boolean> {
  if (response.destroyed) return false;
  if (response.write(data)) return true;
  return new Promise((resolve) => {
    const done = (): void => {
      response.off("drain", done).off("close", done);
      resolve(!response.destroyed);
    };
    response.once("drain", done).once("close", done);
  });
}
