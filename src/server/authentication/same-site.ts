/**
 * Requests without a key come from the same user, but a browser of that user carries pages of others: such a page may send requests here (cross-site), and its name may be made to
 * point here (DNS rebinding). Both show in headers that a page cannot set: `Host` then has the page's name, `Origin` and `Sec-Fetch-Site` say where the request comes from.
 */
import type { IncomingMessage } from "node:http";

/** Null when the request may count as this host's own; else what is wrong with it. */
export function foreignness({ headers }: IncomingMessage): string | null {
  const host = headers.host ?? "";
  if (!LOCAL_HOST.test(host)) return `it is sent to the host ${JSON.stringify(host.slice(0, 100))}`;
  if (headers.origin !== undefined && headers.origin !== `http://${host}`) return `it comes from the page ${JSON.stringify(headers.origin.slice(0, 100))}`;
  const site = headers["sec-fetch-site"];
  if (site !== undefined && site !== "same-origin" && site !== "none") return "it comes from the page of another site";
  return null;
}

const LOCAL_HOST = /^(localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(:\d{1,5})?$/i;
