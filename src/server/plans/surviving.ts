/** Machines that outlived a server, in which rollouts of the runs go on that it had under way. */
import { messageOf } from "../../core/errors.ts";
import { readRunConfig } from "../../rollout/run-config.ts";
import { loadRunState } from "../../rollout/run-state.ts";
import { Survivors } from "../../rollout/take-over/survivors.ts";
import type { SandboxBackend } from "../../sandbox/sandbox.ts";
import { Marks } from "./marks.ts";

export async function survivingMachines(home: string, backend: SandboxBackend, log: (line: string) => void): Promise<Pick<Survivors, "sandboxes" | "awaited">> {
  const found: Survivors[] = [];
  for (const { run } of await new Marks(home).all(log)) {
    try {
      if ((await readRunConfig(home, run)).takeOverSeconds === null) continue;
      found.push(await Survivors.find(home, await loadRunState(home, run), backend));
    } catch (error) {
      // One that had not begun, or that nobody can go on with: who resumes it is told.
      log(`${run}: nothing of it is taken over: ${messageOf(error)}`);
    }
  }
  return { sandboxes: found.flatMap(({ sandboxes }) => sandboxes), awaited: found.flatMap(({ awaited }) => awaited) };
}
