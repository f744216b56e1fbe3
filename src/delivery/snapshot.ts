/** The state as one JSON document, so that a long run opens without reading all of its log. */
import type { RunRequest } from "./contract.ts";
import { DeliveryState, type Group } from "./state.ts";

/** Raised when the document changes; one of another format is passed over, and the log is read from its beginning. */
const FORMAT = 1;

/** What stands in the state as it is. */
const SCALARS = [
  "policy",
  "firstVersion",
  "versionFloor",
  "runState",
  "reason",
  "accepted",
  "begun",
  "leaseCount",
  "terminalSeq",
  "digest",
  "readyBytes",
  "retainedBytes",
  "everReady",
  "everBytes",
  "deadStreak",
  "rolloutsEnded",
  "lastProgressAt",
  "checkpoints",
] as const satisfies readonly (keyof DeliveryState)[];

export interface Snapshot {
  readonly format: number;
  readonly run: string;
  readonly epoch: number;
  readonly scalars: Pick<DeliveryState, (typeof SCALARS)[number]>;
  readonly counts: DeliveryState["counts"];
  readonly failures: DeliveryState["failures"];
  readonly stragglers: DeliveryState["stragglers"];
  readonly parts: readonly [string, unknown][];
  readonly failing: readonly [string, number][];
  readonly quarantined: readonly string[];
  readonly known: readonly [string, string][];
  /** In the order of their acceptance, the retained ones last, in the order of their consumption. */
  readonly groups: readonly Group[];
  readonly leases: readonly { readonly id: string; readonly consumer: string; readonly expiresAt: number; readonly groups: readonly string[] }[];
  readonly endings: readonly [string, unknown][];
  readonly settled: readonly [string, readonly [string, string][]][];
}

export function takeSnapshot(state: DeliveryState): Snapshot {
  return {
    format: FORMAT,
    run: state.run,
    epoch: state.epoch,
    scalars: Object.fromEntries(SCALARS.map((name) => [name, state[name]])) as Snapshot["scalars"],
    counts: { ...state.counts },
    failures: { ...state.failures },
    stragglers: { ...state.stragglers },
    parts: [...state.parts],
    failing: [...state.failing],
    quarantined: [...state.quarantined],
    known: [...state.known],
    groups: [...[...state.groups.values()].filter((group) => group.phase !== "retained"), ...state.retained],
    leases: [...state.leases].map(([id, { consumer, expiresAt, groups }]) => ({ id, consumer, expiresAt, groups: [...groups].map((group) => group.id) })),
    endings: [...state.endings],
    settled: [...state.settled].map(([lease, groups]) => [lease, [...groups]]),
  };
}

/** Null when it is none of this run in this format. */
export function openSnapshot(snapshot: Snapshot, request: RunRequest, run: string, epoch: number): DeliveryState | null {
  if (snapshot.format !== FORMAT || snapshot.run !== run || snapshot.epoch !== epoch) return null;
  const state = new DeliveryState(request, run, epoch, 0);
  Object.assign(state, snapshot.scalars);
  Object.assign(state.counts, snapshot.counts);
  Object.assign(state.failures, snapshot.failures);
  Object.assign(state.stragglers, snapshot.stragglers);
  // What `takeSnapshot` wrote; the file carries a checksum.
  for (const [name, counts] of snapshot.parts) state.parts.set(name, counts as never);
  for (const [task, streak] of snapshot.failing) state.failing.set(task, streak);
  for (const task of snapshot.quarantined) state.quarantined.add(task);
  for (const [id, hash] of snapshot.known) state.known.set(id, hash);
  for (const group of snapshot.groups) {
    state.groups.set(group.id, group);
    if (group.phase === "retained") state.retained.add(group);
  }
  for (const { id, consumer, expiresAt, groups } of snapshot.leases) state.leases.set(id, { consumer, expiresAt, groups: new Set(groups.map((name) => state.group(name))) });
  for (const [id, ending] of snapshot.endings) state.endings.set(id, ending as never);
  for (const [lease, groups] of snapshot.settled) state.settled.set(lease, new Map(groups as [string, never][]));
  return state;
}
