/** Images: open a store, resolve references, hand root filesystems to a backend. */
export type { Image, ImageConfig, ImageProgress, ImageReference, ImageStore, LayerDescriptor } from "./image.ts";
export { openImageStore, type ImageStoreOptions, LocalImageStore } from "./store.ts";
