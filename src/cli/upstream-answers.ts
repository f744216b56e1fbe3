/** Before the first of many rollouts: is there a server at all? */
import { connect } from "node:net";
import { MwError } from "../core/errors.ts";
import { parseUpstreamSpec } from "../gateway/upstreams/spec.ts";
import type { AppContext } from "./context.ts";

const CONNECT_MS = 3_000;

/** What certainly means that nobody is there. Anything else may pass, and each call tries again by itself. */
const NOBODY = new Set(["ECONNREFUSED", "ENOTFOUND"]);

/** `url`: of the upstream, with or without its kind. Rejects when no server can be reached: every rollout of the run would fail the same way, and count as done. */
export async function expectUpstream(url: string, env: AppContext["env"]): Promise<void> {
  // Through a proxy, names and ports are its business.
  if (Object.keys(env).some((name) => /^https?_proxy$/i.test(name) && env[name] !== "")) return;
  const { hostname, port, protocol } = new URL(parseUpstreamSpec(url, "the upstream").root);
  const why = await failureToConnect(hostname.replace(/^\[|\]$/g, ""), port === "" ? (protocol === "https:" ? 443 : 80) : Number(port));
  if (why !== null) throw new MwError("environment", `no model server answers at ${url}: ${why}`, { fix: "start the server, or correct --upstream" });
}

function failureToConnect(host: string, port: number): Promise<string | null> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: CONNECT_MS });
    const end = (why: string | null): void => {
      socket.destroy();
      resolve(why);
    };
    socket.once("connect", () => end(null));
    socket.once("timeout", () => end(null));
    socket.once("error", (error: NodeJS.ErrnoException) => {
      // A name with several addresses fails with all their errors in one.
      const codes = error instanceof AggregateError ? error.errors.map((one: NodeJS.ErrnoException) => one.code) : [error.code];
      end(codes.every((code) => code !== undefined && NOBODY.has(code)) ? codes.join(", ") : null);
    });
  });
}
