/**
 * Templates of the service that stand for our images.
 *
 * A template with nothing but our programs is built there once (from `scratch`). A machine of it gets the image's files, with owners, modes and times, and is kept as a snapshot
 * under a name that tells the image's content: that is the template of every machine of the image. Where the service cannot build from nothing, its operator names an image to build
 * from that holds what ours does (`from`); then nothing is sent.
 */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import { writeLayerArchive } from "../../../image/export.ts";
import type { RootFilesystem } from "../../sandbox.ts";
import type { ControlPlane } from "./control-plane.ts";
import { ARCHIVE_DIRECTORY, type GuestPrograms } from "./guest-programs.ts";
import type { Scan } from "./scan.ts";

/** A machine without an image of ours, for the time that it is needed. */
export interface Workbench {
  readonly sandboxID: string;
  applyLayer(archive: string): Promise<readonly { readonly path: string; readonly reason: string }[]>;
  scan(): Promise<Scan>;
  kill(): Promise<void>;
}

export interface TemplatesOptions {
  readonly control: ControlPlane;
  readonly programs: GuestPrograms;
  /** What the service builds the first template from. */
  readonly from: string;
  readonly open: (template: string) => Promise<Workbench>;
  readonly log: (line: string) => void;
}

const KEPT = 64;

export class RemoteTemplates {
  readonly #options: TemplatesOptions;
  readonly #templates = new Map<string, Promise<string>>();
  readonly #scans = new Map<string, Promise<Scan>>();

  constructor(options: TemplatesOptions) {
    this.#options = options;
  }

  /** Made when it is not there. Rejects `unsupported` for an image that cannot be sent. */
  of(root: RootFilesystem): Promise<string> {
    return remembered(this.#templates, this.#nameOf(root), (name) => this.#make(root, name));
  }

  /** What a machine of the template holds when nobody has touched it. */
  scan(template: string): Promise<Scan> {
    return remembered(this.#scans, template, async () => {
      const bench = await this.#options.open(template);
      try {
        return await bench.scan();
      } finally {
        await bench.kill();
      }
    });
  }

  /** It is not there after all. */
  forget(root: RootFilesystem): void {
    this.#templates.delete(this.#nameOf(root));
    this.#templates.delete(this.#guestName());
  }

  #guestName(): string {
    const { programs, from } = this.#options;
    return `manyworlds-guest-${hash(programs.digest, from)}`;
  }

  #nameOf(root: RootFilesystem): string {
    const { programs, from } = this.#options;
    if (from !== SCRATCH) return this.#guestName();
    // A digest of another kind names no content.
    const content = /^sha256:[0-9a-f]{64}$/.test(root.digest) ? [root.digest] : [root.digest, ...root.layers];
    return `manyworlds-image-${hash(programs.digest, ...content)}`;
  }

  async #make(root: RootFilesystem, name: string): Promise<string> {
    const base = await remembered(this.#templates, this.#guestName(), (guest) => this.#guest(guest));
    if (this.#options.from !== SCRATCH) return base;
    if (root.parts.length > 0) throw new MwError("unsupported", "The image host is this machine's own programs, which are not sent to a remote service", { fix: "use another image, e.g. --image debian:12" });
    const { control, open, log } = this.#options;
    const known = await control.findSnapshot(name);
    if (known !== null) return known;
    const bench = await open(base);
    try {
      const work = await mkdtemp(join(tmpdir(), "mw-remote-"));
      try {
        for (const [index, layer] of root.layers.toReversed().entries()) {
          if (!existsSync(layer)) throw new MwError("invalid_image", `The image's layer ${layer} is not there`);
          const archive = join(work, `${index}.tar`);
          await writeLayerArchive(layer, archive);
          for (const { path, reason } of await bench.applyLayer(archive)) log(`image ${root.digest}: /${path} is not as it is here on ${name}: ${reason}`);
          await rm(archive);
        }
      } finally {
        await rm(work, { recursive: true, force: true });
      }
      return await control.snapshot(bench.sandboxID, name);
    } finally {
      await bench.kill();
    }
  }

  async #guest(name: string): Promise<string> {
    const { control, programs, from } = this.#options;
    if (!(await control.hasTemplate(name))) await control.build({ name, fromImage: from, archive: programs.archive, directory: ARCHIVE_DIRECTORY, mode: "0755", owner: from === SCRATCH ? "" : "root" });
    return name;
  }
}

/** Nothing to start from: the service's builder knows it by this name. */
export const SCRATCH = "scratch";

function hash(...parts: readonly string[]): string {
  return createHash("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, 32);
}

/** Made once, however many ask at once; a failure is not remembered. */
function remembered<T>(map: Map<string, Promise<T>>, key: string, make: (key: string) => Promise<T>): Promise<T> {
  const known = map.get(key);
  if (known !== undefined) return known;
  const making = make(key);
  map.set(key, making);
  making.catch(() => map.get(key) === making && map.delete(key));
  if (map.size > KEPT) map.delete(map.keys().next().value ?? "");
  return making;
}
