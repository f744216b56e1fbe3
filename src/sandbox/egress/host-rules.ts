/**
 * The list of an `allowlist` network: which names, and which addresses, a machine may ask for, and at which ports.
 *
 *   example.com          that name, ports 80 and 443
 *   *.example.com        every name below it, not itself
 *   example.com:8443     that port instead; `:*` is every port
 *   *                    every name, and every address of the internet
 *   203.0.113.7, 10.2.0.0/16, [2001:db8::1]:8443
 *                        these addresses, where a client asks for them; and what listed names may lead to although it is private
 */
import { isIPv6 } from "node:net";
import { domainToASCII } from "node:url";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { contains, parseRange, specialRange, type Address, type Range } from "./addresses.ts";

/** Ports of a rule that names none. */
const WEB_PORTS: readonly number[] = [80, 443];

export type HostRule = { readonly text: string; readonly ports: readonly number[] | "any" } & (
  | { readonly kind: "any" }
  | { readonly kind: "name"; readonly name: string }
  /** `name` begins with a dot. */
  | { readonly kind: "below"; readonly name: string }
  | { readonly kind: "range"; readonly range: Range }
);

export class HostRules {
  readonly rules: readonly HostRule[];

  constructor(rules: readonly HostRule[]) {
    this.rules = rules;
  }

  get texts(): readonly string[] {
    return this.rules.map(({ text }) => text);
  }

  /** `name` as `normalHost` writes it. */
  admitsName(name: string, port: number): boolean {
    return this.rules.some((rule) => hasPort(rule, port) && (rule.kind === "any" || (rule.kind === "name" && rule.name === name) || (rule.kind === "below" && name.endsWith(rule.name) && name.length > rule.name.length)));
  }

  /** Asked for as an address. */
  admitsAddress(address: Address, port: number): boolean {
    return this.rules.some((rule) => hasPort(rule, port) && (rule.kind === "any" || (rule.kind === "range" && contains(rule.range, address)))) && (specialRange(address) === null || this.namesAddress(address, port));
  }

  /** Whether an entry means this very part of the address space, and not the internet of which it is no part: `0.0.0.0/0` does not name 10.0.0.1, `10.0.0.0/8` does. */
  namesAddress(address: Address, port: number): boolean {
    const least = specialRange(address)?.range.prefix ?? (address.family === 4 ? 32 : 128);
    return this.rules.some((rule) => rule.kind === "range" && hasPort(rule, port) && rule.range.prefix >= least && contains(rule.range, address));
  }
}

/** Throws `invalid_input`, naming the entry and what one looks like. */
export function parseHostRules(list: readonly string[]): HostRules {
  if (list.length > LIMITS.allowedHosts) throw new MwError("invalid_input", `the list of allowed hosts has ${list.length} entries; ${LIMITS.allowedHosts} are the most`);
  return new HostRules(list.map(parseHostRule));
}

/** Throws `invalid_input`. */
export function parseHostRule(text: string): HostRule {
  const given = text.trim();
  const invalid = (why: string): MwError =>
    new MwError("invalid_input", `the allowed host ${JSON.stringify(text.slice(0, 300))} ${why}`, { fix: "write example.com, *.example.com, example.com:8443, an address or a range such as 10.2.0.0/16; no scheme, no path" });
  if (given === "" || given.length > 300) throw invalid("is none");
  if (given.includes("://")) throw invalid("is a URL");
  const bare = parseRange(given);
  if (bare !== null) return { text: given, kind: "range", range: bare, ports: WEB_PORTS };
  const { host, ports } = splitPort(given, invalid);
  if (host === "*") return { text: given, kind: "any", ports };
  const range = parseRange(host.replace(/^\[(.*)\]$/, "$1"));
  if (range !== null && (range.base.family === 4 || host.startsWith("["))) return { text: given, kind: "range", range, ports };
  if (/[/\s@?#%[\]]/.test(host)) throw invalid(/^[\d.:a-f[\]]+\/\d+$/i.test(host) ? "is no range: bits below its prefix are set, or the prefix is too long" : "has characters that host names do not have");
  const below = host.startsWith("*.");
  const name = normalHost(below ? host.slice(2) : host);
  if (name === null || name.includes("*")) throw invalid("is no host name");
  if (parseRange(name) !== null) throw invalid(`is an odd spelling of ${name}`);
  return below ? { text: given, kind: "below", name: `.${name}`, ports } : { text: given, kind: "name", name, ports };
}

/** Lower case, in ASCII, without the dot at its end; a number or another spelling of an IPv4 address is that address. Null for what is no host name. */
export function normalHost(host: string): string | null {
  const ascii = domainToASCII(host.replace(/\.$/, ""));
  if (ascii === "" || ascii.length > 253 || ascii.endsWith(".") || ascii.startsWith(".") || ascii.includes("..")) return null;
  return ascii.split(".").every((label) => label.length <= 63) ? ascii : null;
}

function splitPort(text: string, invalid: (why: string) => MwError): { readonly host: string; readonly ports: HostRule["ports"] } {
  const at = text.lastIndexOf(":");
  if (at < 0 || text.endsWith("]") || isIPv6(text)) return { host: text, ports: WEB_PORTS };
  const port = text.slice(at + 1);
  if (port === "*") return { host: text.slice(0, at), ports: "any" };
  const number = /^\d{1,5}$/.test(port) ? Number(port) : 0;
  if (number < 1 || number > 65_535) throw invalid(`has the port ${JSON.stringify(port)}, which is none: 1 to 65535, or *`);
  return { host: text.slice(0, at), ports: [number] };
}

function hasPort({ ports }: HostRule, port: number): boolean {
  return ports === "any" || ports.includes(port);
}
