/** Where images come from. Each kind of reference has one source, which knows its lasting name, whether it changed since, and how to load it. */
import type { Runtime } from "../core/runtime.ts";
import { MwError } from "../core/errors.ts";
import { debianSource } from "./debian.ts";
import { dockerArchiveSource } from "./docker-archive.ts";
import { hostSource } from "./host.ts";
import type { ImageConfig, ImageProgress } from "./image.ts";
import type { LayerRecord, LayerStore } from "./layers.ts";
import type { ParsedReference } from "./reference.ts";
import { ociSource } from "./oci-layout.ts";
import { registrySource } from "./registry-source.ts";
import { directorySource, tarSource } from "./root-sources.ts";

export interface SourceContext {
  /** As the user wrote it. */
  readonly reference: string;
  /** The data directory. */
  readonly home: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly layers: LayerStore;
  readonly runtime: Runtime;
}

export interface LoadOptions {
  readonly progress: ImageProgress;
  readonly signal: AbortSignal;
}

export interface LoadedImage {
  /** Bottom first. */
  readonly layers: readonly LayerRecord[];
  readonly config: ImageConfig;
  readonly hostParts?: readonly string[];
  /** Makes the image's digest from that of its content; absent: the content's is the image's. */
  readonly digest?: (content: string) => string;
}

export interface Source {
  /** The name under which the image is remembered; the same for every way to write the reference. */
  readonly name: string;
  /** For people. */
  readonly label: string;
  /** Equal to the recorded one as long as the image need not be made again; null: it never changes. */
  fingerprint(): Promise<string | null>;
  load(options: LoadOptions): Promise<LoadedImage>;
}

/** Without a context only the name is of use. */
export function sourceOf(reference: Exclude<ParsedReference, { kind: "digest" }>, context: SourceContext | null): Source {
  switch (reference.kind) {
    case "host":
      return hostSource(context);
    case "dir":
      return directorySource(reference.path, context);
    case "tar":
      return tarSource(reference.path, context);
    case "oci":
      return ociSource(reference.path, reference.tag, context);
    case "docker-archive":
      return dockerArchiveSource(reference.path, reference.tag, context);
    case "mmdebstrap":
      return debianSource(reference.suite, reference.packages, context);
    case "name":
      return registrySource(reference.name, context);
  }
}

/** The context of a source that is about to work. */
export function needed(context: SourceContext | null): SourceContext {
  if (context === null) throw new MwError("internal", "an image source without a context was used");
  return context;
}
