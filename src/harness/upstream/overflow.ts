import { readOverflow } from "../../gateway/upstreams/overflow.ts";

/** True for the error body of a context overflow. `status`: of the HTTP response; only errors can be one. */
export function isContextOverflow(status: number, body: string): boolean {
  return readOverflow(status, body) !== null;
}
