/**
 * Whose process is at the other end of a loopback connection: the kernel lists every TCP socket with the user that made it. The peer's socket is the one whose local address is our
 * remote one. Only an established socket that still belongs to a process counts: one that its process has closed is listed as root's.
 */
import { readFileSync } from "node:fs";
import type { Socket } from "node:net";

const ESTABLISHED = "01";

/** Null when it cannot be told: no loopback connection, or gone already. */
export function userOfPeer(socket: Socket): number | null {
  const { remoteAddress, remotePort, localAddress, localPort } = socket;
  if (remoteAddress === undefined || remotePort === undefined || localAddress === undefined || localPort === undefined) return null;
  if (!isLoopback(remoteAddress) || !isLoopback(localAddress)) return null;
  const v4 = isV4(remoteAddress) ? remoteAddress.replace(/^::ffff:/, "") : null;
  const to = isV4(localAddress) ? localAddress.replace(/^::ffff:/, "") : null;
  // A client may reach a socket for both families from either: as the kernel lists the client's own end.
  const candidates = v4 === null || to === null ? [["/proc/net/tcp6", hexV6(remoteAddress), hexV6(localAddress)]] : [["/proc/net/tcp", hexV4(v4), hexV4(to)], ["/proc/net/tcp6", hexMapped(v4), hexMapped(to)]];
  for (const [file = "", from, target] of candidates) {
    const user = find(file, `${from}:${hexPort(remotePort)}`, `${target}:${hexPort(localPort)}`);
    if (user !== null) return user;
  }
  return null;
}

export function isLoopback(address: string): boolean {
  return address === "::1" || /^(::ffff:)?127\.\d+\.\d+\.\d+$/.test(address);
}

function find(file: string, local: string, remote: string): number | null {
  let table;
  try {
    table = readFileSync(file, "latin1");
  } catch {
    return null;
  }
  const at = table.indexOf(` ${local} ${remote} `);
  if (at < 0) return null;
  const end = table.indexOf("\n", at);
  // local, remote, state, queues, timer, retransmissions, user, timeout, inode
  const fields = table.slice(at, end < 0 ? undefined : end).trim().split(/\s+/);
  const [user, inode] = [fields[6], fields[8]];
  return fields[2] === ESTABLISHED && user !== undefined && inode !== undefined && inode !== "0" ? Number(user) : null;
}

function isV4(address: string): boolean {
  return address.includes(".");
}

/** The kernel prints each 32-bit word as this machine stores it. */
const LITTLE = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

function word(bytes: readonly number[]): string {
  return (LITTLE ? bytes.toReversed() : bytes).map((byte) => byte.toString(16).padStart(2, "0")).join("").toUpperCase();
}

function hexV4(address: string): string {
  return word(address.split(".").map(Number));
}

function hexMapped(address: string): string {
  return `${word([0, 0, 0, 0])}${word([0, 0, 0, 0])}${word([0, 0, 0xff, 0xff])}${hexV4(address)}`;
}

/** Of the only loopback address that there is. */
function hexV6(_address: string): string {
  return `${"0".repeat(24)}${word([0, 0, 0, 1])}`;
}

function hexPort(port: number): string {
  return port.toString(16).padStart(4, "0").toUpperCase();
}
