/**
 * The wire between a trainer and the delivery service, as schemas: routes, OpenAPI document and clients are made from these. Names are as on the wire. Times are milliseconds
 * unless the name says otherwise; `*_at` are milliseconds since the epoch.
 *
 * A trainer names runs and groups itself (`[A-Za-z0-9._:-]`, at most 128 characters): asking again with the same name and content changes nothing, with other content it is a 409.
 */
import { z } from "zod";
import { OUTCOMES } from "../core/outcome.ts";
import { BUILDERS } from "../gateway/samples/sample.ts";
import { pricesSchema } from "../rollout/cost.ts";

const count = z.int().nonnegative();
const seconds = z.number().positive();

export const nameSchema = z.string().regex(/^[A-Za-z0-9._:-]{1,128}$/, "1 to 128 of A-Z a-z 0-9 . _ : -");

const harnessesSchema = z.array(z.string().min(1).max(256)).min(1).max(64);

/** What is done about members of a group that are not usable. A group always has one outcome; these rules say which, and whether members are replaced first. */
export const partialRuleSchema = z.discriminatedUnion("rule", [
  z.strictObject({ rule: z.literal("require_all") }),
  /** `min` null: max(2, half of the group, rounded up); never more than the group has. */
  z.strictObject({ rule: z.literal("min_usable"), min: count.min(1).nullable().default(null) }),
  /** Each member that fails is replaced up to `replacements` times by a new rollout with a seed of its own, then as `min_usable`. */
  z.strictObject({ rule: z.literal("replace_then_min_usable"), replacements: count.min(1).max(16).default(1), min: count.min(1).nullable().default(null) }),
]);

/** A part of the mix that is trained on: tasks, and how often they are drawn beside the other parts. */
export const datasetPartSchema = z.strictObject({
  name: nameSchema.max(100),
  /** Task directories, directories of tasks, dataset files: absolute host paths. */
  inputs: z.array(z.string().min(1).max(4096)).min(1).max(4096),
  weight: z.number().positive().default(1),
  /** Rollouts of a group; the run's where absent. */
  group_size: count.min(1).max(4096).exactOptional(),
  harness: harnessesSchema.exactOptional(),
});

export const samplingSchema = z.strictObject({
  temperature: z.number().nonnegative().exactOptional(),
  top_p: z.number().positive().max(1).exactOptional(),
  max_tokens: count.min(1).exactOptional(),
  seed: z.int().exactOptional(),
});

