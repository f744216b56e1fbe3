/** The limit that was hit while a command ran, told by the counters of its machine. */
import type { Exec, ExecExit, LimitCause } from "../sandbox.ts";

export type LimitCounts = Readonly<Record<LimitCause, number>>;
export const NO_LIMITS: LimitCounts = { oom_killed: 0, pids: 0, disk_full: 0 };

const ORDER: readonly LimitCause[] = ["oom_killed", "disk_full", "pids"];

export class LimitCauses {
  readonly #counts: () => Promise<LimitCounts>;
  #seen: LimitCounts = NO_LIMITS;

  /** `counts` rejects when the machine has ended. */
  constructor(counts: () => Promise<LimitCounts>) {
    this.#counts = counts;
  }

  /** Counting begins anew. */
  reset(): void {
    this.#seen = NO_LIMITS;
  }

  /**
   * The counters are asked only when a command failed or complained: a limit that nobody felt is in the metrics, and the question is not worth its time in every exec.
   */
  async of<T extends ExecExit>(exit: T): Promise<T> {
    if (exit.ended === "lost" || (exit.code === 0 && exit.stderrBytes === 0)) return exit;
    const before = this.#seen;
    try {
      this.#seen = await this.#counts();
    } catch {
      // The machine ended meanwhile; its end carries the counters.
      return exit;
    }
    const cause = ORDER.find((name) => this.#seen[name] > before[name]);
    return cause === undefined ? exit : { ...exit, cause };
  }

  /** The same command, with the cause in its exit. */
  explained(exec: Exec): Exec {
    const exit = exec.exit.then((ended) => this.of(ended));
    // Whoever awaits it sees the rejection; nobody has to.
    exit.catch(() => undefined);
    return {
      id: exec.id,
      pid: exec.pid,
      ...(exec.inputBytes === undefined ? {} : { inputBytes: exec.inputBytes }),
      output: exec.output,
      exit,
      writeStdin: (data) => exec.writeStdin(data),
      closeStdin: () => exec.closeStdin(),
      kill: (signal) => exec.kill(signal),
      resize: (columns, rows) => exec.resize(columns, rows),
      acknowledge: () => exec.acknowledge(),
    };
  }
}
