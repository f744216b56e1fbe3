/** What is known of a sandbox's past: what it used whenever somebody asked, and a line for each command. Bounded for each. */
import { availableParallelism, totalmem } from "node:os";
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import type { SandboxEntry } from "../sandboxes/sandbox-entry.ts";
import { isAtLeast, type LogLevel } from "./schemas.ts";

export interface MetricsSample {
  readonly timestamp: string;
  readonly timestampUnix: number;
  readonly cpuCount: number;
  readonly cpuUsedPct: number;
  readonly memUsed: number;
  readonly memTotal: number;
  readonly memCache: number;
  readonly diskUsed: number;
  readonly diskTotal: number;
}

export interface LogEntry {
  readonly timestamp: string;
  readonly message: string;
  readonly level: LogLevel;
  readonly fields: Readonly<Record<string, string>>;
}

interface History {
  readonly samples: MetricsSample[];
  readonly logs: LogEntry[];
  before: { readonly at: number; readonly cpuMs: number } | null;
}

export class Observations {
  readonly #runtime: Runtime;
  readonly #histories = new WeakMap<SandboxEntry, History>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** Those asked for so far, and one of now. None of a paused one is added. */
  async metrics(entry: SandboxEntry): Promise<readonly MetricsSample[]> {
    const history = this.#of(entry);
    if (entry.state === "running" && entry.sandbox !== null) {
      const { cpuMs, memoryBytes, diskBytes } = await entry.sandbox.metrics();
      const { request } = entry.facts;
      const now = this.#runtime.now();
      const cpus = Math.max(1, Math.round(request.cpus ?? availableParallelism()));
      const before = history.before ?? { at: entry.startedAt, cpuMs: 0 };
      const used = now > before.at ? ((cpuMs ?? 0) - before.cpuMs) / (now - before.at) / cpus : 0;
      history.before = { at: now, cpuMs: cpuMs ?? 0 };
      keep(history.samples, {
        timestamp: new Date(now).toISOString(),
        timestampUnix: Math.floor(now / 1000),
        cpuCount: cpus,
        cpuUsedPct: Math.round(Math.min(1, Math.max(0, used)) * 10_000) / 100,
        memUsed: memoryBytes ?? 0,
        memTotal: request.memoryBytes ?? totalmem(),
        memCache: 0,
        diskUsed: diskBytes ?? 0,
        diskTotal: request.diskBytes ?? totalmem() / 2,
      });
    }
    return history.samples;
  }

  log(entry: SandboxEntry, level: LogEntry["level"], message: string, fields: Readonly<Record<string, string>> = {}): void {
    keep(this.#of(entry).logs, { timestamp: new Date(this.#runtime.now()).toISOString(), message, level, fields });
  }

  /** `cursor` and `start`: milliseconds since the epoch. */
  logs(entry: SandboxEntry, query: { readonly cursor?: number | undefined; readonly start?: number | undefined; readonly limit: number; readonly direction: "forward" | "backward"; readonly level?: LogEntry["level"] | undefined; readonly search?: string | undefined }): readonly LogEntry[] {
    const from = query.cursor ?? query.start;
    const backward = query.direction === "backward";
    const wanted = this.#of(entry).logs.filter(({ timestamp, level, message }) => {
      const at = Date.parse(timestamp);
      if (from !== undefined && (backward ? at > from : at < from)) return false;
      return isAtLeast(level, query.level) && (query.search === undefined || message.includes(query.search));
    });
    return (backward ? wanted.toReversed() : wanted).slice(0, query.limit);
  }

  #of(entry: SandboxEntry): History {
    const known = this.#histories.get(entry);
    if (known !== undefined) return known;
    const made: History = { samples: [], logs: [], before: null };
    this.#histories.set(entry, made);
    return made;
  }
}

function keep<T>(list: T[], item: T): void {
  list.push(item);
  if (list.length > LIMITS.observationsKept) list.shift();
}
