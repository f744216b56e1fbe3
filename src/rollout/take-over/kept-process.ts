/**
 * A process of a machine that another controller can go on with: what it says, whole, in a directory that may be that of several, one after another.
 *
 *     stdout, stderr    its output as it was read
 */
import { createReadStream } from "node:fs";
import { open, rm, stat, type FileHandle } from "node:fs/promises";
import { join } from "node:path";
import type { ExecId } from "../../core/ids.ts";
import type { BegunProcess, Handover } from "../../harness/handover.ts";
import type { ExecChunk } from "../../sandbox/sandbox.ts";
import { guarded } from "../recorder.ts";

const STREAMS = ["stdout", "stderr"] as const;

export class KeptProcess implements Handover {
  readonly exec: ExecId;
  readonly begun: BegunProcess | null;
  readonly orBegins?: true;
  readonly #directory: string;
  readonly #begin: (plan: unknown) => Promise<void>;
  readonly #files = new Map<ExecChunk["stream"], FileHandle>();

  /** `begin` writes down that it begins. */
  constructor(directory: string, exec: ExecId, begun: BegunProcess | null, begin: (plan: unknown) => Promise<void>, options: Pick<Handover, "orBegins"> = {}) {
    this.exec = exec;
    this.begun = begun;
    if (options.orBegins === true) this.orBegins = true;
    this.#directory = directory;
    this.#begin = begin;
  }

  async beginning(plan?: unknown): Promise<void> {
    await guarded(this.#directory, async () => {
      for (const stream of STREAMS) await rm(join(this.#directory, stream), { force: true });
      await this.#begin(plan);
    });
  }

  async said({ stream, data }: ExecChunk): Promise<void> {
    await guarded(this.#directory, async () => {
      const file = this.#files.get(stream) ?? (await open(join(this.#directory, stream), "a", 0o600));
      this.#files.set(stream, file);
      await file.writeFile(data);
    });
  }

  async close(): Promise<void> {
    for (const file of this.#files.values()) await file.close().catch(() => undefined);
    this.#files.clear();
  }
}

/** What an earlier controller kept of it. */
export async function keptOf(directory: string, at: number, plan?: unknown): Promise<BegunProcess> {
  const [stdout = 0, stderr = 0] = await Promise.all(STREAMS.map((stream) => sizeOf(join(directory, stream))));
  return { at, plan, offsets: { stdout, stderr }, earlier: () => earlier(directory) };
}

async function* earlier(directory: string): AsyncGenerator<ExecChunk> {
  for (const stream of STREAMS) {
    if ((await sizeOf(join(directory, stream))) === 0) continue;
    for await (const data of createReadStream(join(directory, stream))) yield { stream, data: data as Buffer };
  }
}

async function sizeOf(path: string): Promise<number> {
  return (await stat(path).catch(() => null))?.size ?? 0;
}
