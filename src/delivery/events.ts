/** What happens to a run of delivery, as it stands in its log. The state is a fold over these; see `state.ts`. */
import { MwError } from "../core/errors.ts";
import type { LogEvent } from "../store/event-log.ts";
import type { DeliveryCheckpoint, FAILURE_CLASSES, GroupFacts, GroupSubmission, TerminalOutcome } from "./contract.ts";
import type { PolicyState } from "./worker.ts";

export type FailureClass = (typeof FAILURE_CLASSES)[number];

export interface MemberFailure {
  readonly class: FailureClass;
  readonly code: string;
  readonly permanent: boolean;
}

export type DeliveryEvent =
  /** `hash`: of the submission, to tell the same from another under its name. `draw`: which draw of the part of the mix it was. */
  | { readonly type: "accepted"; readonly spec: GroupSubmission; readonly hash: string; readonly family: string; readonly name: string; readonly digest: string | null; readonly dataset: string | null; readonly draw: number | null }
  /** `version`: of the policy, no token of the group is older. */
  | { readonly type: "begun"; readonly id: string; readonly version: number }
  | { readonly type: "member_failed"; readonly id: string; readonly member: number; readonly attempt: number; readonly failure: MemberFailure; readonly replaced: boolean }
  /** The group's file is there; `sum` is its CRC-32, `reward` the mean over its usable members, `cutMs` how long each member had run that was cut off. */
  | { readonly type: "ready"; readonly id: string; readonly facts: GroupFacts; readonly sum: number; readonly reward: number | null; readonly cutMs: readonly number[] }
  | { readonly type: "leased"; readonly lease: string; readonly consumer: string; readonly ids: readonly string[]; readonly expiresAt: number }
  | { readonly type: "extended"; readonly lease: string; readonly expiresAt: number }
  /** What is still in the lease goes back. */
  | { readonly type: "lease_over"; readonly lease: string }
  | {
      readonly type: "terminal";
      /** Line of the terminal log, from 1. */
      readonly seq: number;
      readonly id: string;
      readonly outcome: TerminalOutcome;
      readonly reason: string | null;
      readonly facts: GroupFacts;
      readonly consumer: string | null;
      readonly lease: string | null;
      readonly trained_version: number | null;
      readonly step: number | null;
      readonly checkpoint: string | null;
    }
  /** The task cannot be run here, so it is not drawn again. */
  | { readonly type: "quarantined"; readonly task: string }
  | { readonly type: "policy"; readonly policy: PolicyState }
  | { readonly type: "checkpoint"; readonly checkpoint: DeliveryCheckpoint }
  /** Followed by a terminal `restored` for each group that is deliverable again. */
  | { readonly type: "restored"; readonly checkpoint: DeliveryCheckpoint }
  | { readonly type: "run"; readonly state: "draining" | "finished" | "failed" | "closed"; readonly reason: string | null };

/** Shapes of events, all of them still as they were first. */
const VERSION = 1;

export function toLogEvent(event: DeliveryEvent): LogEvent {
  return { v: VERSION, ...event };
}

/** The checksum of its line says that it is one of ours. */
export function fromLogEvent(event: LogEvent): DeliveryEvent {
  if (event.v !== VERSION) throw new MwError("unsupported", `the log has an event ${event.type} of shape ${event.v}, which this version does not know`, { fix: "open the run with the version of mw that wrote it" });
  return event as unknown as DeliveryEvent;
}
