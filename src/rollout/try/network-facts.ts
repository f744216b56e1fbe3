/** What a run's log says of a machine's network. */
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { agentNetwork, type NetworkOverride, type PhaseNetwork } from "../../task/network.ts";
import type { Task } from "../../task/task.ts";
import type { EgressFacts } from "../events.ts";

export function networkFacts(sandbox: Sandbox, task: Task, networkOverride: NetworkOverride): { readonly network: string; readonly allow?: readonly string[]; readonly networkDeclared?: string } {
  const declared = agentNetwork(task, task.steps[0] ?? null, {});
  const isDeclared = JSON.stringify(declared) === JSON.stringify(agentNetwork(task, task.steps[0] ?? null, networkOverride));
  const { egress, spec } = sandbox;
  return { network: spec.network ?? "none", ...(egress === undefined ? {} : { allow: egress.report().allow }), ...(isDeclared ? {} : { networkDeclared: describeNetwork(declared) }) };
}

export function egressFacts({ egress }: Sandbox): { readonly egress?: EgressFacts } {
  if (egress === undefined) return {};
  const { connections, sentBytes, receivedBytes, refused, refusals } = egress.report();
  return { egress: { connections, sentBytes, receivedBytes, refused, refusals: refusals.map(({ host, port, reason, count }) => ({ host, port, reason, count })) } };
}

export function describeNetwork({ mode, allow }: PhaseNetwork): string {
  return mode === "allowlist" ? `allowlist ${allow.join(" ")}`.trim() : mode;
}
