/**
 * Builds a Dockerfile into an image. Our own executor does what it can do faithfully, in our own sandboxes; what it cannot do goes to buildah when that is
 * installed, and is otherwise refused by name.
 */
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { MwError, messageOf } from "../core/errors.ts";
import { holderLives, isHolderName, ownName } from "../image/holder.ts";
import type { Image, ImageProgress, ImageStore } from "../image/image.ts";
import { removeTree } from "../image/unpacker.ts";
import type { NetworkMode, SandboxBackend } from "../sandbox/sandbox.ts";
import { buildWithBuildah, findBuildah } from "./buildah.ts";
import { openContext } from "./context.ts";
import { parseDockerfile } from "./dockerfile.ts";
import { StageExecutor, type BuildEnvironment } from "./stage.ts";
import { expandVariables } from "./words.ts";

export interface BuildRequest {
  /** Absolute paths. */
  readonly dockerfile: string;
  readonly context: string;
  readonly args?: Readonly<Record<string, string>>;
  /** Stage to stop at; default the last. */
  readonly target?: string;
  readonly timeoutMs?: number;
  /** Network of RUN steps. Default: `public` where the backend can, else `none`. */
  readonly network?: NetworkMode;
  /** Hosts that RUN steps reach with the network `allowlist`. */
  readonly allow?: readonly string[];
  readonly progress?: ImageProgress;
  readonly signal?: AbortSignal;
}

export interface ImageBuilder {
  /** Concurrent builds of the same inputs share the work; finished steps are reused from the build cache. */
  build(request: BuildRequest): Promise<Image>;
}

export interface BuilderOptions {
  readonly backend: SandboxBackend;
  readonly images: ImageStore;
  /** Directory for the build cache and temporary files, below the data directory. */
  readonly directory: string;
}

export function createImageBuilder(options: BuilderOptions): ImageBuilder {
  const running = new Map<string, Promise<Image>>();
  return {
    build: (request) => {
      const key = JSON.stringify([request.dockerfile, request.context, request.args, request.target, request.network, request.allow]);
      const shared = running.get(key);
      if (shared !== undefined) return shared;
      const promise = buildOnce(options, request).finally(() => running.delete(key));
      running.set(key, promise);
      return promise;
    },
  };
}

/** In a builder's directory: finished steps. */
const CACHE = "cache";

/** Takes away what builders left that died in the middle. `directory`: as a builder's. */
export async function sweepBuilds(directory: string): Promise<void> {
  for (const place of [directory, join(directory, CACHE)]) {
    const names = await readdir(place).catch(() => []);
    for (const name of names) if (isHolderName(name) && !holderLives(name)) await removeTree(join(place, name));
  }
}

async function buildOnce(options: BuilderOptions, request: BuildRequest): Promise<Image> {
  const text = await readFile(request.dockerfile, "utf8").catch((error: unknown) => {
    throw new MwError("invalid_image", `cannot read ${request.dockerfile}: ${messageOf(error)}`, { fix: "Check the path of the Dockerfile.", cause: error });
  });
  const name = relative(process.cwd(), request.dockerfile) || request.dockerfile;
  let parsed;
  try {
    parsed = parseDockerfile(text, name);
  } catch (error) {
    const buildah = await findBuildah();
    if (buildah === null || !(error instanceof MwError) || !error.message.includes("cannot be built here")) throw error;
    request.progress?.(`${error.message}; building with buildah`);
    return buildWithBuildah(buildah, options.images, request);
  }
  for (const warning of parsed.warnings) request.progress?.(warning);

  await resolveBases(options, request, parsed);
  await mkdir(join(options.directory, CACHE), { recursive: true });
  await sweepBuilds(options.directory);
  const temporary = join(options.directory, ownName());
  await mkdir(temporary, { mode: 0o700 });
  const deadline = AbortSignal.timeout(request.timeoutMs ?? 600_000);
  const environment: BuildEnvironment = {
    ...options,
    dockerfileName: name,
    temporary,
    context: await openContext(request.context, request.dockerfile),
    network: request.network ?? (options.backend.capabilities.networks.includes("public") ? "public" : "none"),
    allow: request.allow ?? [],
    progress: request.progress ?? (() => undefined),
    signal: request.signal === undefined ? deadline : AbortSignal.any([deadline, request.signal]),
    escape: parsed.escape,
    buildArgs: request.args ?? {},
    cache: stepCache(join(options.directory, CACHE), options.images),
  };
  try {
    return await buildStages(environment, parsed, request.target);
  } catch (error) {
    if (deadline.aborted) {
      throw new MwError("image_failed", `building ${name} took longer than ${Math.round((request.timeoutMs ?? 600_000) / 1000)} s`, {
        fix: "Raise build_timeout_sec in task.toml, or make the build lighter.",
        cause: error,
      });
    }
    throw error;
  } finally {
    await rm(temporary, { recursive: true, force: true });
  }
}

