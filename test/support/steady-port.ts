/** Ports of servers that are started again in the same place. */
import { createServer } from "node:net";

/** A free port of loopback outside of those that the kernel gives to whoever asks for any: nobody has it while the server is away, nor does a client that looks for it there meet itself. */
export async function steadyPort(): Promise<number> {
  // Files of tests that run at once look in places of their own.
  const place = (process.pid % 50) * 10 + (Number(process.env["VITEST_POOL_ID"] ?? 0) % 10);
  for (let port = 20_000 + place * 20; ; port++) if (await isFree(port)) return port;
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}
