/** The images of a run's tasks: each is pulled or built once, however many rollouts wait for it. */
import { MwError } from "../core/errors.ts";
import type { BuildRequest, ImageBuilder } from "../build/builder.ts";
import type { Image, ImageStore } from "../image/image.ts";
import type { RootFilesystem } from "../sandbox/sandbox.ts";
import type { TaskEnvironment } from "../task/task.ts";
import { attribute } from "./attribution.ts";

export interface TaskImagesOptions {
  readonly images: ImageStore;
  readonly builder: ImageBuilder;
  /** Image used for every task, whatever it declares. */
  readonly override: string | null;
  readonly timeoutMultiplier: number;
  readonly progress: (message: string) => void;
  /** Ends pulls and builds that are under way. */
  readonly signal: AbortSignal;
}

export class TaskImages {
  readonly #options: TaskImagesOptions;
  readonly #known = new Map<string, Promise<RootFilesystem>>();

  constructor(options: TaskImagesOptions) {
    this.#options = options;
  }

  /** What a machine of this environment starts from. A failure that is the task's is remembered. */
  root(environment: TaskEnvironment): Promise<RootFilesystem> {
    const { override } = this.#options;
    const key = override ?? environment.image ?? environment.dockerfile ?? "";
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const making = this.#make(environment);
    this.#known.set(key, making);
    making.catch((error: unknown) => {
      if (attribute("image", error) !== "task_error") this.#known.delete(key);
    });
    return making;
  }

  async #make(environment: TaskEnvironment): Promise<RootFilesystem> {
    return this.#options.images.rootFilesystem(await this.#image(environment));
  }

  #image(environment: TaskEnvironment): Promise<Image> {
    const { images, builder, override, progress, signal, timeoutMultiplier } = this.#options;
    const reference = override ?? environment.image;
    if (reference !== null) return images.resolve(reference, { progress, signal });
    if (environment.dockerfile === null) {
      return Promise.reject(new MwError("invalid_task", `${environment.context} has no Dockerfile and the task names no image`, { fix: "set [environment] docker_image in task.toml, add environment/Dockerfile, or give --image" }));
    }
    const request: BuildRequest = {
      dockerfile: environment.dockerfile,
      context: environment.context,
      timeoutMs: environment.buildTimeoutMs * timeoutMultiplier,
      progress,
      signal,
    };
    return builder.build(request);
  }
}
