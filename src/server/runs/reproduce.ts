/** The command line that runs a rollout's task again as the run did. */
import type { RunConfig } from "../../rollout/run-config.ts";
import type { RolloutState } from "../../rollout/rollout-state.ts";

/** Draws depend on a task's place among the inputs: for a run of one task the same seed gives the same rollout, for others the same task, harness and settings. */
export function reproduceCommand(config: RunConfig | null, { task, harness, attempt }: RolloutState): string {
  const words = ["mw", "run", task.directory, "--harness", harness];
  const add = (flag: string, value: string | number | null | undefined): void => {
    if (value !== null && value !== undefined) words.push(flag, String(value));
  };
  if (config !== null) {
    const { upstream, budgets, network, image } = config;
    add("--seed", config.seed);
    if (attempt > 1) add("--attempts", attempt);
    add("--upstream", upstream?.url);
    add("--model", upstream?.model);
    add("--tokenizer", upstream?.tokenizer?.directory);
    add("--family", upstream?.tokenizer?.family);
    for (const [name, flag] of [["temperature", "--temperature"], ["top_p", "--top-p"], ["seed", "--sampling-seed"], ["max_tokens", "--max-tokens"]] as const) add(flag, upstream?.sampling[name]);
    add("--max-turns", budgets.turns);
    add("--token-budget", budgets.tokens);
    add("--backend", config.backend === "native" ? null : config.backend);
    add("--network", network);
    for (const host of config.allow ?? []) add("--allow", host);
    add("--image", image);
    add("--harness-command", config.harnessCommand);
    add("--harness-user", config.harnessUser);
    add("--history", config.agent.history);
    if (config.timeoutMultiplier !== 1) add("--timeout-multiplier", config.timeoutMultiplier);
    if (config.takeOverSeconds !== null) words.push("--take-over", String(config.takeOverSeconds));
    if (config.checkpointEveryMs !== null) words.push("--checkpoint", config.checkpointEveryMs === 0 ? "every-turn" : `${config.checkpointEveryMs}ms`);
    if (config.branch !== null) words.push("--branch", String(config.branch.members), "--branch-turn", String(config.branch.turn));
    if (config.pauseOnThink) words.push("--pause-on-think");
    if (config.keepWorkspace) words.push("--keep-workspace");
    if (config.ignoreLimits) words.push("--ignore-limits");
  }
  return words.map(quoted).join(" ");
}

function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`;
}
