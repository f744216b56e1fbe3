/** The module of runs: the read API over run directories. */
import { MwError } from "../../core/errors.ts";
import { LOCAL_OWNER } from "../authentication/keys.ts";
import type { ServerModule } from "../services.ts";
import { runRoutes } from "./routes.ts";

/** The data directory is that of who runs the server; other owners have keys for machines and deliveries of their own, not for what lies in it. */
export const runsModule: ServerModule = (app, { home, runtime, draining, machines, board }) => {
  app.addHook("onRequest", (request, _reply, done) => {
    done(request.owner.id === LOCAL_OWNER.id ? undefined : new MwError("not_found", "this key does not open the runs of this server", { fix: "use the server's first key" }));
  });
  runRoutes(app, { home, runtime, draining, board, backend: machines.backend });
};
