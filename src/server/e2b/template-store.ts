/**
 * Templates that clients built, by owner: a name with tags, each of which is an image of ours. Names of one owner mean nothing to another. The images carry a name of their own in the
 * image store, so that nobody collects them.
 */
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { z } from "zod";
import { messageOf, MwError } from "../../core/errors.ts";
import { OWNED_IMAGES } from "../sandboxes/image-access.ts";

const tagSchema = z.strictObject({
  digest: z.string(),
  buildID: z.string(),
  createdAt: z.number(),
  /** What runs in sandboxes of it from their start; null: nothing. */
  commands: z.strictObject({ start: z.string().nullable(), ready: z.string().nullable() }).nullable().default(null),
  /** The snapshot of a machine in which they run; null: they are run in each sandbox. */
  memory: z.string().nullable().default(null),
});
const templateSchema = z.strictObject({
  templateID: z.string(),
  owner: z.string(),
  name: z.string(),
  cpuCount: z.number().nullable(),
  memoryMB: z.number().nullable(),
  createdAt: z.number(),
  updatedAt: z.number(),
  tags: z.record(z.string(), tagSchema),
});
const fileSchema = z.strictObject({ version: z.literal(1), templates: z.array(templateSchema) });
export type TemplateRecord = z.infer<typeof templateSchema>;
export type TemplateTag = z.infer<typeof tagSchema>;

export class TemplateStore {
  readonly #file: string;
  readonly #templates = new Map<string, TemplateRecord>();

  constructor(home: string) {
    this.#file = join(home, "e2b", "templates.json");
    for (const template of this.#read()) this.#templates.set(template.templateID, template);
  }

  /** By id or name. */
  find(owner: string, reference: string): TemplateRecord | null {
    const byId = this.#templates.get(reference);
    if (byId !== undefined) return byId.owner === owner ? byId : null;
    return this.list(owner).find(({ name }) => name === reference) ?? null;
  }

  list(owner: string): readonly TemplateRecord[] {
    return [...this.#templates.values()].filter((template) => template.owner === owner);
  }

  all(): readonly TemplateRecord[] {
    return [...this.#templates.values()];
  }

  put(template: TemplateRecord): void {
    this.#templates.set(template.templateID, template);
    this.#write();
  }

  delete(templateID: string): void {
    this.#templates.delete(templateID);
    this.#write();
  }

  #read(): readonly TemplateRecord[] {
    if (!existsSync(this.#file)) return [];
    try {
      return fileSchema.parse(JSON.parse(readFileSync(this.#file, "utf8"))).templates;
    } catch (error) {
      throw new MwError("corrupt", `${this.#file} cannot be read: ${messageOf(error)}`, { fix: "restore it, or remove it and build the templates again", cause: error });
    }
  }

  #write(): void {
    mkdirSync(dirname(this.#file), { recursive: true, mode: 0o700 });
    writeFileSync(`${this.#file}.new`, `${JSON.stringify({ version: 1, templates: [...this.#templates.values()] }, null, 2)}\n`, { mode: 0o600 });
    renameSync(`${this.#file}.new`, this.#file);
  }
}

export function templateImage(templateID: string, tag: string): string {
  return `${OWNED_IMAGES}${templateID}:${tag}`;
}

export function isTemplateImage(name: string): boolean {
  return name.startsWith(OWNED_IMAGES);
}

/** `name` or `name:tag`. */
export function splitReference(reference: string): { readonly name: string; readonly tag: string } {
  const at = reference.lastIndexOf(":");
  return at < 0 ? { name: reference, tag: "default" } : { name: reference.slice(0, at), tag: reference.slice(at + 1) };
}
