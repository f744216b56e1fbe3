/** Machines that outlived a server and are no client's: of its runs, which begin again from their checkpoints, of builds, of creations that nobody was told of. */
import { messageOf } from "../../core/errors.ts";
import type { SandboxBackend } from "../../sandbox/sandbox.ts";
import { DurableRecords } from "./durable-records.ts";

/** Ends them, before anything is made that is not recorded either. */
export async function endUnrecorded(home: string, backend: SandboxBackend, log: (line: string) => void): Promise<void> {
  const recorded = new Set((await new DurableRecords(home).all(log)).map(({ facts }) => facts.id));
  const others = (await backend.list()).filter(({ id }) => !recorded.has(id));
  await Promise.all(others.map(async ({ id }) => backend.get(id)?.kill().catch((error: unknown) => log(`ending ${id}: ${messageOf(error)}`))));
}
