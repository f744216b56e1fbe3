/** Sandboxes: the interface, the native backend, and what this host offers for it. */
export type * from "./sandbox.ts";
export { openNativeBackend, type NativeBackend, type NativeBackendOptions } from "./backends/native/backend.ts";
export { innerReach } from "./egress/destination.ts";
export { parseHostRule } from "./egress/host-rules.ts";
export { parsePublish, publishPort, type PublishedPort, type PublishRule } from "./publish.ts";
export { execEnvironment } from "./exec-environment.ts";
export { openOciBackend, type OciBackend, type OciBackendOptions } from "./backends/oci/backend.ts";
export { openRemoteBackend, type RemoteBackend, type RemoteBackendOptions } from "./backends/remote/backend.ts";
export { openChosenBackend, parseBackendChoice, type BackendChoice } from "./backend-choice.ts";
export { DiskSnapshotStore } from "./snapshots/disk-store.ts";
export { runDirectory } from "./backends/native/run-directory.ts";
export { probeBackends } from "./doctor-backends.ts";
export { probeSandboxes, requireSandboxes, type Probe } from "./doctor.ts";
export { connectMachine, type MachineClient, type MachineDefaults } from "./backends/native/machine-client.ts";
