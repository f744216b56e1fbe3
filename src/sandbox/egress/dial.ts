/** A connection to the first of some addresses that takes one. Nothing is looked up here. */
import { connect, type Socket } from "node:net";
import { LIMITS } from "../../core/limits.ts";

export interface Dialled {
  readonly socket: Socket;
  readonly address: string;
}

/** Null when none of them answers in time; `signal` gives up. */
export async function dial(addresses: readonly string[], port: number, signal: AbortSignal): Promise<Dialled | null> {
  const late = AbortSignal.any([signal, AbortSignal.timeout(LIMITS.egressConnectMs)]);
  for (const [index, address] of addresses.entries()) {
    if (late.aborted) return null;
    // The last one may take all the time that is left.
    const each = index === addresses.length - 1 ? late : AbortSignal.any([late, AbortSignal.timeout(LIMITS.egressConnectMs / 4)]);
    const socket = await attempt(address, port, each);
    if (socket !== null) return { socket, address };
  }
  return null;
}

function attempt(address: string, port: number, signal: AbortSignal): Promise<Socket | null> {
  return new Promise((resolve) => {
    const socket = connect({ host: address, port, allowHalfOpen: true, noDelay: true });
    const done = (ok: boolean): void => {
      signal.removeEventListener("abort", onAbort);
      socket.off("connect", onConnect).off("error", onError);
      // Its next owner listens; until then an error must not be nobody's.
      socket.on("error", () => undefined);
      if (!ok) socket.destroy();
      resolve(ok ? socket : null);
    };
    const onAbort = (): void => done(false);
    const onConnect = (): void => done(true);
    const onError = (): void => done(false);
    signal.addEventListener("abort", onAbort);
    socket.once("connect", onConnect).once("error", onError);
    if (signal.aborted) done(false);
  });
}