export const runRequestSchema = z.strictObject({
  seed: z.string().max(256).default("0"),
  group_size: count.min(1).max(4096).default(8),
  /** Rollouts at the same time. */
  concurrency: count.min(1).default(16),
  /** One is drawn for each rollout. */
  harness: harnessesSchema.default(["bash"]),
  budgets: z.strictObject({ turns: count.min(1).default(50), tokens: count.min(1).nullable().default(null) }).prefault({}),
  sampling: samplingSchema.prefault({}),
  /** Renders prompts here, for endpoints that take tokens; see docs/model-families.md. */
  tokenizer: z.strictObject({ directory: z.string(), family: z.string().nullable().default(null) }).nullable().default(null),
  /** Groups that the trainer consumes in a step: B of the admission rule. */
  batch_groups: count.min(1).default(8),
  /** S: trainer version minus the version of the oldest trained token in a sample is never more than this when a group is leased. */
  max_staleness: count.default(1),
  /** `by_admission`: a group is begun only when it cannot become too stale even if everything begun before it is consumed first; `at_lease`: only the check when it is leased. */
  admission: z.enum(["by_admission", "at_lease"]).default("by_admission"),
  partial: partialRuleSchema.prefault({ rule: "replace_then_min_usable" }),
  /** Members begun beyond the group's size; the group is ready when its size is usable, and what still runs then is cancelled and counted by how long it had run. */
  redundancy: count.max(4096).default(0),
  deadlines: z
    .strictObject({
      /** From the rollout's start; null: what its task says. */
      rollout_s: seconds.nullable().default(null),
      /** From the group's acceptance, waiting included; then members that have not ended are cancelled and the group ends by its rule. */
      group_s: seconds.default(24 * 3600),
    })
    .prefault({}),
  /** `scored`: rollouts that ran out of turns, tokens or time are usable, with the verifier's reward; `unusable`: they are not. */
  exhausted: z.enum(["scored", "unusable"]).default("scored"),
  /** A task whose groups fail so often in a row is not begun again; submitting it is refused. Null: never. */
  quarantine_after: count.min(1).nullable().default(3),
  /** The run fails, and leases say so, after so many groups in a row without a usable sample. Null: never. */
  fail_after_dead_groups: count.min(1).nullable().default(20),
  /** What may be accepted and not yet consumed. Over it a submission is a 429 with what is free. */
  credits: z
    .strictObject({ groups: count.min(1).default(1024), bytes: count.min(1).default(1024 ** 3) })
    .prefault({}),
  /** Bytes of consumed groups that are kept for a restore, from the first checkpoint on; beyond them the oldest are let go, and a checkpoint before those can no longer be restored. */
  retain_bytes: count.default(4 * 1024 ** 3),
  /** `windowed`: oldest start first, but groups whose members still run are overtaken by at most `window` groups; `fifo`: never overtaken. */
  order: z.enum(["windowed", "fifo"]).default("windowed"),
  window: count.min(1).default(64),
  /** A lease that is neither acknowledged nor extended in this time goes back, and its groups are delivered again with the same bytes. */
  lease_s: seconds.default(600),
  /** `mixed`: an answer may be of two versions where weights came in its middle, each token with its own; `single`: such an answer is sampled again, and nothing of one is shown before its end. */
  answer_versions: z.enum(["mixed", "single"]).default("mixed"),
  /** Keep what agents leave, for verifiers that change later (`mw reverify`). */
  keep_workspaces: z.boolean().default(false),
  /** Keep rollouts between their turns, behind every one or at most so often, so that they go on in the middle when the service is started again (docs/checkpoints.md). Null: they begin anew. */
  checkpoint_rollouts: z.union([z.literal("every-turn"), z.strictObject({ every_s: seconds })]).nullable().default(null),
  /** Run tasks although limits that they declare cannot be enforced on this host. */
  ignore_limits: z.boolean().default(false),
  /** What is paid, in dollars: a million tokens in prompts, cached ones, sampled ones, an hour of a machine. Without them nothing is said of money. */
  prices: pricesSchema.exactOptional(),
  samples: z
    .strictObject({ builder: z.enum(BUILDERS).default("prefix-merge"), max_tokens: count.min(1).nullable().default(null), /** Token ids are below it. */ vocab_size: count.min(1).nullable().default(null) })
    .prefault({}),
  /** Tasks that the service draws by itself while there is room; null: the trainer submits groups. */
  dataset: z.array(datasetPartSchema).min(1).max(256).nullable().default(null),
});
export type RunRequest = z.infer<typeof runRequestSchema>;

export const endpointSchema = z.strictObject({
  /** As for `--upstream`: base address, with the kind of server where it is not found out. */
  url: z.string().min(1),
  kind: z.enum(["vllm", "sglang", "openai"]).exactOptional(),
});

/** Versions only grow within a run. `updating`: new model calls are held until the state is `live` again; the version that is then given samples from there on. */
export const policyUpdateSchema = z.strictObject({
  version: count,
  state: z.enum(["live", "updating"]).default("live"),
  /** Name of the model at the endpoints; must be given the first time, and stays as it is where absent. */
  model: z.string().min(1).exactOptional(),
  endpoints: z.array(endpointSchema).min(1).exactOptional(),
});
export type PolicyUpdate = z.infer<typeof policyUpdateSchema>;

export const groupSubmissionSchema = z.strictObject({
  group_id: nameSchema,
  /** Absolute host path of a task's directory. */
  task: z.string().min(1).max(4096),
  size: count.min(1).max(4096).exactOptional(),
  harness: harnessesSchema.exactOptional(),
  seed: z.string().max(256).exactOptional(),
  sampling: samplingSchema.exactOptional(),
  deadline_s: seconds.exactOptional(),
  /** Not begun before the policy has this version. */
  min_version: count.exactOptional(),
  /** Higher first among groups that wait to be begun. */
  priority: z.int().exactOptional(),
  /** Given back with the group as it is. At most 16 KiB of JSON. */
  metadata: z.record(z.string(), z.json()).exactOptional(),
});
export type GroupSubmission = z.infer<typeof groupSubmissionSchema>;
export const submitRequestSchema = z.strictObject({ groups: z.array(groupSubmissionSchema).min(1).max(4096) });

