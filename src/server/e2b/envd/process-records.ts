/**
 * Where machines outlive the server: what the next one is to know of the commands that run in them, which the machine itself does not: their tags and how they were asked for. One file a
 * sandbox. It has to outlive this process and not the host, with which the commands end, so it is never synced.
 */
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import type { ExecId } from "../../../core/ids.ts";

const schema = z.array(
  z.object({
    exec: z.string().transform((id) => id as ExecId),
    pid: z.int(),
    tag: z.string().nullable(),
    pty: z.boolean(),
    config: z.object({ cmd: z.string(), args: z.array(z.string()), envs: z.record(z.string(), z.string()), cwd: z.string().exactOptional() }),
  }),
);
export type ProcessRecord = z.output<typeof schema>[number];

export class ProcessRecords {
  readonly #directory: string;

  constructor(home: string) {
    this.#directory = join(home, "e2b-processes");
  }

  /** Of a sandbox; none where nothing that can be read is there. */
  async read(sandbox: string): Promise<readonly ProcessRecord[]> {
    try {
      return schema.parse(JSON.parse(await readFile(this.#path(sandbox), "utf8")));
    } catch {
      return [];
    }
  }

  /** One call at a time for each sandbox. */
  async write(sandbox: string, records: readonly ProcessRecord[]): Promise<void> {
    const path = this.#path(sandbox);
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    await writeFile(`${path}.new`, JSON.stringify(records), { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  async delete(sandbox: string): Promise<void> {
    await rm(this.#path(sandbox), { force: true });
  }

  /** Takes away those of sandboxes that are no more. */
  async sweep(lives: (sandbox: string) => boolean): Promise<void> {
    for (const name of await readdir(this.#directory).catch(() => [])) {
      if (!name.endsWith(".json") || !lives(name.slice(0, -".json".length))) await rm(join(this.#directory, name), { force: true });
    }
  }

  #path(sandbox: string): string {
    return join(this.#directory, `${sandbox}.json`);
  }
}
