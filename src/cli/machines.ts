/** Opens what makes machines for one controller: backend, images, builds. */
import { MwError } from "../core/errors.ts";
import type { Machines } from "../rollout/run.ts";
import type { TaskImages } from "../rollout/task-images.ts";
import type { Verify } from "../rollout/try.ts";
import { createVerifier } from "../task/verify/verify.ts";
import type { Config } from "./config.ts";
import type { AppContext } from "./context.ts";

export async function openMachines(_config: Config, _progress: (message: string) => void): Promise<Machines> {
  throw new MwError("unsupported", "this build has no sandbox backend");
}

/** Grades rollouts with the machines of this controller. */
export function verifier({ runtime, env }: AppContext, machines: Machines, images: TaskImages): Verify {
  const { verify } = createVerifier({ backend: machines.backend, runtime, imageRoot: (environment) => images.root(environment), lookupEnv: (name) => env[name] });
  return async (request) => (await verify(request)).verdict;
}
