/** The gateway of the bench, in a process of its own: opens sessions on request, and says what it costs. Talks to its parent over IPC. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemRuntime } from "../../src/core/runtime.ts";
import { CallLog, openGateway, openUpstream, parseUpstreamSpec } from "../../src/gateway/index.ts";

export type Order = { readonly kind: "open"; readonly engine: string; readonly count: number } | { readonly kind: "usage" } | { readonly kind: "close" };
export interface Target {
  readonly url: string;
  readonly token: string;
}

export type Report =
  | { readonly kind: "ready" }
  | { readonly kind: "opened"; readonly sessions: readonly Target[] }
  | { readonly kind: "usage"; readonly cpuMs: number; readonly heapBytes: number; readonly rssBytes: number };

const directory = mkdtempSync(join(tmpdir(), "mw-bench-gateway-"));
const gateway = await openGateway({ runtime: systemRuntime, socketPath: join(directory, "socket"), port: 0 });
const logs: CallLog[] = [];

process.on("message", (order: Order) => void carryOut(order));
process.on("disconnect", () => void end());
report({ kind: "ready" });

async function carryOut(order: Order): Promise<void> {
  switch (order.kind) {
    case "open": {
      const upstream = openUpstream(parseUpstreamSpec(`vllm=${order.engine}`, "bench"), { apiKey: null });
      const sessions: Target[] = [];
      for (let at = 0; at < order.count; at++) {
        const log = new CallLog({ path: join(directory, `calls-${logs.length}.jsonl`), durability: "process" });
        logs.push(log);
        const session = await gateway.open({ label: "bench", sandbox: null, upstream, model: "test-model", sampling: {}, budgets: { calls: null, tokens: null, timeMs: null }, purpose: "train", log });
        sessions.push({ url: `${gateway.url ?? ""}${session.path}`, token: session.token });
      }
      return report({ kind: "opened", sessions });
    }
    case "usage": {
      globalThis.gc?.();
      const { user, system } = process.cpuUsage();
      const { heapUsed, external, rss } = process.memoryUsage();
      return report({ kind: "usage", cpuMs: (user + system) / 1000, heapBytes: heapUsed + external, rssBytes: rss });
    }
    case "close":
      return end();
  }
}

async function end(): Promise<void> {
  await gateway.close();
  for (const log of logs) await log.close();
  rmSync(directory, { recursive: true, force: true });
  process.exit(0);
}

function report(message: Report): void {
  process.send?.(message);
}
