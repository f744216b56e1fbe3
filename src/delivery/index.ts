/** What trainers talk to: groups of rollouts, leased and acknowledged while generation goes on. */
export * as contract from "./contract.ts";
export type { Delivery, DeliveredGroup, DeliveredSample, Lease, SubmitResult } from "./delivery.ts";
export { DeliveryRegistry, type RegistryOptions } from "./registry.ts";
export { DeliveryService, type DeliveryOptions } from "./service.ts";
export type { MemberEnd, MemberJob, PolicyState, RolloutWorker, TaskFacts, WorkerFactory, WorkerRequest } from "./worker.ts";
