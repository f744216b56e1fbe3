/**
 * What crosses into a separate verifier's machine: the artifacts that the task declares, and /logs/artifacts, at the same absolute paths. Code that would run in
 * the verifier by its mere presence stays behind.
 */
import { posix } from "node:path";
import { LIMITS } from "../../core/limits.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import type { ArtifactRule } from "../task.ts";
import { agentCaused } from "./agent-caused.ts";

const STAYS_BEHIND = ["**/conftest.py", "**/sitecustomize.py", "**/usercustomize.py", "**/__pycache__"];

/** Relative sources are below the agent's working directory, and below the verifier's. Returns notes: a missing artifact is what the tests will say it is. */
export async function copyArtifacts(
  from: Sandbox,
  to: Sandbox,
  rules: readonly ArtifactRule[],
  workdirs: { readonly from: string; readonly to: string },
  signal: AbortSignal,
): Promise<readonly string[]> {
  const notes: string[] = [];
  const all = rules.some(({ source }) => source.replace(/\/$/, "") === "/logs/artifacts") ? rules : [{ source: "/logs/artifacts", destination: "", exclude: [], service: null }, ...rules];
  for (const rule of all) {
    const source = posix.resolve(workdirs.from, rule.source);
    const target = posix.resolve(workdirs.to, rule.source);
    try {
      if ((await from.files.stat(source)) === null) {
        if (rules.includes(rule)) notes.push(`the artifact ${rule.source} does not exist`);
        continue;
      }
      const report = await from.files.copyTo(to.files, source, target, { exclude: [...rule.exclude, ...STAYS_BEHIND], maxBytes: LIMITS.artifactBytes, signal });
      for (const { path, reason } of report.refused.slice(0, 20)) notes.push(`${rule.source}: ${path} did not cross: ${reason}`);
    } catch (error) {
      signal.throwIfAborted();
      if (!agentCaused(error)) throw error;
      notes.push(`the artifact ${rule.source} did not cross: ${error.message.slice(0, 500)}`);
    }
  }
  return notes;
}
