/** A backend for those who run although declared limits cannot be enforced: what its host cannot hold is not asked for; everything else is refused as ever. */
import type { Sandbox, SandboxBackend, SandboxSpec } from "./sandbox.ts";

export function withoutUnenforceableLimits(backend: SandboxBackend): SandboxBackend {
  const { enforced } = backend.capabilities.isolation;
  const enforceable = (spec: SandboxSpec): SandboxSpec => {
    const { cpus, memoryBytes, pids, diskBytes, ...rest } = spec;
    return {
      ...rest,
      ...(cpus === undefined || !enforced.cpu ? {} : { cpus }),
      ...(memoryBytes === undefined || !enforced.memory ? {} : { memoryBytes }),
      ...(pids === undefined || !enforced.pids ? {} : { pids }),
      ...(diskBytes === undefined || !enforced.disk ? {} : { diskBytes }),
    };
  };
  return {
    name: backend.name,
    capabilities: backend.capabilities,
    snapshots: backend.snapshots,
    create: (spec: SandboxSpec): Promise<Sandbox> => backend.create(enforceable(spec)),
    ...(backend.bringImage === undefined ? {} : { bringImage: (root) => backend.bringImage?.(root) ?? Promise.resolve() }),
    adoptPaused: (id, spec) => backend.adoptPaused(id, enforceable(spec)),
    list: () => backend.list(),
    get: (id) => backend.get(id),
    ...(backend.sealed === undefined ? {} : { sealed: backend.sealed }),
    close: () => backend.close(),
  };
}
