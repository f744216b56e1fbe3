/** The machines that work for runs of this server's own process. A reader of a data directory has none. */
import { isId } from "../../../core/ids.ts";
import { endpoint, type AnyEndpoint } from "../../endpoint.ts";
import { pageSchema } from "../contract/common.ts";
import { runMachinesSchema, type RunMachine, type RunMachines } from "../contract/updates.ts";
import type { ReadContext } from "../http.ts";

export function machineEndpoint({ library, backend }: ReadContext): AnyEndpoint {
  return endpoint({
    method: "GET",
    path: "/v1/machines",
    id: "listMachines",
    summary: "Machines that work for rollouts of this server, oldest first, and what they use",
    query: pageSchema,
    responses: { 200: { description: "A page of machines", schema: runMachinesSchema } },
    handle: async ({ query: { offset, limit } }): Promise<RunMachines> => {
      const all = (await backend.list()).filter(({ labels }) => labels["run"] !== undefined).toSorted((a, b) => a.createdAt - b.createdAt);
      const machines = await Promise.all(
        all.slice(offset, offset + limit).map(async ({ id, labels, createdAt, state }): Promise<RunMachine> => {
          // One that ends meanwhile has nothing to say.
          const used = await backend.get(id)?.metrics().catch(() => null);
          const run = labels["run"] ?? "";
          const rollout = labels["rollout"] ?? null;
          const known = rollout !== null && isId("run", run) && isId("ro", rollout) ? library.known(run)?.state.rollouts.get(rollout) : undefined;
          return { sandbox: id, run, rollout, task: known?.task.name ?? null, createdAt, state, cpuMs: used?.cpuMs ?? null, memoryBytes: used?.memoryBytes ?? null, pids: used?.pids ?? null };
        }),
      );
      return { machines, total: all.length };
    },
  });
}
