/**
 * What is to be known of commands that go on in another life of their machine, which the machine itself does not know: their tags and how they were asked for. One file for each paused
 * sandbox and each snapshot with processes, and where machines outlive the server, for each sandbox. It has to outlive this process and not the host, with whose kernel the commands end,
 * so it is never synced.
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

  /** Of a sandbox or a snapshot; none where nothing that can be read is there. */
  async read(of: string): Promise<readonly ProcessRecord[]> {
    try {
      return schema.parse(JSON.parse(await readFile(this.#path(of), "utf8")));
    } catch {
      return [];
    }
  }

  /** One call at a time for each. */
  async write(of: string, records: readonly ProcessRecord[]): Promise<void> {
    const path = this.#path(of);
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    await writeFile(`${path}.new`, JSON.stringify(records), { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  async delete(of: string): Promise<void> {
    await rm(this.#path(of), { force: true });
  }

  /** Takes away those of what is no more. */
  async sweep(lives: (of: string) => boolean): Promise<void> {
    for (const name of await readdir(this.#directory).catch(() => [])) {
      if (!name.endsWith(".json") || !lives(name.slice(0, -".json".length))) await rm(join(this.#directory, name), { force: true });
    }
  }

  #path(of: string): string {
    return join(this.#directory, `${of}.json`);
  }
}