export const leaseRequestSchema = z.strictObject({
  /** Who leases, for records. */
  consumer: z.string().max(128).default("trainer"),
  max_groups: count.min(1).max(4096).default(8),
  max_bytes: count.min(1).exactOptional(),
  /** Version that the trainer has now: what is too old for it is ended as `expired` and not delivered. The policy's where absent. */
  current_version: count.exactOptional(),
  max_staleness: count.exactOptional(),
  /** Only these, whatever their order: for trainers whose processes each wait for groups of their own. Ends of them without samples are in the answer, and end the wait. */
  group_ids: z.array(nameSchema).min(1).max(4096).exactOptional(),
  /** Waits for `min_groups`, then takes up to `max_groups`; less comes back when the time is over. */
  min_groups: count.min(1).default(1),
  wait_ms: count.max(60_000).default(0),
});
export type LeaseRequest = z.infer<typeof leaseRequestSchema>;

export const REJECT_REASONS = ["stale", "filtered", "overlong", "trainer_error"] as const;
export const ackRequestSchema = z.strictObject({
  /** Names of groups of the lease. What is in neither list stays leased. */
  consumed: z.array(nameSchema).default([]),
  rejected: z.array(z.strictObject({ group_id: nameSchema, reason: z.enum(REJECT_REASONS) })).default([]),
  /** Where the consumed groups went, for the lineage. */
  trained_version: count.exactOptional(),
  step: count.exactOptional(),
  checkpoint: z.string().max(1024).exactOptional(),
});
export type AckRequest = z.infer<typeof ackRequestSchema>;

export const cancelRequestSchema = z.union([z.strictObject({ group_ids: z.array(nameSchema).min(1) }), z.strictObject({ older_than_version: count }), z.strictObject({ all: z.literal(true) })]);
export type CancelRequest = z.infer<typeof cancelRequestSchema>;

/** `complete`: all members usable; `partial`: enough of them by the rule; `failed`: too few; `expired`: too stale when it was to be leased. */
export const GROUP_OUTCOMES = ["complete", "partial", "failed", "cancelled", "expired"] as const;
export type GroupOutcome = (typeof GROUP_OUTCOMES)[number];
/** Why a member is not usable: whose doing it was. */
export const FAILURE_CLASSES = ["policy", "harness", "model", "env", "infra", "timeout", "overlong", "cancelled"] as const;

export const groupFailureSchema = z.strictObject({ class: z.enum(FAILURE_CLASSES), code: z.string(), permanent: z.boolean(), count });

/** A finished group without its samples. */
export const groupFactsSchema = z.strictObject({
  group_id: nameSchema,
  /** Ours, as in the run's directory. */
  group: z.string(),
  run: z.string(),
  /** Counts the lives of a run's name: a run that was closed and made again under its name has the next. */
  epoch: count,
  task: z.string(),
  family: z.string(),
  task_digest: z.string().nullable(),
  /** Part of the mix; null for submitted groups. */
  dataset: z.string().nullable(),
  outcome: z.enum(GROUP_OUTCOMES),
  expected: count,
  usable: count,
  /** Members begun, replacements included. */
  attempts: count,
  version_min: z.int().nullable(),
  version_max: z.int().nullable(),
  accepted_at: z.number(),
  started_at: z.number().nullable(),
  ended_at: z.number(),
  failures: z.array(groupFailureSchema),
  samples: count,
  tokens: count,
  bytes: count,
  metadata: z.record(z.string(), z.json()),
});
export type GroupFacts = z.infer<typeof groupFactsSchema>;

/** Facts of one sample. The arrays `token_ids` (i32), `loss_mask` (u8), `logprobs` (f32), `versions` (i32, policy version, -1 where the mask is 0) come beside it, all of one length. */
export const deliveredSampleSchema = z.strictObject({
  sample_id: z.string(),
  rollout_id: z.string(),
  group_id: nameSchema,
  /** Position of the rollout in its group, from 0; replacements take the place of what they replace. */
  member: count,
  attempt: count,
  segment_index: count,
  num_segments: count,
  is_last_segment: z.boolean(),
  /** Leading tokens that an earlier segment has too. */
  parent_prefix_len: count,
  prompt_len: count,
  reward: z.number().nullable(),
  reward_components: z.record(z.string(), z.number()),
  /** 1 / `num_segments`. */
  weight: z.number(),
  usable: z.boolean(),
  status: z.enum(["completed", "truncated", "aborted", "failed"]),
  outcome: z.enum(Object.keys(OUTCOMES) as [keyof typeof OUTCOMES]),
  stop_reason: z.string().nullable(),
  error: z.strictObject({ class: z.enum(FAILURE_CLASSES), code: z.string(), message: z.string(), permanent: z.boolean() }).nullable(),
  harness: z.string(),
  seed: z.string(),
  builder: z.string(),
  kind: z.string(),
  temperature: z.number().nullable(),
  top_p: z.number().nullable(),
  model: z.string(),
  tokenizer: z.string().nullable(),
  image: z.string().nullable(),
  verifier: z.string().nullable(),
  turns: count,
  tool_errors: count.nullable(),
  timings: z.strictObject({ queue_ms: z.number(), boot_ms: z.number(), generate_ms: z.number(), tool_ms: z.number(), reward_ms: z.number() }),
});
export type DeliveredSampleFacts = z.infer<typeof deliveredSampleSchema>;

