/**
 * OCI images, wherever their blobs lie: index -> manifest -> configuration and layers, every step verified by digest and size before it is believed
 * (https://github.com/opencontainers/image-spec; Docker's media types are the same documents under older names).
 */
import type { Readable } from "node:stream";
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { LIMITS } from "../core/limits.ts";
import { Semaphore } from "../core/semaphore.ts";
import { digestOf, hexOf } from "./digest.ts";
import type { ImageConfig } from "./image.ts";
import { mustBe, parseJson, type LayerRecord, type LayerStore } from "./layers.ts";
import type { LoadedImage, LoadOptions } from "./source.ts";

const Descriptor = z.object({
  mediaType: z.string().default(""),
  digest: z.string(),
  size: z.number().int().nonnegative(),
  annotations: z.record(z.string(), z.string()).nullish(),
  platform: z.object({ os: z.string().default(""), architecture: z.string().default(""), variant: z.string().nullish() }).nullish(),
});
export type Descriptor = z.infer<typeof Descriptor>;

const Index = z.object({ manifests: z.array(Descriptor) });
const Manifest = z.object({ config: Descriptor, layers: z.array(Descriptor) });
const strings = z.array(z.string()).nullish();
const ConfigFile = z.object({
  os: z.string().nullish(),
  architecture: z.string().nullish(),
  config: z
    .object({ Env: strings, WorkingDir: z.string().nullish(), User: z.string().nullish(), Entrypoint: strings, Cmd: strings, Labels: z.record(z.string(), z.string()).nullish() })
    .nullish(),
  rootfs: z.object({ diff_ids: z.array(z.string()) }),
});

/** Where manifests and blobs of one image come from. */
export interface BlobSource {
  /** For messages. */
  readonly label: string;
  /** The bytes of a manifest or index, not yet verified. */
  manifest(descriptor: Descriptor, signal: AbortSignal): Promise<Buffer>;
  /** The bytes of a blob as they are stored, not yet verified. */
  blob(descriptor: Descriptor, signal: AbortSignal): Promise<Readable>;
}

/** Layers of one image that are fetched and unpacked at once. */
const PARALLEL_LAYERS = 3;
/** Indexes within indexes. */
const MAX_DEPTH = 4;

/** Follows `root` (a manifest or an index of them) to this machine's image and unpacks it. */
export async function loadOci(source: BlobSource, root: Descriptor, layers: LayerStore, options: LoadOptions): Promise<LoadedImage> {
  const document = await readDocument(source, root, options.signal);
  const manifest = await findManifest(source, root, document, options.signal, 0);
  if (manifest.layers.length > LIMITS.imageLayers) throw new MwError("limit_exceeded", `${source.label} has ${manifest.layers.length} layers, more than ${LIMITS.imageLayers}`, { fix: "squash it" });
  const config = await readConfig(source, manifest.config, options.signal);
  const diffIds = config.rootfs.diff_ids;
  if (diffIds.length !== manifest.layers.length) {
    throw new MwError("invalid_image", `${source.label} has ${manifest.layers.length} layers but ${diffIds.length} diff ids`, { fix: "build or fetch the image again" });
  }
  const gate = new Semaphore(PARALLEL_LAYERS);
  // One failure stops the others: nothing goes on in the background after the error was reported.
  const stop = new AbortController();
  const signal = AbortSignal.any([options.signal, stop.signal]);
  const jobs = manifest.layers.map((layer, index) =>
    gate.use(async () => {
      signal.throwIfAborted();
      const name = `layer ${index + 1} of ${manifest.layers.length} of ${source.label}`;
      return layers.unpack(
        () => {
          options.progress(`${source.label}: layer ${index + 1} of ${manifest.layers.length} (${(layer.size / 1e6).toFixed(1)} MB)`);
          return source.blob(checkLayer(layer, name), signal);
        },
        { diffId: checked(diffIds[index] ?? ""), digest: layer.digest, whiteouts: true },
        { name, signal },
      );
    }),
  );
  // Awaited one after the other below; until then a failure is not unhandled.
  for (const job of jobs) job.catch(() => undefined);
  let failure: unknown = null;
  const records: LayerRecord[] = [];
  for (const job of jobs) {
    try {
      records.push(await job);
    } catch (error) {
      failure ??= error;
      stop.abort(error);
    }
  }
  if (failure !== null) throw failure;
  return { layers: records, config: imageConfig(config.config ?? {}) };
}

async function findManifest(source: BlobSource, at: Descriptor, document: unknown, signal: AbortSignal, depth: number): Promise<z.infer<typeof Manifest>> {
  const manifest = Manifest.safeParse(document);
  if (manifest.success) return manifest.data;
  const index = Index.safeParse(document);
  if (!index.success || depth > MAX_DEPTH) {
    const schema1 = typeof document === "object" && document !== null && "fsLayers" in document;
    throw new MwError("invalid_image", `${source.label}: ${at.digest} is ${schema1 ? "a manifest of the withdrawn schema 1" : "neither a manifest nor an index"}`, {
      fix: schema1 ? "push the image again with a current tool" : "check that it is a container image",
    });
  }
  const chosen = forThisMachine(index.data.manifests, source.label);
  return findManifest(source, chosen, await readDocument(source, chosen, signal), signal, depth + 1);
}

