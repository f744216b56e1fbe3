/** A machine of a backend that keeps none: what would need that is refused, with the reason. */
import { MwError } from "../../core/errors.ts";
import { checkExecOptions } from "../check-spec.ts";
import type { Capabilities, ExecOptions, ForkResult, Isolation, SnapshotTaken } from "../sandbox.ts";

export abstract class UnkeptMachine {
  readonly state = "running";
  readonly isolation: Isolation;
  readonly #capabilities: Capabilities;

  constructor(capabilities: Capabilities) {
    this.#capabilities = capabilities;
    this.isolation = capabilities.isolation;
  }

  /** Throws when it is over. */
  protected abstract alive(): void;

  async snapshot(): Promise<SnapshotTaken> {
    return this.refuse("snapshot");
  }

  async fork(): Promise<readonly ForkResult[]> {
    return this.refuse("fork");
  }

  async pause(): Promise<void> {
    return this.refuse("pause");
  }

  async resume(): Promise<void> {
    return this.refuse("pause");
  }

  protected check(options: ExecOptions): void {
    checkExecOptions(options, this.#capabilities);
    this.alive();
  }

  protected refuse(name: "freeze" | "snapshot" | "fork" | "pause"): never {
    this.alive();
    throw new MwError("unsupported", `This backend cannot ${name} a sandbox: ${this.#capabilities.missing[name] ?? "it has no such thing"}`, { facts: { capability: name } });
  }
}
