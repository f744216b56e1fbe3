/** Where the rollouts of a trainer's run went: the leases that carried their samples, and the steps and checkpoints of the trainer that used them. Read from the run's log, also while it grows. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import type { RunId } from "../core/ids.ts";
import { readLog, startOfLog } from "../store/log-reader.ts";
import type { TerminalOutcome } from "./contract.ts";
import { fromLogEvent, type DeliveryEvent } from "./events.ts";

/** One time that a group's samples were given out. */
export interface GivenOut {
  readonly lease: string;
  readonly consumer: string;
  readonly at: string;
}

/** How that ended. `restored`: the trainer went back to before it, and what follows counts instead. */
export interface GroupEnd {
  readonly outcome: TerminalOutcome;
  readonly reason: string | null;
  readonly at: string;
  readonly lease: string | null;
  readonly consumer: string | null;
  readonly trainedVersion: number | null;
  readonly step: number | null;
  readonly checkpoint: string | null;
}

export interface SampleFate {
  /** As the trainer calls it. */
  readonly group: string;
  /** The rollout's samples are in the group that was, or will be, given out. */
  readonly delivered: boolean;
  readonly leases: readonly GivenOut[];
  readonly ends: readonly GroupEnd[];
  /** What holds of `ends`: a trainer has used the samples. */
  readonly consumed: GroupEnd | null;
}

export interface RolloutPlace {
  readonly group: string;
  readonly member: number;
  readonly replacement: number;
  /** When the rollout was recorded as scored, milliseconds since the epoch; null for any other end. */
  readonly scoredAt: number | null;
}

interface GroupFate {
  readyAt: number | null;
  readonly failed: Set<string>;
  readonly leases: GivenOut[];
  readonly ends: GroupEnd[];
}

const NOTHING: GroupFate = { readyAt: null, failed: new Set(), leases: [], ends: [] };

export class DeliveryLineage {
  readonly #groups = new Map<string, GroupFate>();

  /** Null where nothing is kept of that run. */
  static async open(home: string, run: RunId, trainer: { readonly name: string; readonly epoch: number }): Promise<DeliveryLineage | null> {
    const directory = await directoryOf(join(home, "delivery"), run, trainer);
    if (directory === null) return null;
    const lineage = new DeliveryLineage();
    for await (const { event, at } of readLog(join(directory, "events.jsonl"), startOfLog())) lineage.#apply(fromLogEvent(event), at);
    return lineage;
  }

  of({ group, member, replacement, scoredAt }: RolloutPlace): SampleFate {
    const { readyAt, failed, leases, ends } = this.#groups.get(group) ?? NOTHING;
    // A rollout that scored after its group was whole came too late for it.
    const delivered = readyAt !== null && scoredAt !== null && scoredAt <= readyAt && !failed.has(`${member}/${replacement}`);
    const last = ends.at(-1);
    return { group, delivered, leases: delivered ? leases : [], ends: delivered ? ends : [], consumed: delivered && last?.outcome === "consumed" ? last : null };
  }

  #apply(event: DeliveryEvent, at: string): void {
    if (event.type === "member_failed") this.#group(event.id).failed.add(`${event.member}/${event.attempt}`);
    else if (event.type === "ready") this.#group(event.id).readyAt = Date.parse(at);
    else if (event.type === "leased") for (const id of event.ids) this.#group(id).leases.push({ lease: event.lease, consumer: event.consumer, at });
    else if (event.type === "terminal") {
      const { outcome, reason, lease, consumer, step, checkpoint, trained_version: trainedVersion } = event;
      this.#group(event.id).ends.push({ outcome, reason, at, lease, consumer, trainedVersion, step, checkpoint });
    }
  }

  #group(id: string): GroupFate {
    const known = this.#groups.get(id);
    if (known !== undefined) return known;
    const fate: GroupFate = { readyAt: null, failed: new Set(), leases: [], ends: [] };
    this.#groups.set(id, fate);
    return fate;
  }
}

/** Each owner of the server's has a directory of runs; a run that was ended has moved, and its name may be another's now. */
async function directoryOf(delivery: string, run: RunId, { name, epoch }: { readonly name: string; readonly epoch: number }): Promise<string | null> {
  const owners = await readdir(delivery).catch((): string[] => []);
  for (const owner of ["", ...owners]) {
    for (const entry of [`run-${name}`, `ended-${epoch}-${name}`]) {
      const directory = join(delivery, owner, entry);
      const document = await readFile(join(directory, "run.json"), "utf8").catch(() => null);
      if (document !== null && documentSchema.parse(JSON.parse(document)).run === run) return directory;
    }
  }
  return null;
}

const documentSchema = z.looseObject({ run: z.string() });
