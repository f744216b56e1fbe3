/** Where a CLI finds its model: the rollout's session at the gateway, as it is seen from inside the sandbox. */
import type { SessionTotals } from "../../gateway/session.ts";

export interface ModelEndpoint {
  /** Without a path and a slash at the end: `http://127.0.0.1:PORT`, a service of the sandbox. The dialects' own paths follow it. */
  readonly baseUrl: string;
  /** Goes where the vendor's API key would be; worth nothing elsewhere. */
  readonly token: string;
  readonly model: string;
  /** The model's window; null where nobody knows it. */
  readonly contextTokens: number | null;
  /** What the gateway counted and saw fail so far; null where nothing counts. */
  totals(): SessionTotals | null;
}
