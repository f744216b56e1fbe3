/** Delivery to trainers, as a part of the server: its runs use the server's machines. */
import { machineWorkers } from "../../delivery/machines/worker.ts";
import { mountEndpoints } from "../endpoint.ts";
import type { ServerModule } from "../services.ts";
import { deliveryEndpoints } from "./endpoints.ts";
import { OwnersRegistries } from "./registries.ts";

export const deliveryModule: ServerModule = async (app, { home, runtime, runs, draining, log }) => {
  const registries = new OwnersRegistries({ home, runtime, durability: "process", openWorker: machineWorkers({ home, host: runs, runtime }), note: log });
  app.addHook("onClose", () => registries.close());
  mountEndpoints(app, deliveryEndpoints({ registryOf: (request) => registries.of(request.owner.id), draining }));
  await registries.open();
};
