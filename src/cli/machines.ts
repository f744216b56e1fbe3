/** Opens what makes machines for one controller: backend, images, builds. */
import { MwError } from "../core/errors.ts";
import type { Machines } from "../rollout/run.ts";
import type { TaskImages } from "../rollout/task-images.ts";
import type { Verify } from "../rollout/try.ts";
import type { Config } from "./config.ts";

export async function openMachines(_config: Config, _progress: (message: string) => void): Promise<Machines> {
  throw new MwError("unsupported", "this build has no sandbox backend");
}

export function verifier(_machines: Machines, _images: TaskImages): Verify {
  return () => Promise.reject(new MwError("unsupported", "this build has no verifier"));
}
