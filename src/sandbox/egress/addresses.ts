/**
 * Addresses as numbers, and which of them are not the internet: loopback, private, link-local (a cloud's metadata), and forms that hide such an address in another.
 * Sources: the IANA special-purpose address registries for IPv4 and IPv6.
 */
import { isIPv4, isIPv6 } from "node:net";

export interface Address {
  readonly family: 4 | 6;
  readonly value: bigint;
}

export interface Range {
  readonly base: Address;
  /** Leading bits that count, 0 to 32 or 128. */
  readonly prefix: number;
}

/** An address in its usual spelling, IPv6 without brackets; null for anything else. One that is IPv4 in the clothes of IPv6 (`::ffff:127.0.0.1`, NAT64) is that IPv4 address. */
export function parseAddress(text: string): Address | null {
  if (isIPv4(text)) return { family: 4, value: ipv4Value(text) };
  if (!isIPv6(text) || text.includes("%")) return null;
  return unwrap({ family: 6, value: ipv6Value(text) });
}

/** `ADDRESS` or `ADDRESS/PREFIX`; null for anything else, also when bits below the prefix are set. */
export function parseRange(text: string): Range | null {
  const [address = "", prefixText, ...more] = text.split("/");
  const base = parseAddress(address);
  if (base === null || more.length > 0) return null;
  const bits = bitsOf(base);
  if (prefixText === undefined) return { base, prefix: bits };
  const prefix = /^\d{1,3}$/.test(prefixText) ? Number(prefixText) : -1;
  // The prefix of a wrapped IPv4 address would count other bits than those of the address.
  if (prefix < 0 || prefix > bits || (base.family === 4) !== isIPv4(address)) return null;
  return (base.value & ((1n << BigInt(bits - prefix)) - 1n)) === 0n ? { base, prefix } : null;
}

export function contains({ base, prefix }: Range, address: Address): boolean {
  if (base.family !== address.family) return false;
  const shift = BigInt(bitsOf(base) - prefix);
  return base.value >> shift === address.value >> shift;
}

/** The special range that an address lies in, with its name for people; null for an address of the internet. */
export function specialRange(address: Address): { readonly range: Range; readonly what: string } | null {
  const found = (address.family === 4 ? SPECIAL_4 : SPECIAL_6).find(({ range }) => contains(range, address));
  if (found !== undefined) return found;
  return address.family === 6 && !contains(GLOBAL_6, address) ? { range: { base: address, prefix: 128 }, what: "a reserved address" } : null;
}

/** Not every range of an IPv4 address in IPv6 is known to the world's routers, but each is to some kernel. */
function unwrap(address: Address): Address {
  return WRAPPED.some((range) => contains(range, address)) ? { family: 4, value: address.value & 0xffff_ffffn } : address;
}

/** Length of an address. */
export function bitsOf({ family }: Address): number {
  return family === 4 ? 32 : 128;
}

function ipv4Value(text: string): bigint {
  return text.split(".").reduce((value, part) => (value << 8n) | BigInt(Number(part)), 0n);
}

function ipv6Value(text: string): bigint {
  const dotted = /^(.*:)(\d+\.\d+\.\d+\.\d+)$/.exec(text);
  const last = dotted === null ? 0n : ipv4Value(dotted[2] ?? "");
  const plain = dotted === null ? text : `${dotted[1] ?? ""}${(last >> 16n).toString(16)}:${(last & 0xffffn).toString(16)}`;
  const [left = "", right] = plain.split("::");
  const words = (part: string): string[] => (part === "" ? [] : part.split(":"));
  const after = words(right ?? "");
  const before = words(left);
  const all = [...before, ...Array.from({ length: 8 - before.length - after.length }, () => "0"), ...after];
  return all.reduce((value, word) => (value << 16n) | BigInt(Number.parseInt(word, 16)), 0n);
}

function range(family: 4 | 6, text: string): Range {
  const [address = "", prefix = ""] = text.split("/");
  return { base: { family, value: family === 4 ? ipv4Value(address) : ipv6Value(address) }, prefix: Number(prefix) };
}

const WRAPPED = ["::ffff:0:0/96", "64:ff9b::/96"].map((text) => range(6, text));
const GLOBAL_6 = range(6, "2000::/3");

const SPECIAL_4 = (
  [
    ["0.0.0.0/8", "this host"],
    ["10.0.0.0/8", "a private address"],
    ["100.64.0.0/10", "an address of a provider's own network"],
    ["127.0.0.0/8", "loopback"],
    ["169.254.0.0/16", "link-local, where clouds keep metadata and credentials"],
    ["172.16.0.0/12", "a private address"],
    ["192.0.0.0/24", "a reserved address"],
    ["192.0.2.0/24", "an address for documentation"],
    ["192.88.99.0/24", "a reserved address"],
    ["192.168.0.0/16", "a private address"],
    ["198.18.0.0/15", "an address for measurements"],
    ["198.51.100.0/24", "an address for documentation"],
    ["203.0.113.0/24", "an address for documentation"],
    ["224.0.0.0/4", "multicast"],
    ["240.0.0.0/4", "a reserved address"],
  ] as const
).map(([text, what]) => ({ range: range(4, text), what }));

const SPECIAL_6 = (
  [
    ["::/128", "this host"],
    ["::1/128", "loopback"],
    ["::/96", "a reserved address"],
    ["64:ff9b:1::/48", "a private address"],
    ["2001::/23", "a reserved address"],
    ["2001:db8::/32", "an address for documentation"],
    // 6to4 leads to whatever IPv4 address it holds.
    ["2002::/16", "a reserved address"],
    ["3fff::/20", "an address for documentation"],
    ["fc00::/7", "a private address"],
    ["fe80::/10", "link-local"],
    ["fec0::/10", "a private address"],
    ["ff00::/8", "multicast"],
  ] as const
).map(([text, what]) => ({ range: range(6, text), what }));
