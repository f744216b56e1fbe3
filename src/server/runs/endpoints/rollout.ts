/** One rollout: its page, what was said, what was run, its files and changes, and what it does now. */
import { createReadStream } from "node:fs";
import { Readable } from "node:stream";
import type { FastifyReply } from "fastify";
import { z } from "zod";
import { MwError } from "../../../core/errors.ts";
import type { RolloutId } from "../../../core/ids.ts";
import { LIMITS } from "../../../core/limits.ts";
import { rolloutDirectory } from "../../../store/run-directory.ts";
import { endpoint, type AnyEndpoint } from "../../endpoint.ts";
import { changesOf } from "../changes.ts";
import { outputName, shownCommand } from "../commands.ts";
import { pageSchema } from "../contract/common.ts";
import { changesSchema, commandsPageSchema, conversationSchema, filesSchema, messageSchema, positionSchema, rolloutReportSchema, type CommandsPage, type Conversation, type Position } from "../contract/rollout.ts";
import type { RolloutUpdate } from "../contract/updates.ts";
import { messagesOf, shownMessage } from "../conversation.ts";
import type { ReadContext } from "../http.ts";
import type { Look } from "../event-stream.ts";
import { LiveCalls } from "../live-calls.ts";
import type { LiveRun } from "../live-run.ts";
import { listFiles, readRange } from "../rollout-files.ts";
import { rolloutReport } from "../rollout-report.ts";
import { versionOf, type RolloutRecord } from "../rollout-record.ts";

const MESSAGE_CHARACTERS = 16_384;
/** How often words are passed on while a model says them: eight times a second. */
const LIVE_LOOK_MS = 125;

export const ofRollout = z.object({ rollout: z.string().max(64) });
const threadSchema = z.object({ thread: z.coerce.number().int().min(0).optional() });
const rangeSchema = z.object({ offset: z.coerce.number().int().min(0).default(0), length: z.coerce.number().int().min(0).max(LIMITS.viewedTextBytes).default(LIMITS.viewedTextBytes) });
const pathSchema = z.object({ path: z.string().min(1).max(4096) });
/** `at`: milliseconds since the epoch. */
const soughtSchema = z.object({ at: z.coerce.number().optional(), find: z.string().max(1024).optional() });
const BYTES = { 200: { description: "Its bytes; X-Total says how many there are", contentTypes: ["application/octet-stream"] } } as const;

export interface Opened {
  readonly run: LiveRun;
  readonly rollout: RolloutId;
  readonly directory: string;
}

export async function openRollout({ library }: ReadContext, id: string): Promise<Opened> {
  const found = await library.openRollout(id);
  return { ...found, directory: rolloutDirectory(found.run.home, found.run.run, found.rollout) };
}

export function rolloutEndpoints(context: ReadContext): readonly AnyEndpoint[] {
  const { records, annotations, runtime } = context;
  return [
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}",
      id: "getRollout",
      summary: "Facts of the log, verdict, events, where the time went, and the command that runs the same again",
      params: ofRollout,
      responses: { 200: { description: "The rollout", schema: rolloutReportSchema } },
      handle: async ({ params }) => {
        const { run, rollout } = await openRollout(context, params.rollout);
        return rolloutReport(run, rollout, records, await annotations.of(run), runtime.now());
      },
    }),
    ...conversationEndpoints(context),
    ...commandEndpoints(context),
    ...fileEndpoints(context),
    streamEndpoint(context),
  ];
}

function conversationEndpoints(context: ReadContext): readonly AnyEndpoint[] {
  const messages = ({ messages: all, calls, trace, transcript }: RolloutRecord, thread: number | null): RolloutRecord["messages"] => (thread === null ? all : messagesOf(calls, trace, transcript, thread));
  const recordOf = async (id: string): Promise<RolloutRecord> => context.records.of((await openRollout(context, id)).directory);
  return [
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/conversation",
      id: "getConversation",
      summary: "What was said: the main line, or one thread of the trace; long texts are cut",
      params: ofRollout,
      query: pageSchema.extend(threadSchema.shape),
      responses: { 200: { description: "A page of messages", schema: conversationSchema } },
      handle: async ({ params, query: { offset, limit, thread = null } }): Promise<Conversation> => {
        const record = await recordOf(params.rollout);
        const all = messages(record, thread);
        return { version: record.version, thread, messages: all.slice(offset, offset + limit).map((message, at) => shownMessage(message, offset + at, MESSAGE_CHARACTERS)), total: all.length, offset };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/conversation/{index}",
      id: "getMessage",
      summary: "One message, whole",
      params: ofRollout.extend({ index: z.coerce.number().int().min(0) }),
      query: threadSchema,
      responses: { 200: { description: "The message", schema: messageSchema } },
      handle: async ({ params: { rollout, index }, query: { thread = null } }) => {
        const message = messages(await recordOf(rollout), thread)[index];
        if (message === undefined) throw new MwError("not_found", `there is no message ${index}`, { fix: "count from 0" });
        return shownMessage(message, index, LIMITS.conversationBytes);
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/conversation-position",
      id: "findMessage",
      summary: "The message that was said last by a time, or the first that holds a text in any case",
      params: ofRollout,
      query: soughtSchema.extend(threadSchema.shape),
      responses: { 200: { description: "Its index; null: there is none", schema: positionSchema } },
      handle: async ({ params, query: { at, find = "", thread = null } }): Promise<Position> => {
        const all = messages(await recordOf(params.rollout), thread);
        const words = find.toLowerCase();
        return positionOf(at === undefined ? all.findIndex(({ text, toolCalls }) => `${text} ${toolCalls.map((call) => call.arguments).join(" ")}`.toLowerCase().includes(words)) : all.findLastIndex((message) => Date.parse(message.at) <= at));
      },
    }),
  ];
}

