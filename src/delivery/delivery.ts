/**
 * One run as its trainer sees it, in this process; the HTTP routes are a thin skin over it.
 *
 * Promises: everything accepted ends in exactly one terminal record by its deadline; a group is delivered whole, at least once, and always with the same bytes; a lease comes
 * back within its waiting time and says when the run is dead; what was answered survives the death of the process.
 */
import type { SampleArrays } from "../rollout/samples/sample-row.ts";
import type {
  AckRequest,
  CancelRequest,
  DeliveredSampleFacts,
  DeliveryCheckpoint,
  DeliveryStatus,
  GroupFacts,
  GroupSubmission,
  LeaseHead,
  LeaseRequest,
  PolicyUpdate,
  TerminalRecord,
} from "./contract.ts";

export interface DeliveredSample {
  readonly facts: DeliveredSampleFacts;
  /** `versions` holds policy versions, not indices. */
  readonly arrays: SampleArrays;
}

export interface DeliveredGroup {
  readonly facts: GroupFacts;
  /** All of them usable; members that are not are counted in `facts.failures`. */
  readonly samples: readonly DeliveredSample[];
  /** The arrays of all samples behind one another; those of the samples are views of these. */
  readonly flat: SampleArrays;
}

export interface Lease {
  readonly head: LeaseHead;
  readonly groups: readonly DeliveredGroup[];
}

export interface SubmitResult {
  /** `accepted`: new; `known`: the same was accepted before. Nothing of a submission is accepted when one of it cannot be. */
  readonly groups: readonly { readonly group_id: string; readonly status: "accepted" | "known" }[];
  readonly credits: { readonly groups: number; readonly bytes: number };
}

export interface Delivery {
  readonly run: string;
  readonly name: string;
  /** Rejects `conflict` for a version below the current one, `usage` for the first update without model or endpoints. */
  setPolicy(update: PolicyUpdate): Promise<DeliveryStatus["policy"]>;
  /** Rejects `conflict` for a known name with other content, `overloaded` without credits, `invalid_task`, and `unsupported` for a quarantined task. */
  submit(groups: readonly GroupSubmission[]): Promise<SubmitResult>;
  lease(request: LeaseRequest, signal: AbortSignal): Promise<Lease>;
  /** Idempotent. Rejects `not_found` for a lease that is over: its groups may be with somebody else. */
  ack(lease: string, request: AckRequest): Promise<DeliveryStatus["credits"]>;
  extend(lease: string): Promise<{ readonly expires_at: number }>;
  cancel(request: CancelRequest): Promise<{ readonly cancelled: readonly string[] }>;
  terminal(after: number, limit: number): Promise<readonly TerminalRecord[]>;
  status(): DeliveryStatus;
  checkpoint(): Promise<DeliveryCheckpoint>;
  restore(checkpoint: DeliveryCheckpoint): Promise<DeliveryStatus>;
  /** Begins nothing more; `finish` resolves when everything has ended and been recorded, `close` ends it now and leaves the rest for a later process. */
  finish(): Promise<DeliveryStatus>;
  close(): Promise<void>;
}
