/** Children of a fork: machines that stand on the layers of another, each of which is made or not. */
import { toMwError } from "../../../core/errors.ts";
import type { Runtime } from "../../../core/runtime.ts";
import type { ForkChild, ForkResult, SandboxSpec } from "../../sandbox.ts";
import { NO_HOLD, type Ground } from "./ground.ts";
import type { MachineContext } from "./machine-life.ts";

/** As its parent, but for what is one machine's alone. */
export function childSpec({ snapshot: _snapshot, workspace: _workspace, key: _key, hostname: _hostname, ...parent }: SandboxSpec, child: ForkChild): SandboxSpec {
  return { ...parent, ...child, env: { ...parent.env, ...child.env } };
}

export function makeChildren(context: MachineContext, specs: readonly SandboxSpec[], on: Pick<Ground, "workspace" | "memoryLayers" | "diskLayers" | "processes">): Promise<readonly ForkResult[]> {
  const make = async (spec: SandboxSpec): Promise<ForkResult> => {
    let hold = NO_HOLD;
    try {
      hold = await context.store.hold(on.diskLayers.map((layer) => layer.id));
      return { ok: true, sandbox: await context.makeChild(spec, { ...on, hold, machineId: newMachineId(context.runtime), ownIdentity: true }) };
    } catch (error) {
      await hold.release();
      return { ok: false, error: toMwError(error) };
    }
  };
  return Promise.all(specs.map(make));
}

/** 32 hexadecimal digits, as in machine-id(5). */
export function newMachineId(runtime: Runtime): string {
  return Buffer.from(runtime.randomBytes(16)).toString("hex");
}