function commandEndpoints(context: ReadContext): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/commands",
      id: "listCommands",
      summary: "Commands with the beginnings of their outputs",
      params: ofRollout,
      query: pageSchema,
      responses: { 200: { description: "A page of commands", schema: commandsPageSchema } },
      handle: async ({ params, query: { offset, limit } }): Promise<CommandsPage> => {
        const { version, commands, directory } = await context.records.of((await openRollout(context, params.rollout)).directory);
        return { version, commands: await Promise.all(commands.slice(offset, offset + limit).map((head) => shownCommand(directory, head))), total: commands.length, offset };
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/commands-position",
      id: "findCommand",
      summary: "The command that began last by a time",
      params: ofRollout,
      query: soughtSchema.pick({ at: true }).required(),
      responses: { 200: { description: "Its index; null: there is none", schema: positionSchema } },
      handle: async ({ params, query: { at } }): Promise<Position> => {
        const { commands } = await context.records.of((await openRollout(context, params.rollout)).directory);
        return positionOf(commands.findLastIndex((command) => Date.parse(command.at) <= at));
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/commands/{number}/{stream}",
      id: "getOutput",
      summary: "What a command wrote, as bytes",
      params: ofRollout.extend({ number: z.coerce.number().int().min(1), stream: z.enum(["stdout", "stderr"]) }),
      query: rangeSchema,
      responses: BYTES,
      handle: async ({ params: { rollout, number, stream }, query, reply }) => sendRange(reply, (await openRollout(context, rollout)).directory, outputName(number, stream), query),
    }),
  ];
}

function fileEndpoints(context: ReadContext): readonly AnyEndpoint[] {
  return [
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/files",
      id: "listFiles",
      summary: "Everything in the rollout's directory; links are not followed",
      params: ofRollout,
      responses: { 200: { description: "Its files", schema: filesSchema } },
      handle: async ({ params }) => listFiles((await openRollout(context, params.rollout)).directory),
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/file",
      id: "readFile",
      summary: "A part of a file of the rollout's directory",
      params: ofRollout,
      query: pathSchema.extend(rangeSchema.shape),
      responses: BYTES,
      handle: async ({ params, query: { path, ...range }, reply }) => sendRange(reply, (await openRollout(context, params.rollout)).directory, path, range),
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/download",
      id: "downloadFile",
      summary: "A whole file of the rollout's directory",
      params: ofRollout,
      query: pathSchema,
      responses: BYTES,
      handle: async ({ params, query: { path }, reply }) => {
        const { directory } = await openRollout(context, params.rollout);
        // Whether it is a plain file is asked there.
        if ((await readRange(directory, path, 0, 0)) === null) throw missing(path);
        const name = (path.split("/").at(-1) ?? "file").replaceAll(/[^\w.-]/g, "_");
        return reply.type("application/octet-stream").header("content-disposition", `attachment; filename="${name}"`).send(createReadStream(`${directory}/${path}`));
      },
    }),
    endpoint({
      method: "GET",
      path: "/v1/rollouts/{rollout}/changes",
      id: "getChanges",
      summary: "What the agent added, changed and removed, as against its image",
      params: ofRollout,
      responses: { 200: { description: "Its changes", schema: changesSchema } },
      handle: async ({ params }) => {
        const { run, rollout } = await openRollout(context, params.rollout);
        return changesOf(run, rollout);
      },
    }),
  ];
}

function streamEndpoint(context: ReadContext): AnyEndpoint {
  const { library, streams, board } = context;
  return endpoint({
    method: "GET",
    path: "/v1/rollouts/{rollout}/stream",
    id: "followRollout",
    summary: "Server-sent events `rollout`: its phase, and a version that changes when one of its files does; and `calls`, from the process that conducts it: what has come of the answers of calls under way",
    params: ofRollout,
    responses: { 200: { description: "Events until it is recorded", contentTypes: ["text/event-stream"] } },
    handle: async ({ params, reply }) => {
      const { run, rollout, directory } = await openRollout(context, params.rollout);
      const watch = board?.watch(rollout);
      const calls = watch === undefined ? null : new LiveCalls(watch);
      let told = "";
      const look: Look = async () => {
        // First: what is told of a call that has ended is followed by its record.
        const news = calls?.news() ?? null;
        await library.open(run.run);
        const { phase, outcome } = run.rollout(rollout);
        const update: RolloutUpdate = { seq: run.seq, version: await versionOf(directory), phase, outcome };
        const now = `${update.version} ${phase} ${outcome ?? ""}`;
        const changed = now !== told;
        told = now;
        const id = String(run.seq);
        return { events: [...(changed ? [{ id, event: "rollout", data: update }] : []), ...(news === null ? [] : [{ id, event: "calls", data: news }])], last: phase === "recorded" };
      };
      await streams.follow(reply, look, calls === null ? undefined : LIVE_LOOK_MS).finally(() => watch?.close());
    },
  });
}

function positionOf(index: number): Position {
  return { index: index === -1 ? null : index };
}

/** A part of a file as bytes that no browser takes for anything but bytes. */
async function sendRange(reply: FastifyReply, directory: string, name: string, { offset, length }: z.output<typeof rangeSchema>): Promise<FastifyReply> {
  const range = await readRange(directory, name, offset, length);
  if (range === null) throw missing(name);
  return reply.type("application/octet-stream").header("content-disposition", "attachment").header("x-total", String(range.total)).send(Readable.from([range.bytes], { objectMode: false }));
}

function missing(name: string): MwError {
  return new MwError("not_found", `there is no file ${JSON.stringify(name)} in the rollout's directory`, { fix: "GET /v1/rollouts/ROLLOUT/files lists them" });
}
