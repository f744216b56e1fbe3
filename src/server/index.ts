/** The server: everything over HTTP, on one port. */
export { openServer, type OpenServer, type ServerOptions } from "./server.ts";
export { endUnrecorded } from "./sandboxes/unrecorded.ts";
export { recordedSandboxes } from "./sandboxes/durable-records.ts";
export { Marks } from "./plans/marks.ts";
export { survivingMachines } from "./plans/surviving.ts";
export { MODULES } from "./modules.ts";
export { openReader, type Reader } from "./reader.ts";
export type { Front, Owner, ServerModule, Services } from "./services.ts";
