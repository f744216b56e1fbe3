/**
 * Which runs by plan this server is to have under way: one file each, written before anything of the run exists and gone when it has ended. A server that finds some at its start goes on
 * with them.
 */
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { messageOf } from "../../core/errors.ts";
import { isId, type RunId } from "../../core/ids.ts";
import { planSchema, type PlanRequest } from "./wire.ts";

/** `request`: null for a run that was there already. */
const schema = z.strictObject({ version: z.literal(1), request: planSchema.nullable(), errors: z.boolean() });

export interface Mark {
  readonly request: PlanRequest | null;
  /** What failed is to begin again. */
  readonly errors: boolean;
}

export class Marks {
  readonly #directory: string;

  constructor(home: string) {
    this.#directory = join(home, "plans");
  }

  async put(run: RunId, mark: Mark): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    const path = this.#path(run);
    await writeFile(`${path}.new`, `${JSON.stringify({ version: 1, ...mark })}\n`, { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  async delete(run: RunId): Promise<void> {
    await rm(this.#path(run), { force: true });
  }

  /** In the order of their ids. One that cannot be read is told and left where it is. */
  async all(log: (line: string) => void): Promise<readonly { readonly run: RunId; readonly mark: Mark }[]> {
    if (!existsSync(this.#directory)) return [];
    const found: { run: RunId; mark: Mark }[] = [];
    for (const name of (await readdir(this.#directory)).toSorted()) {
      const run = name.replace(/\.json$/, "");
      if (run === name || !isId("run", run)) continue;
      try {
        const { request, errors } = schema.parse(JSON.parse(await readFile(join(this.#directory, name), "utf8")));
        found.push({ run, mark: { request, errors } });
      } catch (error) {
        log(`${join(this.#directory, name)} is no mark of a run: ${messageOf(error)}`);
      }
    }
    return found;
  }

  #path(run: RunId): string {
    return join(this.#directory, `${run}.json`);
  }
}