export const TERMINAL_OUTCOMES = ["consumed", "rejected", "failed", "cancelled", "expired", "restored"] as const;
export type TerminalOutcome = (typeof TERMINAL_OUTCOMES)[number];

export const WAITING_FOR = ["policy", "staleness", "bytes", "concurrency"] as const;
export const RUN_STATES = ["running", "draining", "finished", "failed", "closed"] as const;
export const leaseHeadSchema = z.strictObject({
  /** Null when there is nothing in it. */
  lease_id: z.string().nullable(),
  expires_at: z.number().nullable(),
  run_state: z.enum(RUN_STATES),
  /** Why it failed. */
  reason: z.string().nullable(),
  last_progress_at: z.number(),
  policy_version: z.int().nullable(),
  /** As in the status: why nothing further is begun, for whoever waits in vain. */
  waiting_for: z.enum(WAITING_FOR).nullable(),
  /** Of `group_ids`: those that are over, and how; always empty without. */
  ended: z.array(z.strictObject({ group_id: nameSchema, outcome: z.enum(TERMINAL_OUTCOMES), reason: z.string().nullable() })),
  groups: z.array(groupFactsSchema.extend({ sample_facts: z.array(deliveredSampleSchema) })),
});
export type LeaseHead = z.infer<typeof leaseHeadSchema>;

export const statusSchema = z.strictObject({
  run: z.string(),
  name: nameSchema,
  epoch: count,
  state: z.enum(RUN_STATES),
  reason: z.string().nullable(),
  policy: z.strictObject({ version: z.int().nullable(), state: z.enum(["none", "live", "updating"]), model: z.string().nullable() }),
  groups: z.strictObject({ waiting: count, running: count, ready: count, leased: count, consumed: count, rejected: count, failed: count, cancelled: count, expired: count }),
  rollouts: z.strictObject({ running: count, ended: count }),
  ready_bytes: count,
  credits: z.strictObject({ groups: z.int(), bytes: z.int() }),
  oldest_ready_at: z.number().nullable(),
  last_progress_at: z.number(),
  /** Failed members by class, those that were replaced included; classes without any are absent. */
  failures: z.partialRecord(z.enum(FAILURE_CLASSES), count),
  /** Members that still ran when their group was ready without them, and how long they had run. */
  stragglers: z.strictObject({ count, run_ms: z.number(), longest_ms: z.number() }),
  /** Why no further group is begun now: null when one could be, or none waits. */
  waiting_for: z.enum(WAITING_FOR).nullable(),
  datasets: z.record(z.string(), z.strictObject({ begun: count, consumed: count, failed: count, mean_reward: z.number().nullable() })),
  quarantined: z.array(z.string()),
});
export type DeliveryStatus = z.infer<typeof statusSchema>;

/**
 * One line for each accepted group, when it has ended for good. `seq` counts from 1 without gaps. A restore takes back what came after its checkpoint, by a line `restored` for each
 * group that is deliverable again: the last line of a group holds.
 */
export const terminalRecordSchema = z.strictObject({
  seq: count,
  at: z.number(),
  group_id: nameSchema,
  outcome: z.enum(TERMINAL_OUTCOMES),
  reason: z.string().nullable(),
  group: groupFactsSchema,
  consumer: z.string().nullable(),
  lease_id: z.string().nullable(),
  trained_version: count.nullable(),
  step: count.nullable(),
  checkpoint: z.string().nullable(),
});
export type TerminalRecord = z.infer<typeof terminalRecordSchema>;

/** Kept with the trainer's checkpoint: what it had consumed by then. Restoring it makes consumed again what came after deliverable again. */
export const checkpointSchema = z.strictObject({
  run: z.string(),
  epoch: count,
  /** Last line of the terminal log. */
  cursor: count,
  consumed: count,
  /** Of the policy; after the restore versions may begin here again. */
  version: count.nullable(),
  /** Over the names and outcomes of all lines up to the cursor. */
  digest: z.string(),
});
export type DeliveryCheckpoint = z.infer<typeof checkpointSchema>;
