/** The runs of a data directory, those that were looked at last in memory. */
import { stat } from "node:fs/promises";
import { MwError } from "../../core/errors.ts";
import { isId, type RolloutId, type RunId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import { findRollout, listRuns, runDirectory } from "../../store/run-directory.ts";
import { LiveRun } from "./live-run.ts";

export class RunLibrary {
  readonly home: string;
  /** The latest used last. */
  readonly #runs = new Map<RunId, LiveRun>();
  /** A rollout stays in its run. */
  readonly #runOf = new Map<RolloutId, RunId>();

  constructor(home: string) {
    this.home = home;
  }

  /** Newest first. */
  list(): Promise<readonly RunId[]> {
    return listRuns(this.home);
  }

  /** A run by its id, or `latest`, with all that is written of it by now. */
  async open(name: string): Promise<LiveRun> {
    const id = name === "latest" ? (await this.list())[0] : name;
    if (id === undefined || !isId("run", id)) throw new MwError("not_found", `there is no run ${JSON.stringify(name)} in ${this.home}`, { fix: "GET /v1/runs lists them" });
    const run = this.#runs.get(id) ?? new LiveRun(this.home, id);
    await expectThere(this.home, id).catch((error: unknown) => {
      this.#runs.delete(id);
      throw error;
    });
    await run.refresh();
    this.#runs.delete(id);
    this.#runs.set(id, run);
    this.#evict();
    return run;
  }

  /** What is in memory of a run, without reading. */
  known(run: RunId): LiveRun | undefined {
    return this.#runs.get(run);
  }

  /** The run that a rollout belongs to. */
  async openRollout(id: string): Promise<{ readonly run: LiveRun; readonly rollout: RolloutId }> {
    if (!isId("ro", id)) throw new MwError("not_found", `${JSON.stringify(id)} is no rollout`, { fix: "ids of rollouts begin with ro" });
    const known = this.#runOf.get(id) ?? [...this.#runs.values()].find(({ state }) => state.rollouts.has(id))?.run;
    const run = await this.open(known ?? (await findRollout(this.home, id)));
    if (this.#runOf.size >= LIMITS.viewedRollouts) this.#runOf.clear();
    this.#runOf.set(id, run.run);
    run.rollout(id);
    return { run, rollout: id };
  }

  #evict(): void {
    let rollouts = 0;
    // Newest first; the one in use stays whatever its size.
    for (const [at, [id, run]] of [...this.#runs].toReversed().entries()) {
      rollouts += run.state.rollouts.size;
      if (at > 0 && (rollouts > LIMITS.viewedRollouts || at >= LIMITS.viewedRuns)) this.#runs.delete(id);
    }
  }
}

async function expectThere(home: string, run: RunId): Promise<void> {
  try {
    await stat(runDirectory(home, run));
  } catch (error) {
    throw new MwError("not_found", `run ${run} is not in ${home} (any more)`, { fix: "GET /v1/runs lists what is there", cause: error });
  }
}
