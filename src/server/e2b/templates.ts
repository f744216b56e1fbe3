/**
 * What a sandbox of the facade can start from, by one name: a template that its owner built, a snapshot, or an image of this host. The client's default, `base`, is whatever has that
 * name here, else the host's own image.
 */
import { messageOf, MwError } from "../../core/errors.ts";
import { isId } from "../../core/ids.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { SandboxRequest } from "../sandboxes/sandbox-entry.ts";
import type { Services } from "../services.ts";
import type { ProcessRecord, ProcessRecords } from "./envd/process-records.ts";
import type { TemplateCommands } from "./template-start.ts";
import { splitReference, TemplateStore, type TemplateRecord, type TemplateTag } from "./template-store.ts";

export interface FoundTemplate {
  readonly start: Pick<SandboxRequest, "image" | "snapshot">;
  readonly cpuCount: number | null;
  readonly memoryMB: number | null;
  /** What runs in its sandboxes from their start; null: nothing. */
  readonly commands: TemplateCommands | null;
  /** The snapshot in which that runs already; null: it is run in each. */
  readonly memory: string | null;
}

/** Names that clients use by themselves, of images that this host cannot have. */
const STAND_INS: Readonly<Record<string, string>> = { base: "host", "e2bdev/base": "host", "e2bdev/base:latest": "host" };

const PLAIN = { cpuCount: null, memoryMB: null, commands: null, memory: null } as const;

export class Templates {
  readonly store: TemplateStore;
  readonly #services: Services;
  readonly #processRecords: ProcessRecords;

  constructor(services: Services, processRecords: ProcessRecords) {
    this.#services = services;
    this.#processRecords = processRecords;
    this.store = new TemplateStore(services.home);
  }

  /** Written when this returns; what its tags had running and have no more goes once it resolves. */
  async put(record: TemplateRecord): Promise<void> {
    const before = this.store.find(record.owner, record.templateID);
    this.store.put(record);
    await this.#release(before, record);
  }

  async delete(record: TemplateRecord): Promise<void> {
    this.store.delete(record.templateID);
    await this.#release(record, null);
  }

  /** Keeps the machine with what runs in it, for sandboxes of the template to come. */
  async keepRunning(record: Pick<TemplateRecord, "owner" | "templateID">, sandbox: Sandbox, processes: readonly ProcessRecord[]): Promise<string> {
    const { id } = await this.#services.sandboxes.snapshotPart(record.owner, sandbox, `template ${record.templateID}`);
    await this.#processRecords.write(id, processes);
    return id;
  }

  async dropRunning(memory: string): Promise<void> {
    await this.#services.machines.backend.snapshots.remove(memory).catch((error: unknown) => this.#services.log(`what ran in a template: ${messageOf(error)}`));
    await this.#processRecords.delete(memory);
  }

  /** What a killed server left of builds. */
  async sweep(): Promise<void> {
    const used = new Set(this.store.all().flatMap(memoriesOf));
    for (const { id } of await this.#services.sandboxes.snapshotParts()) if (!used.has(id)) await this.dropRunning(id);
  }

  async #release(before: TemplateRecord | null, after: TemplateRecord | null): Promise<void> {
    const used = new Set(memoriesOf(after));
    for (const memory of new Set(memoriesOf(before))) if (!used.has(memory)) await this.dropRunning(memory);
  }

  /** Rejects `not_found` with what there is instead. Nothing is pulled: what is not here is not a template. */
  async find(owner: string, reference: string): Promise<FoundTemplate> {
    const built = this.built(owner, reference);
    if (built !== null) return { start: { image: built.digest }, cpuCount: built.record.cpuCount, memoryMB: built.record.memoryMB, commands: built.commands, memory: built.memory };
    if (isId("snap", reference)) return { start: { snapshot: (await this.#services.sandboxes.getSnapshot(owner, reference)).id }, ...PLAIN };
    const image = await this.image(owner, reference);
    if (image !== null) return { start: { image }, ...PLAIN };
    const { name, tag } = splitReference(reference);
    if (tag === "default" && /^[A-Za-z0-9._-]{1,128}$/.test(name)) {
      const snapshot = await this.#services.sandboxes.getSnapshot(owner, name).catch(() => null);
      if (snapshot !== null) return { start: { snapshot: snapshot.id }, ...PLAIN };
    }
    throw new MwError("not_found", `there is no template ${JSON.stringify(reference.slice(0, 200))}`, { fix: "build it, or make an image of that name (mw image pull, mw image tag); host is always there" });
  }

  /** What an image's name means to a client of the protocol: the reference to use, or null for what is not here. */
  async image(owner: string, reference: string): Promise<string | null> {
    try {
      if (await this.#services.sandboxes.images.isHere(owner, reference)) return reference;
    } catch (error) {
      // A name that no image can have is the name of none.
      if (!(error instanceof MwError) || error.code !== "invalid_image") throw error;
    }
    return STAND_INS[reference] ?? null;
  }

  built(owner: string, reference: string): (TemplateTag & { readonly record: TemplateRecord }) | null {
    const { name, tag } = splitReference(reference);
    const record = this.store.find(owner, reference) ?? this.store.find(owner, name);
    const found = record?.tags[record.name === reference || record.templateID === reference ? "default" : tag];
    return record === null || found === undefined ? null : { ...found, record };
  }
}

function memoriesOf(record: TemplateRecord | null): readonly string[] {
  return Object.values(record?.tags ?? {}).flatMap(({ memory }) => memory ?? []);
}
