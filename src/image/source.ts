/** What every kind of image source has in common: its lasting name, whether it changed since, and how to load it. */
import { MwError } from "../core/errors.ts";
import type { Runtime } from "../core/runtime.ts";
import type { ImageConfig, ImageProgress } from "./image.ts";
import type { LayerRecord, LayerStore } from "./layers.ts";

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

/** The context of a source that is about to work. */
export function needed(context: SourceContext | null): SourceContext {
  if (context === null) throw new MwError("internal", "an image source without a context was used");
  return context;
}
