/** `mw serve` and `mw key`: names, flags and help. */
import { buildCommand, buildRouteMap, type Command, type RouteMap } from "@stricli/core";
import type { AppContext } from "./context.ts";
import { LIMITS } from "../core/limits.ts";
import { integerParser, textParser } from "./parsers.ts";
import { SETTINGS } from "./settings.ts";
import type { EnvironmentWire } from "../server/environment/index.ts";

export interface DataFlag {
  readonly data?: string;
}

export interface ServeFlags extends DataFlag {
  readonly port: number;
  readonly host: string;
  readonly maxSandboxes?: number;
  readonly maxSandboxesPerOwner?: number;
  readonly maxSnapshotsPerOwner?: number;
  readonly maxDiskPerOwner?: number;
  readonly warm?: number;
  readonly takeOver?: number;
  readonly json: boolean;
  readonly zmq?: string;
  readonly zmqWire: EnvironmentWire;
  readonly zmqRun?: string;
}

const DEFAULT_PORT = "20410";

const DATA = { data: { kind: "parsed", parse: textParser, optional: true, placeholder: "directory", brief: "data directory (default: MW_HOME)" } } as const;

export const serveCommand: Command<AppContext> = buildCommand<ServeFlags, [], AppContext>({
  loader: async () => (await import("./commands/serve.ts")).serve,
  parameters: {
    flags: {
      ...DATA,
      port: { kind: "parsed", parse: integerParser(0, 65_535), default: DEFAULT_PORT, placeholder: "n", brief: "port, 0 for any free one" },
      host: { kind: "parsed", parse: textParser, default: "127.0.0.1", placeholder: "address", brief: "address to listen on; beyond loopback every request needs a key" },
      maxSandboxes: { kind: "parsed", parse: SETTINGS.maxSandboxes.parse, optional: true, placeholder: "n", brief: `sandboxes that live at once; more wait their turn (default ${LIMITS.sandboxesPerHost})` },
      maxSandboxesPerOwner: { kind: "parsed", parse: SETTINGS.maxSandboxesPerOwner.parse, optional: true, placeholder: "n", brief: "the same of one owner; more are refused (default: no limit of its own)" },
      maxSnapshotsPerOwner: { kind: "parsed", parse: SETTINGS.maxSnapshotsPerOwner.parse, optional: true, placeholder: "n", brief: "snapshots of one owner; more are refused (default: no limit)" },
      maxDiskPerOwner: { kind: "parsed", parse: SETTINGS.maxDiskPerOwner.parse, optional: true, placeholder: "size", brief: "disk of one owner: what its snapshots and paused sandboxes hold and its sandboxes may write (default: no limit)" },
      warm: { kind: "parsed", parse: SETTINGS.warmSandboxes.parse, optional: true, placeholder: "n", brief: "sandboxes kept ready, of the kinds that are asked for; 0: none (default 16)" },
      takeOver: { kind: "parsed", parse: integerParser(1, LIMITS.takeOverSeconds), optional: true, placeholder: "seconds", brief: "sandboxes, and machines with agents at work, outlive this server's death that long, and those of one that died are taken over" },
      json: { kind: "boolean", default: false, withNegated: false, brief: "print the address as one JSON document" },
      zmq: { kind: "parsed", parse: textParser, optional: true, placeholder: "address", brief: "also serve rollouts to prime-rl, at tcp://127.0.0.1:5000 or another ZeroMQ address" },
      zmqWire: { kind: "enum", values: ["deltas", "whole"], default: "deltas", brief: "form of its answers: deltas for verifiers 0.4 and newer, whole for older ones" },
      zmqRun: { kind: "parsed", parse: textParser, optional: true, placeholder: "file", brief: "JSON as for PUT /v1/runs: harness, budgets, deadlines of its rollouts" },
    },
  },
  docs: {
    brief: "One server for everything: sandboxes, the E2B protocol, runs, delivery to trainers",
    fullDescription: [
      "Owns the data directory while it runs. Clients send its key as Authorization: Bearer KEY or X-API-Key: KEY. The first key is MW_API_KEY, else it is made and kept in api-key of the data directory.",
      "--zmq has no keys: whoever reaches its address runs tasks. Keep it on loopback, or on a network of your own.",
      "Owners take turns, whatever each asks for, and the last tenth of the places is for those with less than an equal share. What waits longer than 30 seconds, or too deep in line, is answered 429 with Retry-After.",
      "On a loopback address, programs of the same user need no key. Ctrl-C ends it: requests under way are finished, then its machines end; a second Ctrl-C ends it at once.",
    ].join("\n"),
  },
});

const add = buildCommand<DataFlag, [string], AppContext>({
  loader: async () => (await import("./commands/key.ts")).addOwnerKey,
  parameters: { flags: DATA, positional: { kind: "tuple", parameters: [{ brief: "name of the owner", parse: textParser, placeholder: "owner" }] } },
  docs: { brief: "Make a key for an owner and print it; it counts at once and is shown only now" },
});

const list = buildCommand<DataFlag & { readonly json: boolean }, [], AppContext>({
  loader: async () => (await import("./commands/key.ts")).listKeys,
  parameters: { flags: { ...DATA, json: { kind: "boolean", default: false, withNegated: false, brief: "print one JSON document" } } },
  docs: { brief: "List owners with keys" },
});

const remove = buildCommand<DataFlag, [string], AppContext>({
  loader: async () => (await import("./commands/key.ts")).removeOwnerKeys,
  parameters: { flags: DATA, positional: { kind: "tuple", parameters: [{ brief: "name of the owner", parse: textParser, placeholder: "owner" }] } },
  docs: { brief: "Take away all keys of an owner; what they own stays" },
});

export const keyRoutes: RouteMap<AppContext> = buildRouteMap({
  routes: { add, ls: list, rm: remove },
  docs: { brief: "Keys of mw serve: several owners, who do not see each other's sandboxes and runs" },
});
