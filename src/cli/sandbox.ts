/** `mw sandbox`: single machines by hand. The implementations load when they are called. */
import { buildCommand, buildRouteMap, type RouteMap } from "@stricli/core";
import { parsePublish, type PublishRule } from "../sandbox/publish.ts";
import type { NetworkMode } from "../sandbox/sandbox.ts";
import type { AppContext } from "./context.ts";
import { setting } from "./run-flags.ts";
import { snapshotRoutes } from "./snapshots.ts";
import { bytesParser, choiceParser, decimalParser, durationParser, hostParser, integerParser, textParser } from "./parsers.ts";

/** What a machine is made with. */
export interface MachineFlags {
  readonly backend?: string;
  readonly cpus?: number;
  readonly memory?: number;
  readonly disk?: number;
  readonly pids?: number;
  readonly network?: NetworkMode;
  readonly allow?: readonly string[];
  readonly publish?: readonly PublishRule[];
  readonly env?: readonly string[];
  readonly user?: string;
  readonly workdir?: string;
  readonly upload?: readonly string[];
  readonly snapshot?: string;
  readonly checkpointable: boolean;
}

/** How a command is run in it. */
export interface CommandFlags {
  readonly timeout?: number;
  readonly interactive: boolean;
  readonly tty: boolean;
}

const text = (brief: string, placeholder: string) => ({ kind: "parsed", parse: textParser, brief, placeholder, optional: true }) as const;
const flag = (brief: string) => ({ kind: "boolean", brief, default: false }) as const;

const MACHINE_FLAGS = {
  backend: setting("backend", "backend"),
  cpus: { kind: "parsed", parse: decimalParser(0.01, 4096), brief: "CPUs as a fraction, such as 1.5", placeholder: "n", optional: true },
  memory: { kind: "parsed", parse: bytesParser, brief: "memory of processes, such as 512M", placeholder: "size", optional: true },
  disk: { kind: "parsed", parse: bytesParser, brief: "room for what the machine writes, such as 2G", placeholder: "size", optional: true },
  pids: { kind: "parsed", parse: integerParser(8, 4_194_304), brief: "processes and threads at once", placeholder: "n", optional: true },
  network: { kind: "parsed", parse: choiceParser(["none", "allowlist", "public"]), brief: "none (default), allowlist (HTTP and HTTPS to hosts given with --allow) or public", placeholder: "mode", optional: true },
  allow: { kind: "parsed", parse: hostParser, brief: "host that can be reached: example.com, *.example.com, example.com:8443, an address or range; means --network allowlist; repeatable", placeholder: "host", variadic: true, optional: true },
  publish: { kind: "parsed", parse: parsePublish, brief: "[ADDRESS:][HOSTPORT:]PORT, a port of the machine on this host (on loopback, any free port, unless said); repeatable", placeholder: "port", variadic: true, optional: true },
  env: { kind: "parsed", parse: textParser, brief: "NAME=VALUE for every command; repeatable", placeholder: "pair", variadic: true, optional: true },
  user: text("user of commands: name, uid, name:group or uid:gid", "user"),
  workdir: text("directory of commands, made when missing", "path"),
  upload: { kind: "parsed", parse: textParser, brief: "HOST:SANDBOX, a file or directory copied in first; repeatable", placeholder: "paths", variadic: true, optional: true },
  snapshot: text("start from this snapshot (id or name) of the image", "snapshot"),
  checkpointable: flag("so that its processes can be kept by snapshots; a weaker isolation, see SECURITY.md"),
} as const;

const COMMAND_FLAGS = {
  timeout: { kind: "parsed", parse: durationParser, brief: "kill the command's whole process tree after this time, such as 90s", placeholder: "time", optional: true },
  interactive: flag("pass standard input on"),
  tty: flag("give the command a terminal"),
} as const;

const JSON_FLAG = { json: flag("print one JSON document instead") } as const;
const IMAGE = { brief: "image: host, dir:PATH, tar:PATH, oci:PATH, or a name", parse: textParser, placeholder: "image" } as const;
const WORD = { brief: "command and its arguments, after --", parse: String, placeholder: "command" } as const;
const ID = { brief: "sandbox id, or its beginning when that is unique", parse: textParser, placeholder: "id" } as const;

const run = buildCommand<MachineFlags & CommandFlags & { readonly json: boolean }, readonly [string, ...string[]], AppContext>({
  loader: async () => (await import("./sandbox-commands.ts")).runOnce,
  parameters: { flags: { ...MACHINE_FLAGS, ...COMMAND_FLAGS, ...JSON_FLAG }, aliases: { i: "interactive", t: "tty" }, positional: { kind: "array", parameter: WORD, minimum: 2 } },
  docs: {
    brief: "Make a machine from an image, run one command in it, remove it.",
    customUsage: ["[flags] IMAGE -- COMMAND..."],
    fullDescription: "The first argument is the image, the rest is the command. The exit code is the command's own (128 + n when signal n ended it); 124 when the timeout did.",
  },
});

