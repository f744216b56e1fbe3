/**
 * What a sandbox of the facade can start from, by one name: a template that its owner built, a snapshot, or an image of this host. The client's default, `base`, is whatever has that
 * name here, else the host's own image.
 */
import { MwError } from "../../core/errors.ts";
import { isId } from "../../core/ids.ts";
import type { SandboxRequest } from "../sandboxes/sandbox-entry.ts";
import type { Services } from "../services.ts";
import type { TemplateCommands } from "./template-start.ts";
import { splitReference, TemplateStore, type TemplateRecord } from "./template-store.ts";

export interface FoundTemplate {
  readonly start: Pick<SandboxRequest, "image" | "snapshot">;
  readonly cpuCount: number | null;
  readonly memoryMB: number | null;
  /** What runs in its sandboxes from their start; null: nothing. */
  readonly commands: TemplateCommands | null;
}

/** Names that clients use by themselves, of images that this host cannot have. */
const STAND_INS: Readonly<Record<string, string>> = { base: "host", "e2bdev/base": "host", "e2bdev/base:latest": "host" };

const PLAIN = { cpuCount: null, memoryMB: null, commands: null } as const;

export class Templates {
  readonly store: TemplateStore;
  readonly #services: Services;

  constructor(services: Services) {
    this.#services = services;
    this.store = new TemplateStore(services.home);
  }

  /** Rejects `not_found` with what there is instead. Nothing is pulled: what is not here is not a template. */
  async find(owner: string, reference: string): Promise<FoundTemplate> {
    const built = this.built(owner, reference);
    if (built !== null) return { start: { image: built.digest }, cpuCount: built.record.cpuCount, memoryMB: built.record.memoryMB, commands: built.commands };
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

  built(owner: string, reference: string): { readonly record: TemplateRecord; readonly digest: string; readonly commands: TemplateCommands | null } | null {
    const { name, tag } = splitReference(reference);
    const record = this.store.find(owner, reference) ?? this.store.find(owner, name);
    const found = record?.tags[record.name === reference || record.templateID === reference ? "default" : tag];
    return record === null || found === undefined ? null : { record, digest: found.digest, commands: found.commands };
  }
}
