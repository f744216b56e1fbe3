/** The other end of a machine that another process holds: its init is reached directly, or through the holder where only that can; its life stays with the holder. */
import { MwError } from "../core/errors.ts";
import { systemRuntime } from "../core/runtime.ts";
import { connectMachine, type MachineClient } from "../sandbox/index.ts";
import type { HeldMachine } from "./held-machines.ts";

/** Rejects `sandbox_gone` when the machine has ended meanwhile. */
export async function attachHeld(machine: HeldMachine): Promise<MachineClient> {
  const { socket, env, user, workdir, filesProgram } = machine;
  if (machine.state === "paused") throw new MwError("sandbox_paused", `the sandbox ${machine.id} is paused`, { fix: `mw sandbox resume ${machine.id}` });
  return connectMachine(socket, { env, user, workdir }, systemRuntime, filesProgram ?? undefined);
}
