/** What a watchdog wants to know of a run. */
import type { DeliveryStatus } from "./contract.ts";
import type { Engine } from "./engine.ts";
import type { DeliveryState } from "./state.ts";

export function statusOf(name: string, state: DeliveryState, engine: Pick<Engine, "running" | "waitingFor">): DeliveryStatus {
  const { policy, counts, parts } = state;
  return {
    run: state.run,
    name,
    epoch: state.epoch,
    state: state.runState,
    reason: state.reason,
    policy: policy === null ? { version: null, state: "none", model: null } : { version: policy.version, state: policy.state, model: policy.model },
    groups: { ...counts },
    rollouts: { running: engine.running, ended: state.rolloutsEnded },
    ready_bytes: state.readyBytes,
    credits: state.credits,
    oldest_ready_at: oldestReady(state),
    last_progress_at: state.lastProgressAt,
    failures: { ...state.failures },
    stragglers: { ...state.stragglers },
    waiting_for: engine.waitingFor,
    datasets: Object.fromEntries([...parts].map(([part, { begun, consumed, failed, rewardSum, rewards }]) => [part, { begun, consumed, failed, mean_reward: rewards === 0 ? null : rewardSum / rewards }])),
    quarantined: [...state.quarantined],
  };
}

function oldestReady(state: DeliveryState): number | null {
  let oldest: number | null = null;
  for (const { phase, facts } of state.groups.values()) if (phase === "ready" && facts !== null && (oldest === null || facts.ended_at < oldest)) oldest = facts.ended_at;
  return oldest;
}
