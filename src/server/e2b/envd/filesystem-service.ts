/** `filesystem.Filesystem`, as the guest agent offers it. Source: https://github.com/e2b-dev/E2B, spec/envd/filesystem/filesystem.proto. */
import type { IncomingMessage } from "node:http";
import { posix } from "node:path";
import { z } from "zod";
import { MwError } from "../../../core/errors.ts";
import { LIMITS } from "../../../core/limits.ts";
import type { Runtime } from "../../../core/runtime.ts";
import type { FileEvent, FileStat, Sandbox } from "../../../sandbox/sandbox.ts";
import { resolvePath, type Accounts } from "./accounts.ts";
import { ConnectFailure, serverStream, unary, type MessageSink, type Rpc } from "./connect-protocol.ts";
import { entryInfo, followLink, type EntryInfo } from "./entry-info.ts";
import { basicUser, userOf, type Guest, type GuestUser } from "./guest.ts";
import type { Watchers, WatchEvent } from "./watchers.ts";

const pathSchema = z.object({ path: z.string().default("") });
const moveSchema = z.object({ source: z.string(), destination: z.string() });
const listSchema = pathSchema.extend({ depth: z.int().min(0).max(256).default(1) });
/** No directory is refused for where it is mounted from. */
const watchSchema = pathSchema.extend({ recursive: z.boolean().default(false), includeEntry: z.boolean().default(false), allowNetworkMounts: z.boolean().optional() });
const watcherSchema = z.object({ watcherId: z.string() });

const KEEPALIVE_MS = 50_000;

export interface FilesystemServiceOptions {
  readonly runtime: Runtime;
  readonly accounts: Accounts;
  readonly watchersOf: (guest: Guest) => Watchers;
}

