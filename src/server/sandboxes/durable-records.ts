/** Sandboxes that outlive their controller, paused ones and those whose machines do: what the server knows of each is a file of its own, written before its state is answered. */
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { messageOf } from "../../core/errors.ts";
import { isId, type SandboxId } from "../../core/ids.ts";
import { noRoom } from "../../sandbox/snapshots/no-room.ts";
import type { SandboxFacts, SandboxRequest } from "./sandbox-entry.ts";

const text = z.record(z.string(), z.string());
const requestSchema = z.strictObject({
  image: z.string().optional(),
  snapshot: z.string().optional(),
  snapshotFilesOnly: z.boolean().optional(),
  template: z.string(),
  cpus: z.number().optional(),
  memoryBytes: z.number().optional(),
  diskBytes: z.number().optional(),
  pids: z.number().optional(),
  network: z.enum(["none", "allowlist", "public"]).optional(),
  allow: z.array(z.string()).readonly().optional(),
  env: text.optional(),
  user: z.string().optional(),
  workdir: z.string().optional(),
  hostname: z.string().optional(),
  services: z.array(z.strictObject({ port: z.number(), target: z.string() })).optional(),
  checkpointable: z.boolean().optional(),
  metadata: text,
  ttlMs: z.number(),
  onTimeout: z.enum(["kill", "pause"]),
  pauseMemory: z.boolean(),
  autoResume: z.boolean(),
  extra: text.optional(),
}) satisfies z.ZodType<SandboxRequest>;

/** Its present life, where its machine outlives the controller; `key`: of its creation, with the digest of what was asked for. */
const runningSchema = z.strictObject({ startedAt: z.number(), endAt: z.number(), ttlMs: z.number(), key: z.strictObject({ name: z.string(), digest: z.string() }).optional() });

const schema = z.strictObject({ version: z.literal(1), id: z.string(), owner: z.string(), request: requestSchema, imageDigest: z.string(), createdAt: z.number(), pausedAt: z.number(), running: runningSchema.optional() });

export interface SandboxRecord {
  readonly facts: SandboxFacts;
  /** When it was paused, or was to be. */
  readonly pausedAt: number;
  readonly running?: z.infer<typeof runningSchema> | undefined;
}

export class DurableRecords {
  readonly #directory: string;
  /** Changes of one record follow each other. */
  readonly #changes = new Map<SandboxId, Promise<void>>();

  constructor(home: string) {
    this.#directory = recordsDirectory(home);
  }

  /** What the record says is asked for when its turn comes, so that a later one is never older; null: there is none. */
  async put(id: SandboxId, current: () => SandboxRecord | null): Promise<void> {
    await this.#inTurn(id, async () => {
      const record = current();
      if (record !== null) await this.#write(record);
    });
  }

  async #inTurn(id: SandboxId, change: () => Promise<void>): Promise<void> {
    const before = this.#changes.get(id) ?? Promise.resolve();
    const mine = before.catch(() => undefined).then(change);
    this.#changes.set(id, mine);
    try {
      await mine;
    } finally {
      if (this.#changes.get(id) === mine) this.#changes.delete(id);
    }
  }

  async #write({ facts, pausedAt, running }: SandboxRecord): Promise<void> {
    const path = this.#path(facts.id);
    const document: z.infer<typeof schema> = { version: 1, ...facts, request: { ...facts.request, services: facts.request.services?.map((service) => ({ ...service })) }, pausedAt, ...(running === undefined ? {} : { running }) };
    try {
      await mkdir(this.#directory, { recursive: true, mode: 0o700 });
      await writeFile(`${path}.new`, `${JSON.stringify(document)}\n`, { mode: 0o600 });
      await rename(`${path}.new`, path);
    } catch (error) {
      await rm(`${path}.new`, { force: true });
      throw noRoom(error);
    }
  }

  async delete(id: SandboxId): Promise<void> {
    await this.#inTurn(id, () => rm(this.#path(id), { force: true }));
  }

  /** A record that cannot be read is told and left where it is. */
  async all(log: (line: string) => void): Promise<readonly SandboxRecord[]> {
    if (!existsSync(this.#directory)) return [];
    const found: SandboxRecord[] = [];
    for (const name of await readdir(this.#directory)) {
      // Of a server that died as it wrote it.
      if (name.endsWith(".new")) await rm(join(this.#directory, name), { force: true });
      if (!name.endsWith(".json")) continue;
      try {
        const { id, owner, request, imageDigest, createdAt, pausedAt, running } = schema.parse(JSON.parse(await readFile(join(this.#directory, name), "utf8")));
        if (isId("sbx", id) && name === `${id}.json`) found.push({ facts: { id, owner, request, imageDigest, createdAt }, pausedAt, running });
      } catch (error) {
        log(`${join(this.#directory, name)} is no record of a sandbox: ${messageOf(error)}`);
      }
    }
    return found.toSorted((a, b) => a.facts.createdAt - b.facts.createdAt);
  }

  #path(id: SandboxId): string {
    return join(this.#directory, `${id}.json`);
  }
}

/** Ids of those that there are records of, whoever has the data directory. */
export async function recordedSandboxes(home: string): Promise<readonly SandboxId[]> {
  const names = await readdir(recordsDirectory(home)).catch(() => []);
  return names.map((name) => name.replace(/\.json$/, "")).filter((name) => isId("sbx", name));
}

const recordsDirectory = (home: string): string => join(home, "sandboxes");
