/** `mw resume`: goes on with a run after its controller died or was stopped. */
import { conductRun } from "../conduct.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { resumeRun } from "../../rollout/run.ts";
import { findRun } from "../../store/run-directory.ts";
import { readRunConfig } from "../../rollout/run-config.ts";
import { loadRunState } from "../../rollout/run-state.ts";
import { expectUpstream } from "../upstream-answers.ts";
import { readApiKey } from "../upstream.ts";

export interface ResumeFlags {
  readonly concurrency?: number;
  readonly apiKeyFile?: string;
  readonly strict: boolean;
  readonly json: boolean;
  readonly quiet: boolean;
}

export async function resume(this: AppContext, flags: ResumeFlags, name: string): Promise<void> {
  const config = loadConfig(this.env, this.cwd, flags);
  const run = await findRun(config.home.value, name);
  const { upstream } = await readRunConfig(config.home.value, run);
  if (upstream !== null && (await loadRunState(config.home.value, run)).status !== "finished") await expectUpstream(upstream.url, this.env);
  await conductRun(this, config, flags, (dependencies) =>
    resumeRun(
      dependencies,
      run,
      // The key is found as it was at the start, unless another place is named now.
      ({ upstream, apiKeyFile }) => (upstream === null ? null : readApiKey(config.get("apiKeyFile") ?? apiKeyFile, this.env)),
      flags.concurrency === undefined ? {} : { concurrency: flags.concurrency },
    ),
  );
}
