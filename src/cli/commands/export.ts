/** `mw export`: a run's recorded rollouts as text, or their samples as a file for trainers. */
import { createWriteStream } from "node:fs";
import { rename, rm, stat } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { pipeline } from "node:stream/promises";
import { MwError } from "../../core/errors.ts";
import type { RunId } from "../../core/ids.ts";
import type { Builder, DropCause } from "../../gateway/samples/sample.ts";
import { exportLines, type ExportFormat } from "../../rollout/export.ts";
import { readRunConfig } from "../../rollout/run-config.ts";
import { loadRunState, type RunState } from "../../rollout/run-state.ts";
import { writeParquet } from "../../rollout/samples/parquet.ts";
import { rolloutTokens, sampleRows } from "../../rollout/samples/rollout-samples.ts";
import { writeSafetensors } from "../../rollout/samples/safetensors.ts";
import { closed } from "../../store/durable.ts";
import { findRun, rolloutDirectory } from "../../store/run-directory.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { note } from "../output.ts";

export interface ExportFlags {
  readonly format: ExportFormat;
  readonly scoredOnly: boolean;
  readonly out?: string;
  readonly builder: Builder;
  readonly maxTokens?: number;
}

export async function exportRun(this: AppContext, flags: ExportFlags, name: string): Promise<void> {
  const home = loadConfig(this.env, this.cwd).home.value;
  const run = await findRun(home, name);
  const state = await loadRunState(home, run);
  const out = flags.out === undefined ? null : await writableFile(resolve(this.cwd, flags.out));
  const missing = new MwError("not_found", `${run} has no ${flags.scoredOnly ? "scored" : "recorded"} rollouts to export`, { fix: `mw show ${run} says how far it is` });
  if (![...state.rollouts.values()].some(({ phase, outcome }) => phase === "recorded" && (!flags.scoredOnly || outcome === "scored"))) throw missing;
  const { format } = flags;
  if (format === "parquet" || format === "safetensors") {
    if (out === null) throw new MwError("usage", `${format} is no text for a terminal or a pipe`, { fix: `add --out samples.${format}` });
    const { samples, tokens } = await (format === "parquet" ? writeParquet : writeSafetensors)(out, sampleRows(home, state, flags));
    if (samples === 0) {
      await rm(out, { force: true });
      throw await noSamples(home, run, state, flags);
    }
    note(this, `${samples} samples, ${tokens} tokens in ${out}`);
    return;
  }
  let count = 0;
  const lines = async function* (): AsyncGenerator<string> {
    for await (const line of exportLines(home, await readRunConfig(home, run), state.groups.flatMap((group) => group.rollouts), { ...flags, format })) {
      count++;
      yield `${line}\n`;
    }
  };
  if (out === null) for await (const line of lines()) this.process.stdout.write(line);
  else await writeWhole(out, lines());
  note(this, `${count} ${count === 1 ? "rollout" : "rollouts"}${out === null ? "" : ` in ${out}`}`);
}

/** Why there is nothing to train on. */
async function noSamples(home: string, run: RunId, state: RunState, flags: ExportFlags): Promise<MwError> {
  let calls = 0;
  const dropped = new Map<string, number>();
  for (const rollout of state.rollouts.values()) {
    if (rollout.phase !== "recorded" || (flags.scoredOnly && rollout.outcome !== "scored")) continue;
    const { calls: own, set } = await rolloutTokens(rolloutDirectory(home, run, rollout.rollout), flags);
    calls += own.length;
    for (const [cause, count] of Object.entries(set.ledger.dropped)) if (count > 0) dropped.set(cause, (dropped.get(cause) ?? 0) + count);
  }
  const why =
    calls === 0
      ? "none of its rollouts called a model"
      : dropped.size === 0
        ? `the answers of its ${calls} model calls have no tokens`
        : `all sampled tokens of its ${calls} model calls are dropped: ${[...dropped].map(([cause, count]) => `${count} ${DROPPED[cause as DropCause]}`).join(", ")}`;
  return new MwError("not_found", `${run} has no samples: ${why}`, { fix: "mw show ROLLOUT --tokens says what was captured of each call; exact tokens come from vLLM and SGLang, see docs/model-servers.md" });
}

const DROPPED: Readonly<Record<DropCause, string>> = {
  incomplete: "of answers that broke off",
  no_tokens: "of a server that gives no token ids",
  no_logprobs: "of a server that gives no logprobs",
  kind: "of calls that are not trained",
  realigned: "that the harness spelt anew",
  too_long: "beyond --max-tokens",
};

/** The path again, where a file can be: before a long export, not after it. */
async function writableFile(path: string): Promise<string> {
  const isDirectory = async (name: string): Promise<boolean> => (await stat(name).catch(() => null))?.isDirectory() ?? false;
  if (await isDirectory(path)) throw new MwError("usage", `--out: ${path} is a directory`, { fix: "name a file in it" });
  if (!(await isDirectory(dirname(path)))) throw new MwError("usage", `--out: there is no directory ${dirname(path)}`, { fix: "make it, or name another file" });
  return path;
}

/** There in full or not at all. */
async function writeWhole(path: string, lines: AsyncIterable<string>): Promise<void> {
  const part = `${path}.part`;
  const file = createWriteStream(part);
  try {
    await pipeline(lines, file);
    await rename(part, path);
  } finally {
    await closed(file);
    await rm(part, { force: true });
  }
}