/** Pulling or bootstrapping what the stages start from is not the build's own time: the deadline of a task's build starts after it. */
async function resolveBases({ images }: BuilderOptions, request: BuildRequest, parsed: ReturnType<typeof parseDockerfile>): Promise<void> {
  const globals = globalArguments(parsed, request.args ?? {});
  const names = new Set(parsed.stages.flatMap(({ name }, index) => [String(index), ...(name === null ? [] : [name])]));
  for (const { base } of parsed.stages) {
    const image = expandVariables(base, parsed.escape, (name) => globals.get(name));
    if (image === "scratch" || image === "" || names.has(image.toLowerCase())) continue;
    await images.resolve(image, { ...(request.progress === undefined ? {} : { progress: request.progress }), ...(request.signal === undefined ? {} : { signal: request.signal }) });
  }
}

function globalArguments(parsed: ReturnType<typeof parseDockerfile>, given: Readonly<Record<string, string>>): ReadonlyMap<string, string> {
  const globals = new Map<string, string>();
  for (const { name, value } of parsed.globalArgs) {
    const own = given[name] ?? (value === null ? undefined : expandVariables(value, parsed.escape, (other) => globals.get(other)));
    if (own !== undefined) globals.set(name, own);
  }
  return globals;
}

async function buildStages(environment: BuildEnvironment, parsed: ReturnType<typeof parseDockerfile>, target: string | undefined): Promise<Image> {
  const globals = globalArguments(parsed, environment.buildArgs);
  const wanted = target === undefined ? parsed.stages.length - 1 : parsed.stages.findIndex((stage, index) => stage.name === target.toLowerCase() || String(index) === target);
  if (wanted < 0) {
    throw new MwError("invalid_image", `${environment.dockerfileName} has no stage ${target}`, {
      fix: `Its stages are: ${parsed.stages.map((stage, index) => stage.name ?? index).join(", ")}.`,
    });
  }
  const images = new Map<string, Image>();
  const needed = neededStages(parsed, wanted);
  let result: Image | null = null;
  for (const [index, stage] of parsed.stages.entries()) {
    if (!needed.has(index)) continue;
    const executor = new StageExecutor(environment, stage, globals, images);
    result = await executor.run();
    images.set(String(index), result);
    if (stage.name !== null) images.set(stage.name, result);
  }
  // `wanted` is in `needed`, so at least one stage ran.
  if (result === null) throw new MwError("internal", "no stage was built");
  return result;
}

/** The stages that the wanted one starts or copies from, directly or not. */
function neededStages(parsed: ReturnType<typeof parseDockerfile>, wanted: number): ReadonlySet<number> {
  const needed = new Set<number>();
  const visit = (index: number): void => {
    const stage = parsed.stages[index];
    if (stage === undefined || needed.has(index)) return;
    needed.add(index);
    const names = [stage.base, ...stage.instructions.flatMap((step) => (step.kind === "copy" && step.from !== null ? [step.from] : []))];
    for (const name of names) {
      const at = parsed.stages.findIndex((other, otherIndex) => otherIndex < index && (other.name === name.toLowerCase() || String(otherIndex) === name));
      if (at >= 0) visit(at);
    }
  };
  visit(wanted);
  return needed;
}

export interface StepCache {
  find(key: string): Promise<Image | null>;
  add(key: string, image: Image): Promise<void>;
}

/** One small file a step, naming the image that it led to; a hit counts only while the store still has that image. */
export function stepCache(directory: string, images: ImageStore): StepCache {
  const path = (key: string): string => join(directory, createHash("sha256").update(key).digest("hex"));
  return {
    find: async (key) => {
      const digest = await readFile(path(key), "utf8").catch(() => null);
      return digest === null ? null : images.find(digest.trim());
    },
    add: async (key, image) => {
      // Builds of one process, too, end equal steps at the same time.
      const temporary = join(directory, ownName());
      await writeFile(temporary, `${image.digest}\n`);
      await rename(temporary, path(key));
    },
  };
}
