/**
 * Images: what a sandbox starts from. An image is a list of layers by digest plus a configuration; layers are unpacked once per data directory, shared between
 * images, and collected when no image names them.
 */
import type { RootFilesystem } from "../sandbox/sandbox.ts";

/**
 * How a user names an image; parsed by `parseImageReference`:
 * - `host`: the host's own root, read-only, secrets and home directories masked
 * - `dir:PATH`, `tar:PATH`: a root directory, a root tar archive (gzip, zstd, xz and bzip2 by their magic bytes)
 * - `oci:PATH[:TAG]`, `docker-archive:PATH[:TAG]`: an OCI layout directory or archive, a docker-save archive
 * - `debian:SUITE[+pkg,pkg...]` through mmdebstrap when the alias table maps it so: `mmdebstrap:SUITE[+pkg,pkg...]`
 * - anything else: a local name, then an alias, then a registry reference (`python:3.12-slim`, `ghcr.io/a/b@sha256:...`)
 */
export type ImageReference = string;

export interface ImageConfig {
  readonly env: Readonly<Record<string, string>>;
  readonly workdir: string;
  readonly user: string;
  readonly entrypoint: readonly string[];
  readonly cmd: readonly string[];
  readonly labels: Readonly<Record<string, string>>;
}

export interface LayerDescriptor {
  /** Digest of the uncompressed tar (OCI diff id), or of the canonical tree for layers made here. */
  readonly digest: string;
  readonly bytes: number;
}

export interface Image {
  /** `sha256:...` over layers and configuration. */
  readonly digest: string;
  /** Bottom first, as in OCI. */
  readonly layers: readonly LayerDescriptor[];
  readonly config: ImageConfig;
  /** Where it came from, for people. */
  readonly source: string;
  readonly createdAt: number;
  /** True where owners could not be kept (ordinary user without subordinate ids). */
  readonly ownersFlattened: boolean;
}

export interface ImageProgress {
  (message: string): void;
}

export interface ImageStore {
  /** Makes the image available, pulling, importing or bootstrapping it if need be; concurrent calls for one image share the work. */
  resolve(reference: ImageReference, options?: { readonly progress?: ImageProgress; readonly signal?: AbortSignal }): Promise<Image>;
  /** Only what is here already; null otherwise. */
  find(reference: ImageReference): Promise<Image | null>;
  /** The directories to mount. The image must have been resolved. */
  rootFilesystem(image: Image): Promise<RootFilesystem>;
  /** Gives a name to an image. */
  tag(image: Image, name: string): Promise<void>;
  list(): Promise<readonly { readonly name: string | null; readonly image: Image; readonly bytes: number }[]>;
  /** Removes a name, or an image by digest with all its names. */
  remove(nameOrDigest: string): Promise<void>;
  /** Deletes layers that no image names and no live process holds. Returns freed bytes. */
  collect(): Promise<number>;
  /**
   * Adds a layer from a directory tree prepared by the caller (as overlay upper: whiteouts are 0/0 character devices, opaque directories carry the overlay
   * xattr) and returns a new image on top of `base`. Used by builds.
   */
  commit(base: Image | null, layerDirectory: string | null, config: ImageConfig, source: string): Promise<Image>;
}
