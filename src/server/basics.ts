/** What every server has: whether it lives, what it is, what it counts. */
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from "prom-client";
import type { FastifyInstance } from "fastify";
import type { WarmCounts } from "../sandbox/pool/warm-backend.ts";
import type { Admission } from "./sandboxes/admission.ts";
import type { Services } from "./services.ts";

export function mountBasics(app: FastifyInstance, { version, machines, sandboxes, warm, draining }: Services): void {
  app.get("/health", { config: { open: true } }, () => ({ status: draining.aborted ? "draining" : "ok" }));
  app.get("/version", () => ({ name: "manyworlds", version }));
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const living = new Gauge({
    name: "mw_sandboxes",
    help: "Sandboxes that live",
    registers: [],
    async collect() {
      this.set((await machines.backend.list()).length);
    },
  });
  registry.registerMetric(living);
  countAdmission(registry, sandboxes.admission);
  if (warm !== undefined) countWarm(registry, warm);
  const durations = new Histogram({ name: "mw_http_request_seconds", help: "Time from a request's arrival to the end of its answer", labelNames: ["method", "route", "status"], buckets: [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60], registers: [registry] });
  app.addHook("onResponse", (request, reply, done) => {
    // Routes, never addresses: those are as many as clients like.
    durations.observe({ method: request.method, route: request.routeOptions.url ?? "none", status: String(reply.statusCode) }, reply.elapsedTime / 1000);
    done();
  });
  app.get("/metrics", async (_request, reply) => reply.type(registry.contentType).send(await registry.metrics()));
}

/** Places and creations of sandboxes that clients ask for. */
function countAdmission(registry: Registry, admission: Admission): void {
  const gauge = (name: string, help: string, value: () => number): void => addGauge(registry, name, help, value);
  gauge("mw_sandbox_places", "Sandboxes of clients that may live at once", () => admission.limits.places);
  gauge("mw_sandbox_places_per_owner", "Sandboxes of one owner that may live at once", () => admission.limits.placesOfOwner);
  gauge("mw_sandbox_places_taken", "Sandboxes of clients that live or are being made", () => admission.held);
  gauge("mw_creations_waiting", "Creations that wait for their turn or their place", () => admission.waiting);
  const refused = new Counter({
    name: "mw_creations_refused_total",
    help: "Creations that were refused with 429",
    labelNames: ["reason"],
    registers: [],
    collect() {
      this.reset();
      for (const [reason, count] of Object.entries(admission.refused)) this.inc({ reason }, count);
    },
  });
  registry.registerMetric(refused);
}

function countWarm(registry: Registry, warm: Readonly<WarmCounts>): void {
  addGauge(registry, "mw_sandboxes_ready", "Sandboxes that were made beforehand and are nobody's yet", () => warm.ready);
  const creations = new Counter({
    name: "mw_sandbox_creations_total",
    help: "Sandboxes asked for that can be made beforehand, by whether one was ready",
    labelNames: ["ready"],
    registers: [],
    collect() {
      this.reset();
      this.inc({ ready: "yes" }, warm.taken);
      this.inc({ ready: "no" }, warm.missed);
    },
  });
  registry.registerMetric(creations);
}

function addGauge(registry: Registry, name: string, help: string, value: () => number): void {
  const metric: Gauge = new Gauge({ name, help, registers: [registry], collect: () => metric.set(value()) });
}
