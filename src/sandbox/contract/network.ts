/** What a sandbox reaches: its network, the proxy of one with a list of hosts, and ports that lead to the controller. */

/**
 * `none`: loopback and declared services only. `allowlist`: the same, and a proxy for HTTP and HTTPS to the hosts of `SandboxSpec.allow`; there is no other way out. `public`:
 * user-mode networking to the outside, host loopback unreachable.
 */
export type NetworkMode = "none" | "allowlist" | "public";

/** Why the proxy of an `allowlist` network did not pass something on. */
export type RefusalReason =
  /** The destination is not in the list. */
  | "not_allowed"
  /** The name is, but it leads to an address inside the host's networks, which the list does not name. */
  | "address"
  /** TLS with another server than the one that the tunnel was asked for. */
  | "server_name"
  /** What came was no HTTP, no TLS, or in a form that could be read in two ways. */
  | "protocol"
  /** The sandbox has its share of connections already. */
  | "busy";

/** What was refused, by destination and reason. */
export interface EgressRefusal {
  readonly reason: RefusalReason;
  /** As the proxy understood it: lower case, in ASCII. Empty where it understood none. */
  readonly host: string;
  readonly port: number | null;
  /** For people: what was asked, and why not. */
  readonly message: string;
  readonly count: number;
  /** Milliseconds since the epoch. */
  readonly firstAt: number;
  readonly lastAt: number;
}

export interface EgressReport {
  /** The list as it is now. */
  readonly allow: readonly string[];
  /** Made to hosts outside, by request or tunnel. */
  readonly connections: number;
  readonly sentBytes: number;
  readonly receivedBytes: number;
  readonly refused: number;
  /** The first `LIMITS.egressRefusalsKept` destinations, each with its count; those beyond are in `refused` alone. */
  readonly refusals: readonly EgressRefusal[];
}

/** The way out of a sandbox with the network `allowlist`, on the host's side. */
export interface SandboxEgress {
  /** Replaces the list. What is open and no longer allowed ends. Throws `invalid_input` for an entry that is none. */
  allow(hosts: readonly string[]): void;
  report(): EgressReport;
  /** Called when a destination is refused for the first time, for as many as the report names. Returns what ends it. */
  onRefusal(listener: (refusal: EgressRefusal) => void): () => void;
}

/** A TCP port on the sandbox's loopback that the host side forwards to a unix socket of the controller. */
export interface Service {
  readonly port: number;
  /**
   * Absolute path of a listening unix socket on the host. Each forwarded connection starts with one line, `MW1 <sandbox id> <port>\n`, written by the
   * forwarder before any byte of the client: the listener says who is asking.
   */
  readonly target: string;
}
