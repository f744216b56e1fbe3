/** The configuration of one run, as it stands in `run.json`: everything that decides what the run does, except secrets. */
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import { HISTORY_RULES } from "../harness/agent/setup.ts";
import type { RunId } from "../core/ids.ts";
import { OUTCOMES } from "../core/outcome.ts";
import { pricesSchema } from "./cost.ts";
import { readRunDocument } from "../store/run-directory.ts";
import type { NetworkOverride } from "../task/network.ts";

const count = z.int().nonnegative();
/** `digest`: of the directory when the run began; null in the request for a run. */
const tokenizerSchema = z.object({ directory: z.string(), family: z.string().nullable(), digest: z.string().nullable().default(null) }).nullable();
const ruleSchema = z.object({ retries: count, counts: z.boolean() });

export const runConfigSchema = z.object({
  format: z.literal(1),
  run: z.string(),
  createdAt: z.string(),
  /** Version of the product that made it. */
  version: z.string(),
  /** Tasks, directories of tasks and dataset files; absolute paths. */
  inputs: z.array(z.string()).readonly(),
  attempts: count.min(1),
  seed: z.string(),
  harnesses: z.array(z.object({ name: z.string(), version: z.string(), settings: z.record(z.string(), z.unknown()) })).min(1).readonly(),
  /** Name, in the run's directory, of the copy of the script that the `script` harness plays. */
  script: z.string().nullable(),
  /** What the `generic` harness runs. */
  harnessCommand: z.string().nullable().default(null),
  /** User of agent CLIs, instead of the task's. */
  harnessUser: z.string().nullable().default(null),
  /** Changes to the setups of the white-box harnesses; see `AgentOptions`. */
  agent: z
    .object({ systemPrompt: z.string().nullable().exactOptional(), history: z.enum(HISTORY_RULES).exactOptional(), historyTokens: count.exactOptional(), keepReasoning: z.boolean().exactOptional() })
    .default({}),
  /** `url`: as given, with the kind where one was named. `requireTokens`: the run is to be trained on. `tokenizer`: prompts are rendered here, with what is in that directory. */
  upstream: z
    .object({
      url: z.string(),
      model: z.string(),
      sampling: z.record(z.string(), z.number()),
      requireTokens: z.boolean().default(false),
      tokenizer: tokenizerSchema.default(null),
    })
    .nullable(),
  /** What is paid for tokens and machines. Absent: nobody said. */
  prices: pricesSchema.readonly().exactOptional(),
  /** Where the upstream's key is read from at start and resume; the key itself is nowhere. */
  apiKeyFile: z.string().nullable(),
  budgets: z.object({ turns: count, tokens: count.nullable(), commandMs: count, outputBytes: count }),
  /** What makes the machines: `native`, `oci:RUNTIME`, `remote:URL`. */
  backend: z.string().default("native"),
  /** Instead of what tasks declare. */
  network: z.enum(["none", "allowlist", "public"]).nullable(),
  /** Hosts that machines may reach besides what tasks declare, wherever that is not everything. Absent: none. */
  allow: z.array(z.string()).readonly().exactOptional(),
  image: z.string().nullable(),
  /** Run although declared limits cannot be enforced. */
  ignoreLimits: z.boolean(),
  /** Keep what each agent left, as an archive in the rollout's directory. */
  keepWorkspace: z.boolean().default(false),
  /** Machines stand still while their models think. */
  pauseOnThink: z.boolean().default(false),
  /** Rollouts of white-box harnesses are kept between their turns, at most so often; 0: behind every turn; null: never. */
  checkpointEveryMs: count.nullable().default(null),
  /** Machines outlive a controller that dies so long, and the next one goes on with those whose agents are processes of theirs; null: they end with it. */
  takeOverSeconds: count.nullable().default(null),
  /** Groups are `members` rollouts of which all but the first branch from the first, behind `turn`. */
  branch: z.object({ members: count.min(2), turn: count.min(1) }).nullable().default(null),
  timeoutMultiplier: z.number().positive(),
  concurrency: count.min(1),
  durability: z.enum(["process", "power"]),
  /** Of a run whose groups a trainer asks for while it goes on: as the trainer calls it, how often that name was used before, and what its policy's prompts are rendered with here. */
  trainer: z.object({ name: z.string(), epoch: count, tokenizer: tokenizerSchema, singleVersion: z.boolean() }).nullable().default(null),
  rules: z.record(z.enum(Object.keys(OUTCOMES) as [keyof typeof OUTCOMES]), ruleSchema),
});

export type RunConfig = Readonly<z.infer<typeof runConfigSchema>>;

/** What the run says of the networks of its tasks. */
export function networkOverrideOf({ network, allow }: Pick<RunConfig, "network" | "allow">): NetworkOverride {
  return { network, allow: allow ?? [] };
}

/** Reads and checks `run.json`. */
export async function readRunConfig(home: string, run: RunId): Promise<RunConfig> {
  const parsed = runConfigSchema.safeParse(await readRunDocument(home, run));
  if (parsed.success) return parsed.data;
  throw new MwError("corrupt", `the configuration of ${run} (run.json) is not one that this version can read: ${z.prettifyError(parsed.error).replaceAll("\n", " ")}`, {
    fix: "use the version of mw that made the run",
  });
}
