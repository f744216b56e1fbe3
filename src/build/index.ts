/** Builds: a Dockerfile becomes an image, its steps run in sandboxes. */
export { createImageBuilder, sweepBuilds, type BuilderOptions, type BuildRequest, type ImageBuilder } from "./builder.ts";