const ARCHITECTURES: Readonly<Record<string, string>> = { x64: "amd64", ia32: "386", arm64: "arm64", arm: "arm", ppc64: "ppc64le", s390x: "s390x", riscv64: "riscv64" };

/** The manifest for this machine; one without a platform serves when it is the only one. */
export function forThisMachine(manifests: readonly Descriptor[], label: string): Descriptor {
  const architecture = ARCHITECTURES[process.arch] ?? process.arch;
  const fits = manifests.filter(({ platform }) => platform?.os === "linux" && platform.architecture === architecture);
  // Of several variants the plain one runs everywhere.
  const chosen = fits.find(({ platform }) => platform?.variant === null || platform?.variant === undefined) ?? fits[0];
  if (chosen !== undefined) return chosen;
  const [only] = manifests;
  if (manifests.length === 1 && only !== undefined && (only.platform === null || only.platform === undefined)) return only;
  const offered = manifests.map(({ platform }) => (platform ? `${platform.os}/${platform.architecture}` : "unnamed")).filter((name) => name !== "unknown/unknown");
  throw new MwError("invalid_image", `${label} has no image for linux/${architecture}, only for ${[...new Set(offered)].join(", ") || "nothing"}`, { fix: "use an image that is built for this machine" });
}

async function readDocument(source: BlobSource, descriptor: Descriptor, signal: AbortSignal): Promise<unknown> {
  checked(descriptor.digest);
  if (descriptor.size > LIMITS.imageManifestBytes) throw new MwError("limit_exceeded", `the manifest of ${source.label} has ${descriptor.size} bytes, more than ${LIMITS.imageManifestBytes}`);
  const bytes = await source.manifest(descriptor, signal);
  mustBe(descriptor.digest, digestOf(bytes), `the manifest of ${source.label}`, "digest");
  return parseJson(bytes.toString());
}

async function readConfig(source: BlobSource, descriptor: Descriptor, signal: AbortSignal): Promise<z.infer<typeof ConfigFile>> {
  checked(descriptor.digest);
  if (descriptor.size > LIMITS.imageManifestBytes) throw new MwError("limit_exceeded", `the configuration of ${source.label} has ${descriptor.size} bytes, more than ${LIMITS.imageManifestBytes}`);
  const bytes = await collect(await source.blob(descriptor, signal), LIMITS.imageManifestBytes, `the configuration of ${source.label}`);
  mustBe(descriptor.digest, digestOf(bytes), `the configuration of ${source.label}`, "digest");
  return parseConfig(bytes, source.label);
}

export function parseConfig(bytes: Buffer, label: string): z.infer<typeof ConfigFile> {
  const config = ConfigFile.safeParse(parseJson(bytes.toString()));
  if (!config.success) throw new MwError("invalid_image", `${label} has no valid configuration: ${z.prettifyError(config.error)}`, { fix: "it may be an artifact that is no container image" });
  if (config.data.os === "windows") throw new MwError("invalid_image", `${label} is an image for Windows`, { fix: "use a Linux image" });
  return config.data;
}

/** The configuration in this product's terms: a relative working directory is below `/`, as container runtimes have it. */
export function imageConfig(config: NonNullable<z.infer<typeof ConfigFile>["config"]>): ImageConfig {
  const env: Record<string, string> = {};
  for (const text of (config.Env ?? []).slice(0, LIMITS.envEntries)) {
    const equals = text.indexOf("=");
    if (equals > 0) env[text.slice(0, equals)] = text.slice(equals + 1);
  }
  const workdir = config.WorkingDir ?? "";
  return {
    env,
    workdir: workdir.startsWith("/") ? workdir : `/${workdir}`,
    user: config.User ?? "",
    entrypoint: config.Entrypoint ?? [],
    cmd: config.Cmd ?? [],
    labels: config.Labels ?? {},
  };
}

function checkLayer(layer: Descriptor, name: string): Descriptor {
  checked(layer.digest);
  const { mediaType } = layer;
  if (mediaType !== "" && (/encrypted/.test(mediaType) || !/\.tar(\.gzip|\+gzip|\+zstd)?$|\.tar\.zstd$/.test(mediaType))) {
    throw new MwError("invalid_image", `${name} is of type ${JSON.stringify(mediaType.slice(0, 100))}`, { fix: "only tar layers, plain or compressed with gzip or zstd, can be unpacked" });
  }
  if (layer.size > LIMITS.imageLayerBytes) throw new MwError("limit_exceeded", `${name} has ${layer.size} bytes, more than ${LIMITS.imageLayerBytes}`);
  return layer;
}

function checked(digest: string): string {
  hexOf(digest);
  return digest;
}

/** All bytes of a small stream. */
export async function collect(stream: AsyncIterable<Uint8Array>, maxBytes: number, name: string): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of stream) {
    size += part.length;
    if (size > maxBytes) throw new MwError("limit_exceeded", `${name} has more than ${maxBytes} bytes`);
    parts.push(part);
  }
  return Buffer.concat(parts);
}

/** The top document of a layout. */
export function parseIndex(bytes: Buffer, label: string): readonly Descriptor[] {
  const index = Index.safeParse(parseJson(bytes.toString()));
  if (!index.success) throw new MwError("invalid_image", `${label} has no valid index.json`, { fix: "check that it is an OCI image layout" });
  return index.data.manifests;
}
