/**
 * Rules for the way out, as the protocol has them, and the networks that we have. Names may be allowed where everything else is denied (`denyOut: ["0.0.0.0/0"]`, or no internet access): the original matches
 * them by `Host` and server name on ports 80 and 443, we by a proxy for the same. Rules by address would hold for every protocol there; here nothing could keep them, so they are refused.
 */
import { isIP } from "node:net";
import { MwError } from "../../core/errors.ts";
import { parseHostRule } from "../../sandbox/index.ts";

/** What the protocol's clients call ALL_TRAFFIC. */
export const ALL_TRAFFIC = "0.0.0.0/0";

export interface EgressWish {
  readonly allow_internet_access?: boolean | null | undefined;
  readonly network?: { readonly allowOut?: readonly string[] | undefined; readonly denyOut?: readonly string[] | undefined } | null | undefined;
}

/** What is asked for. `null`: nothing is said of the way out. Throws `invalid_input` for what cannot be kept. */
export function egressOf({ allow_internet_access: access, network }: EgressWish): { readonly network: "none" } | { readonly network: "allowlist"; readonly allow: readonly string[] } | { readonly network: "public" } | null {
  const { allowOut = [], denyOut = [] } = network ?? {};
  const odd = denyOut.find((entry) => entry !== ALL_TRAFFIC && entry !== "::/0");
  if (odd !== undefined) throw new MwError("invalid_input", `network.denyOut: ${JSON.stringify(odd.slice(0, 300))} cannot be denied by itself: only everything can (${JSON.stringify(ALL_TRAFFIC)})`);
  for (const entry of allowOut) checkName(entry);
  const denied = access === false || denyOut.includes(ALL_TRAFFIC);
  if (allowOut.length > 0 && !denied) throw new MwError("invalid_input", `network.allowOut is only of use where everything else is denied: add denyOut: [${JSON.stringify(ALL_TRAFFIC)}]`);
  if (allowOut.length > 0) return { network: "allowlist", allow: allowOut };
  if (denied) return { network: "none" };
  return access === true ? { network: "public" } : null;
}

function checkName(entry: string): void {
  const rule = parseHostRule(entry);
  if (rule.kind === "range" || isIP(entry) !== 0) throw new MwError("invalid_input", `network.allowOut: ${JSON.stringify(entry)} is an address; names are taken, and reached over HTTP and HTTPS (example.com, *.example.com)`);
}

/** The network of sandboxes whose maker did not ask for one, as whoever runs the server has set it. Throws `usage`. */
export function defaultNetwork(env: Readonly<Record<string, string | undefined>>): { readonly network: "none" | "public" } | { readonly network: "allowlist"; readonly allow: readonly string[] } {
  const allow = (env["MW_E2B_ALLOW"] ?? "").split(/[\s,]+/).filter((entry) => entry !== "");
  const network = env["MW_E2B_NETWORK"] || (allow.length > 0 ? "allowlist" : "none");
  if (network !== "none" && network !== "public" && network !== "allowlist") throw new MwError("usage", `MW_E2B_NETWORK is ${JSON.stringify(network)}`, { fix: "it is none, allowlist or public" });
  if (network !== "allowlist" && allow.length > 0) throw new MwError("usage", `MW_E2B_ALLOW is given, but MW_E2B_NETWORK is ${network}`, { fix: "leave one of both out" });
  if (network !== "allowlist") return { network };
  if (allow.length === 0) throw new MwError("usage", "MW_E2B_NETWORK is allowlist, and MW_E2B_ALLOW names no host", { fix: 'list them in MW_E2B_ALLOW: "pypi.org, *.pythonhosted.org"' });
  return { network, allow: allow.map((entry) => parseHostRule(entry).text) };
}
