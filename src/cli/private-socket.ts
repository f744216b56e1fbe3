/** A unix socket that only this user reaches. */
import { chmodSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";

/** Listens there, over whatever a dead process left, until it is closed; that ends every connection. */
export async function listenPrivately(path: string, take: (socket: Socket) => void): Promise<() => Promise<void>> {
  const sockets = new Set<Socket>();
  const server: Server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined).on("close", () => sockets.delete(socket));
    take(socket);
  });
  rmSync(path, { force: true });
  await new Promise<void>((resolve, reject) => server.once("error", reject).listen(path, resolve));
  chmodSync(path, 0o600);
  return async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
    rmSync(path, { force: true });
  };
}
