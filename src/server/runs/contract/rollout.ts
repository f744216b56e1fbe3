/** One rollout: its page, what was said, what was run, its files and changes. */
import { z } from "zod";
import { count, nullableText } from "./common.ts";
import { markSchema } from "./marks.ts";
import { rolloutRowSchema } from "./lists.ts";

export const eventSchema = z.object({ seq: count, at: z.string(), type: z.string(), fields: z.record(z.string(), z.unknown()) });
export type EventView = z.infer<typeof eventSchema>;

/** A stretch of time on one lane. `ref`: number of the call or command. */
export const stretchSchema = z.object({ lane: z.enum(["phase", "model", "tool"]), start: z.number(), end: z.number(), label: z.string(), detail: z.string(), ref: count.nullable(), ok: z.boolean() });
export type Stretch = z.infer<typeof stretchSchema>;

export const fileEntrySchema = z.object({ path: z.string(), bytes: count, kind: z.enum(["file", "directory", "link", "other"]) });
export type FileEntry = z.infer<typeof fileEntrySchema>;

export const rolloutReportSchema = z.object({
  run: z.string(),
  seq: count,
  /** What is in its files; changes whenever one of them does. */
  version: z.string(),
  row: rolloutRowSchema,
  directory: z.string(),
  taskDirectory: z.string(),
  taskDigest: nullableText,
  seed: z.string(),
  rewards: z.record(z.string(), z.number()),
  modelMs: z.number(),
  toolMs: z.number(),
  waitMs: z.number(),
  cpuMs: z.number().nullable(),
  frozenMs: z.number(),
  phaseMs: z.record(z.string(), z.number()),
  instruction: z.object({ text: z.string(), truncated: z.boolean() }).nullable(),
  verdict: z.record(z.string(), z.unknown()).nullable(),
  verifierOutput: z.object({ text: z.string(), bytes: count, truncated: z.boolean() }).nullable(),
  artifacts: z.unknown(),
  drawn: z.unknown(),
  notes: nullableText,
  events: z.array(eventSchema),
  stretches: z.array(stretchSchema),
  calls: count,
  commands: count,
  messages: count,
  tries: z.array(z.string()),
  /** Shell command that runs the same again. */
  reproduce: z.string(),
  mark: markSchema.nullable(),
  previous: nullableText,
  next: nullableText,
  /** Its files beside the log cannot be read: why. */
  damage: nullableText,
});
export type RolloutReport = z.infer<typeof rolloutReportSchema>;

export const messageSchema = z.object({
  index: count,
  at: z.string(),
  role: z.enum(["system", "user", "assistant", "tool"]),
  text: z.string(),
  /** Characters in all; more than `text` has where it was cut. */
  characters: count,
  reasoning: nullableText,
  toolCalls: z.array(z.object({ id: z.string(), name: z.string(), arguments: z.string(), characters: count })),
  toolCallId: nullableText,
  isError: z.boolean(),
  images: count,
  /** Number of the call that it came with or that answered it; null where no call was recorded. */
  call: count.nullable(),
});
export type MessageView = z.infer<typeof messageSchema>;

export const conversationSchema = z.object({ version: z.string(), thread: count.nullable(), messages: z.array(messageSchema), total: count, offset: count });
export type Conversation = z.infer<typeof conversationSchema>;

export const commandSchema = z.object({
  number: count,
  at: z.string(),
  command: z.string(),
  characters: count,
  code: z.number().nullable(),
  ended: z.string(),
  cause: z.unknown(),
  durationMs: z.number(),
  stdoutBytes: count,
  stderrBytes: count,
  /** First bytes of each stream as text; the whole is at `commands/N/stdout`. */
  stdout: z.string(),
  stderr: z.string(),
  /** Bytes that were kept. */
  stdoutKept: count,
  stderrKept: count,
});
export type CommandView = z.infer<typeof commandSchema>;

export const commandsPageSchema = z.object({ version: z.string(), commands: z.array(commandSchema), total: count, offset: count });
export type CommandsPage = z.infer<typeof commandsPageSchema>;

/** Where something stands in a list that is read in pages. */
export const positionSchema = z.object({ index: count.nullable() });
export type Position = z.infer<typeof positionSchema>;

export const filesSchema = z.object({ files: z.array(fileEntrySchema), truncated: z.boolean() });
export type FilesView = z.infer<typeof filesSchema>;

/** What the agent left, as against the image it started from. Texts are null for what is no text, too long, or not to be had. */
export const changeSchema = z.object({ path: z.string(), change: z.enum(["added", "changed", "removed", "unknown"]), kind: z.enum(["file", "link", "directory", "other"]), bytes: count, before: nullableText, after: nullableText, note: nullableText });
export type ChangeView = z.infer<typeof changeSchema>;

export const changesSchema = z.object({ source: z.enum(["workspace", "artifacts", "none"]), changes: z.array(changeSchema), truncated: z.boolean() });
export type ChangesView = z.infer<typeof changesSchema>;
