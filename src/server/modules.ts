/** What the server serves: each module in a directory of its own, mounted here. */
import { dashboardModule } from "./dashboard/index.ts";
import { deliveryModule } from "./delivery/index.ts";
import { nemoModule } from "./nemo/index.ts";
import { e2bModule } from "./e2b/index.ts";
import { plansModule } from "./plans/index.ts";
import { rolloutsModule } from "./rollouts/index.ts";
import { runsModule } from "./runs/index.ts";
import { sandboxesModule } from "./sandboxes/index.ts";
import type { ServerModule } from "./services.ts";

export const MODULES: Readonly<Record<string, ServerModule>> = {
  delivery: deliveryModule,
  nemo: nemoModule,
  plans: plansModule,
  rollouts: rolloutsModule,
  runs: runsModule,
  sandboxes: sandboxesModule,
  dashboard: dashboardModule({ sandboxes: true, delivery: true }),
  e2b: e2bModule,
};
