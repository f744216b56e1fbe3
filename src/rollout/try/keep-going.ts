/** What lets another controller go on with the agent of a try: the record of its process, or the continuity of its loop, with checkpoints or in the living machine. */
import { newId, type RolloutId } from "../../core/ids.ts";
import type { HarnessContext } from "../../harness/harness.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { Checkpointer } from "../checkpoint/checkpointer.ts";
import type { RunEvent } from "../events.ts";
import { AgentRecord, forgetAgent, type AgentFacts } from "../take-over/agent-record.ts";
import { loopPoint } from "../take-over/loop-point.ts";
import { LoopRecord } from "../take-over/loop-record.ts";
import { isHandedOver, keepsCheckpoints, type TryRequest, type TryServices } from "./request.ts";

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;
/** Of a try, which names itself. */
export type OwnEvent = DistributiveOmit<Extract<RunEvent, { readonly rollout: RolloutId }>, "rollout" | "try">;

interface AtWork {
  readonly sandbox: Sandbox;
  /** Of the agent's session; null: it has none. */
  readonly token: string | null;
  /** CPU time of the machine before the agent. */
  readonly cpuBefore: number | null;
  /** Left to the agent. */
  readonly timeMs: number;
  /** Of the agent until now. */
  readonly agentMs: () => number;
  readonly signal: AbortSignal;
  readonly emit: (event: OwnEvent) => Promise<void>;
}

export interface KeptGoing {
  readonly context: Pick<HarnessContext, "handover" | "continuity">;
  /** Another controller may go on with the try. */
  readonly isHandedOver: boolean;
  /** The try is over: nobody will. */
  over(): Promise<void>;
}

/** Rejects `HandoverLost` for a loop that cannot be gone on with. */
export async function keepGoing(services: TryServices, request: TryRequest, work: AtWork): Promise<KeptGoing> {
  const { runtime } = services;
  const { handoverDirectory: directory, survivor, harness } = request;
  const { sandbox, token, cpuBefore, timeMs, agentMs } = work;
  const handed = token !== null && isHandedOver(services, request);
  const endsAt = runtime.now() + timeMs;
  const facts = (at: number): AgentFacts => ({ format: 1, try: request.try, sandbox: sandbox.id, exec, token: token ?? "", at, endsAt, cpuMs: cpuBefore });
  const exec = newId("ex", runtime);
  if (handed && harness.handedOver === true) {
    const handover = survivor === null ? await AgentRecord.make(directory, exec, () => facts(runtime.now())) : await AgentRecord.takeUp(directory, survivor.facts);
    return { context: { handover }, isHandedOver: true, over: () => handover.remove() };
  }
  if (!handed && !keepsCheckpoints(services, request)) return { context: {}, isHandedOver: false, over: () => Promise.resolve() };
  const loop = handed ? await loopRecord(request, sandbox, () => runtime.now(), () => facts(runtime.now() - Math.round(agentMs()))) : null;
  return { context: { continuity: checkpointer(services, request, work, loop) }, isHandedOver: handed, over: async () => await loop?.remove() };
}

/** Of a try whose agent has ended under an earlier controller. */
export function keptOver(directory: string): KeptGoing {
  return { context: {}, isHandedOver: true, over: () => forgetAgent(directory) };
}

async function loopRecord({ handoverDirectory, survivor }: TryRequest, sandbox: Sandbox, now: () => number, facts: () => AgentFacts): Promise<LoopRecord> {
  if (survivor === null) return await LoopRecord.make(handoverDirectory, sandbox, now, facts);
  return await LoopRecord.takeUp(handoverDirectory, sandbox, now, survivor.facts, survivor.turn?.acting === true);
}

function checkpointer({ runtime, backend, checkpointEveryMs }: TryServices, { run, rollout, branchTurn, recorder, restored, survivor }: TryRequest, { sandbox, agentMs, signal, emit }: AtWork, loop: LoopRecord | null): Checkpointer {
  const { network = "none", services = [], root } = sandbox.spec;
  return new Checkpointer({
    rule: { everyMs: checkpointEveryMs, branchTurn },
    sandbox,
    recorder,
    runtime,
    image: root.digest,
    labels: { run, rollout },
    memory: sandbox.spec.checkpointable === true,
    reachesOut: network !== "none" || services.length > 0,
    restored,
    living: survivor === null ? null : { point: loopPoint(survivor.turn, survivor.earlier), checkpoint: survivor.checkpoint },
    loop,
    agentMs,
    record: (taken) => emit({ type: "rollout_checkpointed", ...taken }),
    removeSnapshot: (snapshot) => backend.snapshots.remove(snapshot),
    signal,
  });
}