const shell = buildCommand<MachineFlags, readonly [string], AppContext>({
  loader: async () => (await import("./sandbox-commands.ts")).openShell,
  parameters: { flags: MACHINE_FLAGS, positional: { kind: "tuple", parameters: [{ ...IMAGE, brief: "image, or the id of a machine that `create` holds", placeholder: "image-or-id" }] } },
  docs: { brief: "A shell in a fresh machine (removed when the shell ends), or in one that `create` holds." },
});

const create = buildCommand<MachineFlags & { readonly json: boolean }, readonly [string?], AppContext>({
  loader: async () => (await import("./sandbox-commands.ts")).createAndHold,
  parameters: { flags: { ...MACHINE_FLAGS, ...JSON_FLAG }, positional: { kind: "tuple", parameters: [{ ...IMAGE, brief: `${IMAGE.brief}; not needed with --snapshot`, optional: true }] } },
  docs: {
    brief: "Make a machine and hold it until interrupted.",
    fullDescription:
      "Prints the machine's id and stays in the foreground: the machine lives exactly as long as this process (end it with Ctrl-C, SIGTERM or `mw sandbox rm`). Run it in the background to go on in the same shell: `mw sandbox create host &`. " +
      "While it runs, `exec`, `cp`, `shell`, `snapshot`, `fork`, `pause`, `resume` and `ls` reach the machine from other terminals of the same user.",
  },
});

const exec = buildCommand<CommandFlags & { readonly env?: readonly string[]; readonly user?: string; readonly workdir?: string; readonly json: boolean }, readonly [string, ...string[]], AppContext>({
  loader: async () => (await import("./sandbox-commands.ts")).execInHeld,
  parameters: {
    flags: { env: MACHINE_FLAGS.env, user: MACHINE_FLAGS.user, workdir: text("directory of the command", "path"), ...COMMAND_FLAGS, ...JSON_FLAG },
    aliases: { i: "interactive", t: "tty" },
    positional: { kind: "array", parameter: WORD, minimum: 2 },
  },
  docs: { brief: "Run a command in a machine that `create` holds.", customUsage: ["[flags] ID -- COMMAND..."], fullDescription: "The first argument is the machine's id, the rest is the command. The exit code is the command's own." },
});

const list = buildCommand<{ readonly json: boolean }, readonly [], AppContext>({
  loader: async () => (await import("./sandbox-commands.ts")).listHeld,
  parameters: { flags: JSON_FLAG, positional: { kind: "tuple", parameters: [] } },
  docs: { brief: "List living machines of this data directory: held ones, and those of a running controller." },
});

const remove = buildCommand<Record<never, never>, readonly string[], AppContext>({
  loader: async () => (await import("./sandbox-commands.ts")).removeHeld,
  parameters: { flags: {}, positional: { kind: "array", parameter: ID, minimum: 1 } },
  docs: { brief: "End machines that `create` holds, and wait until nothing of them is left." },
});

const copy = buildCommand<{ readonly json: boolean }, readonly [string, string], AppContext>({
  loader: async () => (await import("./sandbox-commands.ts")).copyHeld,
  parameters: {
    flags: JSON_FLAG,
    positional: {
      kind: "tuple",
      parameters: [
        { brief: "host path, or ID:PATH", parse: textParser, placeholder: "from" },
        { brief: "ID:PATH, or a host path that does not exist yet", parse: textParser, placeholder: "to" },
      ],
    },
  },
  docs: { brief: "Copy a file or tree between the host and a machine that `create` holds, or between two of them." },
});

const network = buildCommand<{ readonly allow?: readonly string[]; readonly forget?: readonly string[]; readonly json: boolean }, readonly [string], AppContext>({
  loader: async () => (await import("./network-commands.ts")).networkOfHeld,
  parameters: {
    flags: {
      allow: { ...MACHINE_FLAGS.allow, brief: "add a host to the list; repeatable" },
      forget: { kind: "parsed", parse: hostParser, brief: "take a host out of the list; what is open to it ends; repeatable", placeholder: "host", variadic: true, optional: true },
      ...JSON_FLAG,
    },
    positional: { kind: "tuple", parameters: [ID] },
  },
  docs: { brief: "What a machine that `create` holds may reach, and what was refused to it; changes its list." },
});

export const sandboxRoutes: RouteMap<AppContext> = buildRouteMap({
  routes: { run, shell, create, exec, network, ls: list, rm: remove, cp: copy, ...snapshotRoutes },
  docs: { brief: "Single machines by hand: one command, a shell, or one held open; snapshots and copies of it." },
});
