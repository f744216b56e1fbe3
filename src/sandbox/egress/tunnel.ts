/**
 * CONNECT: a tunnel for TLS, whose content is the client's and the server's alone. Its first message is looked at on the way: it has to name the server that the tunnel was asked
 * for, because many servers stand behind one address. A tunnel for anything but TLS is refused: nothing of it could be decided on.
 */
import type { Duplex } from "node:stream";
import type { Socket } from "node:net";
import { LIMITS } from "../../core/limits.ts";
import { type Answer, HOW_TO_ALLOW, lastWords } from "./answers.ts";
import { authority, type Destination } from "./destination.ts";
import { normalHost } from "./host-rules.ts";
import type { Flow, MachineEgress } from "./machine-egress.ts";
import { readServerName } from "./server-name.ts";

/** `head`: what the client has sent behind its request. Ends with the tunnel. */
export async function runTunnel(machine: MachineEgress, flow: Flow, destination: Destination, client: Duplex, head: Buffer, server: Socket): Promise<void> {
  const cut = (): void => {
    client.destroy();
    server.destroy();
  };
  flow.onCut(cut);
  client.write("HTTP/1.1 200 Connection established\r\n\r\n");
  const hello = await readHello(client, head, destination);
  if (hello.kind === "gone") return cut();
  if (hello.kind === "refused") {
    machine.refuse(hello.reason, destination.host, destination.port, hello.answer.reason);
    server.destroy();
    // A client of TLS closes on what it reads; one of something else shows it.
    lastWords(client, hello.answer);
    return;
  }
  server.setTimeout(LIMITS.egressIdleMs, cut);
  flow.sent(hello.bytes.length);
  server.write(hello.bytes);
  await join(client, server, flow);
  cut();
}

type Hello =
  | { readonly kind: "read"; readonly bytes: Buffer }
  | { readonly kind: "refused"; readonly reason: "server_name" | "protocol"; readonly answer: Answer }
  | { readonly kind: "gone" };

async function readHello(client: Duplex, head: Buffer, destination: Destination): Promise<Hello> {
  let bytes = head;
  const deadline = AbortSignal.timeout(LIMITS.egressHelloMs);
  for (let pieces = 0; ; pieces++) {
    const found = readServerName(bytes);
    if (found.kind === "refused") return protocol(destination, found.why);
    if (found.kind === "read") return judge(destination, found.name, bytes);
    if (pieces >= LIMITS.egressHelloPieces) return protocol(destination, "its first TLS message comes in too many pieces");
    const more = await nextChunk(client, deadline);
    if (more === "late") return protocol(destination, `no TLS began within ${LIMITS.egressHelloMs / 1000} seconds`);
    if (more === null) return { kind: "gone" };
    bytes = bytes.length === 0 ? more : Buffer.concat([bytes, more]);
  }
}

function judge(destination: Destination, name: string | null, bytes: Buffer): Hello {
  const { host, address } = destination;
  // Addresses are not named in TLS.
  if (address !== null ? name === null : name !== null && normalHost(name) === host) return { kind: "read", bytes };
  const said = name === null ? "names no server" : `names the server ${JSON.stringify(name.slice(0, 255))}`;
  return { kind: "refused", reason: "server_name", answer: { status: 403, reason: `the tunnel is for ${authority(destination)}, but its TLS ${said}`, hint: HOW_TO_ALLOW } };
}

function protocol(destination: Destination, why: string): Hello {
  return { kind: "refused", reason: "protocol", answer: { status: 403, reason: `the tunnel to ${authority(destination)} is for TLS: ${why}`, hint: "Plain HTTP goes through the proxy without a tunnel: GET http://HOST/PATH." } };
}

function nextChunk(client: Duplex, deadline: AbortSignal): Promise<Buffer | null | "late"> {
  return new Promise((resolve) => {
    const done = (result: Buffer | null | "late"): void => {
      deadline.removeEventListener("abort", onLate);
      client.off("data", onData).off("end", onEnd).off("close", onEnd).pause();
      resolve(result);
    };
    const onData = (chunk: Buffer): void => done(chunk);
    const onEnd = (): void => done(null);
    const onLate = (): void => done("late");
    deadline.addEventListener("abort", onLate);
    client.on("data", onData).on("end", onEnd).on("close", onEnd).resume();
    if (deadline.aborted) onLate();
    else if (client.destroyed) onEnd();
  });
}

/** Both ways until both are over, or one breaks. Each side is read only as fast as the other takes it. */
function join(client: Duplex, server: Socket, flow: Flow): Promise<void> {
  return new Promise((resolve) => {
    for (const side of [client, server]) side.on("error", () => resolve()).on("close", () => resolve());
    client.on("data", (chunk: Buffer) => flow.sent(chunk.length));
    server.on("data", (chunk: Buffer) => flow.received(chunk.length));
    client.pipe(server);
    server.pipe(client);
  });
}
