import { describe, expect, it } from "vitest";
import { withoutUnenforceableLimits } from "./lenient-backend.ts";
import type { SandboxBackend, SandboxSpec } from "./sandbox.ts";

/** A backend that only remembers what it was asked for. */
function recording(enforced: { readonly cpu: boolean; readonly memory: boolean; readonly pids: boolean; readonly disk: boolean }): { readonly backend: SandboxBackend; readonly asked: SandboxSpec[] } {
  const asked: SandboxSpec[] = [];
  const create = (spec: SandboxSpec) => {
    asked.push(spec);
    return Promise.reject(new Error("none is made"));
  };
  return { backend: { name: "recording", capabilities: { isolation: { enforced } }, create } as unknown as SandboxBackend, asked };
}

const SPEC = { root: {}, network: "none", cpus: 1, memoryBytes: 2, pids: 3, diskBytes: 4 } as unknown as SandboxSpec;

describe("withoutUnenforceableLimits", () => {
  it("asks for no limit that the host cannot hold, and for every other thing as before", async () => {
    const { backend, asked } = recording({ cpu: false, memory: false, pids: false, disk: true });
    await expect(withoutUnenforceableLimits(backend).create(SPEC)).rejects.toThrow("none is made");
    expect(asked).toEqual([{ root: {}, network: "none", diskBytes: 4 }]);
  });

  it("keeps what the host can hold", async () => {
    const { backend, asked } = recording({ cpu: true, memory: true, pids: true, disk: false });
    await expect(withoutUnenforceableLimits(backend).create(SPEC)).rejects.toThrow("none is made");
    expect(asked).toEqual([{ root: {}, network: "none", cpus: 1, memoryBytes: 2, pids: 3 }]);
  });
});
