/** `mw resume`: goes on with a run after its controller died or was stopped. */
import { conductRun } from "../conduct.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { resumeRun } from "../../rollout/run.ts";
import { findRun } from "../../store/run-directory.ts";
import { readRunConfig } from "../../rollout/run-config.ts";
import { loadRunState } from "../../rollout/run-state.ts";
import type { Interrupt } from "../run-flags.ts";
import { expectServer, resumeOnServer } from "../run-on-server.ts";
import { expectUpstream } from "../upstream-answers.ts";
import { readApiKey } from "../upstream.ts";

export interface ResumeFlags {
  readonly concurrency?: number;
  readonly errors: boolean;
  readonly apiKeyFile?: string;
  readonly server?: string;
  readonly interrupt?: Interrupt;
  readonly strict: boolean;
  readonly json: boolean;
  readonly quiet: boolean;
}

export async function resume(this: AppContext, flags: ResumeFlags, name: string): Promise<void> {
  expectServer(flags);
  if (flags.server !== undefined) {
    await resumeOnServer(this, { ...flags, server: flags.server }, name);
    return;
  }
  const config = loadConfig(this.env, this.cwd, flags);
  const run = await findRun(config.home.value, name);
  const { upstream } = await readRunConfig(config.home.value, run);
  if (upstream !== null && (flags.errors || (await loadRunState(config.home.value, run)).status !== "finished")) await expectUpstream(upstream.url, this.env);
  await conductRun(this, config, flags, (dependencies) =>
    resumeRun(
      dependencies,
      run,
      // The key is found as it was at the start, unless another place is named now.
      ({ upstream, apiKeyFile }) => (upstream === null ? null : readApiKey(config.get("apiKeyFile") ?? apiKeyFile, this.env)),
      { errors: flags.errors, ...(flags.concurrency === undefined ? {} : { concurrency: flags.concurrency }) },
    ),
  );
}