export function filesystemService({ runtime, accounts, watchersOf }: FilesystemServiceOptions, guest: () => Promise<Guest>): Readonly<Record<string, Rpc>> {
  const enter = async (request: IncomingMessage): Promise<{ readonly sandbox: Sandbox; readonly user: GuestUser; readonly at: Guest }> => {
    const at = await guest();
    return { at, sandbox: at.sandbox, user: await userOf(accounts, at.sandbox, basicUser(request)) };
  };
  const describe = async (sandbox: Sandbox, path: string, known?: FileStat): Promise<EntryInfo> => {
    const stat = known ?? (await sandbox.files.stat(path));
    if (stat === null) throw new ConnectFailure("not_found", `there is nothing at ${path}`);
    return entryInfo(stat, path, await accounts.namesOf(sandbox), stat.type === "symlink" ? await followLink(sandbox, path, stat) : null);
  };
  const directory = async (sandbox: Sandbox, path: string): Promise<string> => {
    const stat = await sandbox.files.stat(path);
    if (stat === null) throw new ConnectFailure("not_found", `there is no directory ${path}`);
    const led = stat.type === "symlink" ? await followLink(sandbox, path, stat) : { path, stat };
    if (led === null) throw new ConnectFailure("not_found", `the link ${path} leads nowhere`);
    if (led.stat.type !== "directory") throw new ConnectFailure("invalid_argument", `${path} is not a directory`);
    return led.path;
  };
  /** With what is there now; an entry that has gone meanwhile is left out. */
  const withEntry = async (sandbox: Sandbox, top: string, event: WatchEvent): Promise<WatchEvent> => {
    if (event.type === "EVENT_TYPE_REMOVE" || event.type === "EVENT_TYPE_RENAME") return event;
    const entry = await describe(sandbox, posix.join(top, event.name)).catch(() => null);
    return entry === null ? event : { ...event, entry };
  };
  return {
    Stat: unary(pathSchema, async ({ path }, request) => {
      const { sandbox, user } = await enter(request);
      return { entry: await describe(sandbox, resolvePath(path, user.workdir)) };
    }),

    MakeDir: unary(pathSchema, async ({ path }, request) => {
      const { sandbox, user } = await enter(request);
      const at = resolvePath(path, user.workdir);
      const there = await sandbox.files.stat(at);
      const led = there?.type === "symlink" ? (await followLink(sandbox, at, there))?.stat : there;
      if (led?.type === "directory") throw new ConnectFailure("already_exists", `the directory ${at} is there already`);
      if (there !== null) throw new ConnectFailure("invalid_argument", `${at} is there already and no directory`);
      await sandbox.files.mkdir(at, { owner: `${user.uid}:${user.gid}` });
      return { entry: await describe(sandbox, at) };
    }),

    Move: unary(moveSchema, async ({ source, destination }, request) => {
      const { sandbox, user } = await enter(request);
      const [from, to] = [resolvePath(source, user.workdir), resolvePath(destination, user.workdir)];
      await sandbox.files.mkdir(posix.dirname(to), { owner: `${user.uid}:${user.gid}` });
      await sandbox.files.move(from, to);
      return { entry: await describe(sandbox, to) };
    }),

    ListDir: unary(listSchema, async ({ path, depth }, request) => {
      const { sandbox, user } = await enter(request);
      const top = await directory(sandbox, resolvePath(path, user.workdir));
      const entries: EntryInfo[] = [];
      const list = async (at: string, level: number): Promise<void> => {
        for (const stat of (await sandbox.files.list(at)).toSorted((a, b) => Buffer.compare(Buffer.from(a.path), Buffer.from(b.path)))) {
          const own = posix.join(at, posix.basename(Buffer.from(stat.path).toString("utf8")));
          if (entries.length >= LIMITS.listedEntries) throw new ConnectFailure("resource_exhausted", `there are more than ${LIMITS.listedEntries} entries below ${top}`);
          entries.push(await describe(sandbox, own, stat));
          if (stat.type === "directory" && level < depth) await list(own, level + 1);
        }
      };
      await list(top, 1);
      return { entries };
    }),

    Remove: unary(pathSchema, async ({ path }, request) => {
      const { sandbox, user } = await enter(request);
      await sandbox.files.remove(resolvePath(path, user.workdir));
      return {};
    }),

    WatchDir: serverStream(watchSchema, async ({ path, recursive, includeEntry }, sink, request) => {
      const { sandbox, user } = await enter(request);
      const top = await directory(sandbox, resolvePath(path, user.workdir));
      const stop = new AbortController();
      sink.gone.addEventListener("abort", () => stop.abort("gone"), { once: true });
      if (sink.gone.aborted) return;
      void beat(sink, runtime, stop.signal);
      let started: Promise<unknown> = Promise.resolve();
      const onReady = (): void => {
        started = sink.send({ start: {} });
      };
      try {
        for await (const event of sandbox.files.watch(top, { recursive, signal: stop.signal, onReady })) {
          await started;
          const told = watchEvent(top, event);
          if (!(await sink.send({ filesystem: includeEntry ? await withEntry(sandbox, top, told) : told }))) return;
        }
      } catch (error) {
        if (!sink.gone.aborted) throw error;
      } finally {
        stop.abort("over");
      }
    }),

    CreateWatcher: unary(watchSchema, async ({ path, recursive, includeEntry }, request) => {
      const { at, sandbox, user } = await enter(request);
      const top = await directory(sandbox, resolvePath(path, user.workdir));
      return { watcherId: await watchersOf(at).create(top, recursive, async (event) => (includeEntry ? withEntry(sandbox, top, watchEvent(top, event)) : watchEvent(top, event))) };
    }),

    GetWatcherEvents: unary(watcherSchema, async ({ watcherId }) => ({ events: await watchersOf(await guest()).take(watcherId) })),

    RemoveWatcher: unary(watcherSchema, async ({ watcherId }) => {
      watchersOf(await guest()).remove(watcherId);
      return {};
    }),
  };
}

const EVENTS = { created: "EVENT_TYPE_CREATE", modified: "EVENT_TYPE_WRITE", removed: "EVENT_TYPE_REMOVE" } as const;
const CAUSES = { attributes: "EVENT_TYPE_CHMOD", moved: "EVENT_TYPE_RENAME" } as const;

/** An overflow fails the watch: a client that believes it has seen everything would be wrong. */
function watchEvent(top: string, { kind, path, cause }: FileEvent): WatchEvent {
  if (kind === "overflow") throw new MwError("limit_exceeded", "more happened than can be watched: look again");
  return { name: posix.relative(top, Buffer.from(path).toString("utf8")), type: cause === undefined ? EVENTS[kind] : CAUSES[cause] };
}

async function beat(sink: MessageSink, runtime: Runtime, over: AbortSignal): Promise<void> {
  try {
    for (;;) {
      await runtime.sleep(KEEPALIVE_MS, over);
      await sink.send({ keepalive: {} });
    }
  } catch {
    // It is over.
  }
}
