/** What every command in a sandbox finds in its environment, unless the command says otherwise. */
import type { SandboxSpec } from "./sandbox.ts";

/** Where the proxy of an `allowlist` network listens, on the sandbox's loopback. */
export const EGRESS_PORT = 3128;

/** The image's own, then what its network needs, then what the sandbox was asked to have. */
export function execEnvironment({ root, network, env }: Pick<SandboxSpec, "root" | "network" | "env">): Readonly<Record<string, string>> {
  return { ...root.env, ...(network === "allowlist" ? PROXY : {}), ...env };
}

const ADDRESS = `http://127.0.0.1:${EGRESS_PORT}`;
const DIRECT = "localhost,127.0.0.1,::1";
const PROXY: Readonly<Record<string, string>> = {
  // Programs agree neither on the case of these names nor on which of them they read.
  HTTP_PROXY: ADDRESS,
  http_proxy: ADDRESS,
  HTTPS_PROXY: ADDRESS,
  https_proxy: ADDRESS,
  NO_PROXY: DIRECT,
  no_proxy: DIRECT,
  // Node's own clients read the others only when told so (version 24 and later).
  NODE_USE_ENV_PROXY: "1",
};
