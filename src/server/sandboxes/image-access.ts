/** Which images a client may name: all that are here or can be had, but paths of this host only by whoever runs the server. */
import { MwError } from "../../core/errors.ts";
import type { Image, ImageStore } from "../../image/image.ts";
import { parseImageReference } from "../../image/reference.ts";
import type { RootFilesystem } from "../../sandbox/sandbox.ts";
import type { Runtime } from "../../core/runtime.ts";
import { LOCAL_OWNER } from "../authentication/keys.ts";

export interface UsableImage {
  readonly image: Image;
  readonly root: RootFilesystem;
}

/** Names of images that belong to an owner's templates: each is reached through its template alone. */
export const OWNED_IMAGES = "manyworlds-template/";

/** How long an image that was found counts as found: looking whether it is still what its name means costs more than making a machine. */
const KNOWN_MS = 2_000;

export class ImageAccess {
  readonly #images: ImageStore;
  readonly #runtime: Runtime;
  readonly #log: (line: string) => void;
  readonly #known = new Map<string, { readonly at: number; readonly found: Promise<UsableImage> }>();

  constructor(images: ImageStore, runtime: Runtime, log: (line: string) => void) {
    this.#images = images;
    this.#runtime = runtime;
    this.#log = log;
  }

  /** Rejects `forbidden` for a path of this host, `invalid_image`, `not_found` and what making it rejects. */
  async use(owner: string, reference: string, signal?: AbortSignal): Promise<UsableImage> {
    this.check(owner, reference);
    const now = this.#runtime.monotonic();
    const known = this.#known.get(reference);
    if (known !== undefined && now - known.at < KNOWN_MS) return known.found;
    const found = this.#find(reference, signal);
    this.#known.set(reference, { at: now, found });
    found.catch(() => this.#known.delete(reference));
    if (this.#known.size > 1000) this.#known.delete(this.#known.keys().next().value ?? "");
    return found;
  }

  /** Whether it can be used at once. */
  async isHere(owner: string, reference: string): Promise<boolean> {
    this.check(owner, reference);
    if (reference === "host") return true;
    const known = this.#known.get(reference);
    if (known !== undefined && this.#runtime.monotonic() - known.at < KNOWN_MS) return known.found.then(() => true, () => false);
    return (await this.#images.find(reference)) !== null;
  }

  /** To be called when names may have come to mean something else. */
  forget(): void {
    this.#known.clear();
  }

  check(owner: string, reference: string): void {
    const parsed = parseImageReference(reference);
    const { kind } = parsed;
    if (parsed.kind === "name" && parsed.name.repository.startsWith(OWNED_IMAGES)) throw new MwError("not_found", `there is no image ${JSON.stringify(reference.slice(0, 200))}`, { fix: "name the template" });
    if (owner === LOCAL_OWNER.id || !["dir", "tar", "oci", "docker-archive"].includes(kind)) return;
    throw new MwError("forbidden", `the image ${JSON.stringify(reference.slice(0, 200))} is a path of the server's host`, { fix: "name an image that is there (mw image ls), or one of a registry" });
  }

  async #find(reference: string, signal: AbortSignal | undefined): Promise<UsableImage> {
    const here = await this.#images.find(reference);
    const image = here ?? (await this.#images.resolve(reference, { progress: (message) => this.#log(`${reference}: ${message}`), ...(signal === undefined ? {} : { signal }) }));
    return { image, root: await this.#images.rootFilesystem(image) };
  }
}
