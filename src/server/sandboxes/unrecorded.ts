/** Machines that outlived a server and are nobody's: of rollouts that begin again, of builds, of creations that nobody was told of. */
import { messageOf } from "../../core/errors.ts";
import type { SandboxBackend } from "../../sandbox/sandbox.ts";
import { DurableRecords } from "./durable-records.ts";

/** Ends them, before anything is made that is not recorded either. `claimed`: those in which rollouts go on. */
export async function endUnrecorded(home: string, backend: SandboxBackend, claimed: readonly string[], log: (line: string) => void): Promise<void> {
  const recorded = new Set<string>([...claimed, ...(await new DurableRecords(home).all(log)).map(({ facts }) => facts.id)]);
  const others = (await backend.list()).filter(({ id }) => !recorded.has(id));
  const sealed = [...(backend.sealed?.values() ?? [])].filter(({ id }) => !claimed.includes(id));
  await Promise.all([...others.map(({ id }) => backend.get(id)), ...sealed].map(async (machine) => machine?.kill().catch((error: unknown) => log(`ending ${machine.id}: ${messageOf(error)}`))));
}
