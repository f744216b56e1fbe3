/**
 * Whether a further group may begin.
 *
 * By admission: groups begun and not yet consumed, with all that were consumed, are never more than (S + v + 1) * B, where S is the staleness that is allowed, v how many versions
 * the trainer has made in this run and B how many groups make one. What is begun can then be consumed in time even if everything begun before it goes first. (The rule of AReaL and
 * SkyRL; groups that end without being consumed give their place back.)
 *
 * By bytes: what is ready may not outgrow its bound, counted with what is running as if it were as large as groups have been so far. A bound smaller than one group still lets one through.
 */
import type { DeliveryState } from "./state.ts";

export function whyNotBegin(state: DeliveryState): "policy" | "staleness" | "bytes" | null {
  const { request, counts, policy } = state;
  if (policy === null) return "policy";
  if (request.admission === "by_admission" && counts.consumed + state.inFlight + 1 > slotsAt(state, policy.version)) return "staleness";
  const size = state.everReady === 0 ? 0 : state.everBytes / state.everReady;
  if (state.inFlight > 0 && state.readyBytes + (counts.running + 1) * size > request.credits.bytes) return "bytes";
  return null;
}

/** How many groups may have been consumed when one that was begun at `version` is: it is one of so many. */
export function slotsAt({ request, firstVersion }: DeliveryState, version: number): number {
  return (request.max_staleness + version - firstVersion + 1) * request.batch_groups;
}
