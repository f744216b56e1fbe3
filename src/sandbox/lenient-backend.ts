/** A backend for those who run although declared limits cannot be enforced: what its host cannot hold is not asked for; everything else is refused as ever. */
import type { Sandbox, SandboxBackend, SandboxSpec } from "./sandbox.ts";

export function withoutUnenforceableLimits(backend: SandboxBackend): SandboxBackend {
  const { enforced } = backend.capabilities.isolation;
  return {
    name: backend.name,
    capabilities: backend.capabilities,
    create: (spec: SandboxSpec): Promise<Sandbox> => {
      const { cpus, memoryBytes, pids, diskBytes, ...rest } = spec;
      return backend.create({
        ...rest,
        ...(cpus === undefined || !enforced.cpu ? {} : { cpus }),
        ...(memoryBytes === undefined || !enforced.memory ? {} : { memoryBytes }),
        ...(pids === undefined || !enforced.pids ? {} : { pids }),
        ...(diskBytes === undefined || !enforced.disk ? {} : { diskBytes }),
      });
    },
    list: () => backend.list(),
    get: (id) => backend.get(id),
    close: () => backend.close(),
  };
}
