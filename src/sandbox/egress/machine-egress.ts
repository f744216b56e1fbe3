/** One machine at the egress proxy: what it may reach now, what it has open, and what was refused to it. */
import { LIMITS } from "../../core/limits.ts";
import type { Runtime } from "../../core/runtime.ts";
import { Semaphore } from "../../core/semaphore.ts";
import type { EgressRefusal, EgressReport, RefusalReason, SandboxEgress } from "../sandbox.ts";
import { admits, type Destination } from "./destination.ts";
import { type HostRules, parseHostRules } from "./host-rules.ts";

/** A request or a tunnel that is under way. */
export interface Flow {
  /** Its destination, and the address that it is connected to; null before that. */
  goesTo(destination: Destination, address: string | null): void;
  sent(bytes: number): void;
  received(bytes: number): void;
  /** Called once when the machine may no longer reach its destination, or is over. */
  onCut(cut: () => void): void;
  end(): void;
}

/** What all machines of a proxy share. */
export interface FlowCount {
  open: number;
}

export class MachineEgress implements SandboxEgress {
  readonly lookups = new Semaphore(LIMITS.egressLookupsPerSandbox);
  readonly #runtime: Runtime;
  readonly #all: FlowCount;
  readonly #flows = new Set<OpenFlow>();
  readonly #refusals = new Map<string, EgressRefusal>();
  readonly #listeners = new Set<(refusal: EgressRefusal) => void>();
  readonly #changed: () => void;
  #rules: HostRules;
  #counts = { connections: 0, refused: 0, sentBytes: 0, receivedBytes: 0 };
  #over = false;

  constructor(hosts: readonly string[], runtime: Runtime, all: FlowCount, changed: () => void) {
    this.#changed = changed;
    this.#rules = parseHostRules(hosts);
    this.#runtime = runtime;
    this.#all = all;
  }

  get rules(): HostRules {
    return this.#rules;
  }

  allow(hosts: readonly string[]): void {
    this.#rules = parseHostRules(hosts);
    for (const flow of this.#flows) if (!flow.admittedBy(this.#rules)) flow.cut();
    this.#changed();
  }

  report(): EgressReport {
    return { allow: this.#rules.texts, ...this.#counts, refusals: [...this.#refusals.values()] };
  }

  onRefusal(listener: (refusal: EgressRefusal) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Null when the machine has its share under way already. */
  begin(): Flow | null {
    const most = this.#all.open < LIMITS.egressFlows ? LIMITS.egressFlowsPerSandbox : LIMITS.egressFlowsAssured;
    if (this.#over || this.#flows.size >= most) return null;
    this.#all.open++;
    const flow = new OpenFlow(this.#counts, () => {
      if (this.#flows.delete(flow)) this.#all.open--;
    });
    this.#flows.add(flow);
    return flow;
  }

  refuse(reason: RefusalReason, host: string, port: number | null, message: string): void {
    this.#counts.refused++;
    const key = `${reason} ${port} ${host}`;
    const now = this.#runtime.now();
    const known = this.#refusals.get(key);
    const refusal: EgressRefusal = { reason, host, port, message, count: (known?.count ?? 0) + 1, firstAt: known?.firstAt ?? now, lastAt: now };
    if (known === undefined && this.#refusals.size >= LIMITS.egressRefusalsKept) return;
    this.#refusals.set(key, refusal);
    if (known === undefined) for (const listener of this.#listeners) listener(refusal);
  }

  /** The machine is over: everything of it ends. */
  close(): void {
    this.#over = true;
    for (const flow of this.#flows) flow.cut();
    this.#listeners.clear();
  }
}

class OpenFlow implements Flow {
  readonly #counts: { connections: number; sentBytes: number; receivedBytes: number };
  readonly #ended: () => void;
  #destination: Destination | null = null;
  #address: string | null = null;
  #onCut: (() => void) | null = null;
  #cut = false;

  constructor(counts: { connections: number; sentBytes: number; receivedBytes: number }, ended: () => void) {
    this.#counts = counts;
    this.#ended = ended;
  }

  goesTo(destination: Destination, address: string | null): void {
    if (address !== null && this.#address === null) this.#counts.connections++;
    this.#destination = destination;
    this.#address = address;
  }

  sent(bytes: number): void {
    this.#counts.sentBytes += bytes;
  }

  received(bytes: number): void {
    this.#counts.receivedBytes += bytes;
  }

  onCut(cut: () => void): void {
    this.#onCut = cut;
    if (this.#cut) cut();
  }

  admittedBy(rules: HostRules): boolean {
    return this.#destination === null || admits(rules, this.#destination, this.#address);
  }

  cut(): void {
    if (this.#cut) return;
    this.#cut = true;
    this.#onCut?.();
  }

  end(): void {
    this.#ended();
  }
}
