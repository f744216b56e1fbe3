/** Where a request wants to go, and whether it may: decided by the name, then by every address that the name leads to, on the host. What is connected to is what was checked. */
import { networkInterfaces } from "node:os";
import { LIMITS } from "../../core/limits.ts";
import type { RefusalReason } from "../sandbox.ts";
import { bitsOf, parseAddress, specialRange, type Address } from "./addresses.ts";
import { type HostRule, type HostRules, normalHost } from "./host-rules.ts";
import type { Resolve } from "./resolve.ts";

export interface Destination {
  /** As `normalHost` writes it; an IPv6 address without brackets. */
  readonly host: string;
  readonly port: number;
  /** Of a destination that was given as an address, in whatever spelling. */
  readonly address: Address | null;
}

export type Decision =
  | { readonly kind: "admitted"; readonly addresses: readonly string[] }
  | { readonly kind: "refused"; readonly reason: RefusalReason; readonly message: string }
  /** Allowed, but there is no such thing, or nobody could say. */
  | { readonly kind: "unknown"; readonly message: string };

/** `HOST`, `HOST:PORT` or `[IPV6]:PORT`, nothing else; null for what is none. */
export function parseAuthority(text: string, defaultPort: number | null): Destination | null {
  const match = /^(?:\[([0-9a-f:.]{2,45})\]|([\w.-]{1,255}))(?::(\d{1,5}))?$/i.exec(text);
  const port = match?.[3] === undefined ? defaultPort : Number(match[3]);
  if (match === null || port === null || port < 1 || port > 65_535) return null;
  const [, six, name] = match;
  if (six !== undefined) {
    const address = parseAddress(six);
    return address === null ? null : { host: six.toLowerCase(), port, address };
  }
  const host = normalHost(name ?? "");
  return host === null ? null : { host, port, address: parseAddress(host) };
}

/** `host:port` as URLs have it. */
export function authority({ host, port }: Pick<Destination, "host" | "port">, defaultPort: number | null = null): string {
  const name = host.includes(":") ? `[${host}]` : host;
  return port === defaultPort ? name : `${name}:${port}`;
}

/** Whether rules admit what is connected already; `address` is null before that. */
export function admits(rules: HostRules, destination: Destination, address: string | null): boolean {
  const { host, port } = destination;
  if (destination.address !== null) return rules.admitsAddress(destination.address, port);
  return rules.admitsName(host, port) && (address === null || mayLeadTo(rules, address, port) === null);
}

export async function decide(rules: HostRules, destination: Destination, resolve: Resolve): Promise<Decision> {
  const { host, port, address } = destination;
  if (address !== null) {
    if (!rules.admitsAddress(address, port)) return { kind: "refused", reason: "not_allowed", message: `${authority(destination)} is not in the list of allowed hosts${describe(address)}` };
    return isOwn(host) && !rules.namesAddress(address, port) ? { kind: "refused", reason: "address", message: `${host} is the host of this sandbox` } : { kind: "admitted", addresses: [host] };
  }
  // Names that are not allowed are not looked up: a question to a name server is a message to whoever runs it.
  if (!rules.admitsName(host, port)) return { kind: "refused", reason: "not_allowed", message: `${authority(destination)} is not in the list of allowed hosts` };
  let found: readonly string[];
  try {
    found = await resolve(host);
  } catch (error) {
    return { kind: "unknown", message: `the address of ${host} could not be found out (${error instanceof Error && "code" in error ? String(error.code) : "no answer"})` };
  }
  if (found.length === 0) return { kind: "unknown", message: `${host} has no address` };
  const addresses = found.filter((candidate) => mayLeadTo(rules, candidate, port) === null);
  const [first = ""] = found;
  if (addresses.length === 0) return { kind: "refused", reason: "address", message: `${host} leads to ${first}, ${mayLeadTo(rules, first, port)}: it is not in the list of allowed hosts` };
  return { kind: "admitted", addresses: addresses.slice(0, LIMITS.egressAddresses) };
}

/** What a rule opens although it is no part of the internet; null for a rule that opens nothing of that kind. */
export function innerReach(rule: HostRule): string | null {
  if (rule.kind !== "range") return null;
  const { base, prefix } = rule.range;
  const special = specialRange(base);
  // As in `namesAddress`: a range names what is special only where it lies inside.
  if (special !== null) return prefix >= special.range.prefix ? special.what : null;
  return prefix === bitsOf(base) && isOwnAddress(base) ? "the server's host" : null;
}

/** Why an allowed name may not lead there; null when it may. */
function mayLeadTo(rules: HostRules, text: string, port: number): string | null {
  const address = parseAddress(text);
  if (address === null) return "which is no address";
  const what = specialRange(address)?.what ?? (isOwn(text) ? "the host of this sandbox" : null);
  return what === null || rules.namesAddress(address, port) ? null : what;
}

/** What listens on the host is meant for its neighbours, not for its machines. */
function isOwn(text: string): boolean {
  const address = parseAddress(text);
  return address !== null && isOwnAddress(address);
}

function isOwnAddress(address: Address): boolean {
  return Object.values(networkInterfaces()).some((entries) =>
    entries?.some((entry) => {
      const own = parseAddress(entry.address.split("%")[0] ?? "");
      return own !== null && own.family === address.family && own.value === address.value;
    }),
  );
}

function describe(address: Address): string {
  const special = specialRange(address);
  return special === null ? "" : ` (${special.what})`;
}
