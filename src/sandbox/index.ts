/** Sandboxes: the interface, the native backend, and what this host offers for it. */
export type * from "./sandbox.ts";
export { openNativeBackend, type NativeBackend, type NativeBackendOptions } from "./backends/native/backend.ts";
export { runDirectory } from "./backends/native/run-directory.ts";
export { probeSandboxes, requireSandboxes, type Probe } from "./doctor.ts";
export { connectMachine, type MachineClient, type MachineDefaults } from "./backends/native/machine-client.ts";
