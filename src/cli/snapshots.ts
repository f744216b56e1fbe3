/** `mw sandbox snapshot|fork|pause|resume` and `mw sandbox snapshots`: machines that are kept, copied and taken back. */
import { buildCommand, buildRouteMap } from "@stricli/core";
import { LIMITS } from "../core/limits.ts";
import type { AppContext } from "./context.ts";
import { integerParser, textParser } from "./parsers.ts";

const flag = (brief: string) => ({ kind: "boolean", brief, default: false }) as const;
const JSON_FLAG = { json: flag("print one JSON document instead") } as const;
const MEMORY = { memory: flag("keep the processes too; the machine must be made with --checkpointable") } as const;
const NAME = { kind: "parsed", parse: textParser, brief: "a name for it, which moves here from the snapshot that has it", placeholder: "name", optional: true } as const;
const ID = { brief: "sandbox id, or its beginning when that is unique", parse: textParser, placeholder: "id" } as const;
const SNAPSHOT = { brief: "id or name of a snapshot", parse: textParser, placeholder: "snapshot" } as const;
const one = <P>(parameter: P) => ({ kind: "tuple", parameters: [parameter] }) as const;

const snapshot = buildCommand<{ readonly name?: string; readonly memory: boolean; readonly json: boolean }, readonly [string], AppContext>({
  loader: async () => (await import("./snapshot-commands.ts")).takeSnapshot,
  parameters: { flags: { name: NAME, ...MEMORY, ...JSON_FLAG }, positional: one(ID) },
  docs: {
    brief: "Keep what a machine is now, and let it go on.",
    fullDescription: "Prints the snapshot's id. Start a machine from it with `mw sandbox create --snapshot ID` (or its name). It holds every file that was written since the image, exactly, and stays until `mw sandbox snapshots rm`.",
  },
});

const fork = buildCommand<{ readonly count: number; readonly memory: boolean; readonly json: boolean }, readonly [string], AppContext>({
  loader: async () => (await import("./snapshot-commands.ts")).forkHeld,
  parameters: {
    flags: { count: { kind: "parsed", parse: integerParser(1, LIMITS.forkChildren), brief: "how many children", placeholder: "n", default: "1" }, ...MEMORY, ...JSON_FLAG },
    aliases: { n: "count" },
    positional: one(ID),
  },
  docs: { brief: "Children that start as a machine is now, while it goes on.", fullDescription: "Prints their ids, one a line. They are held by the same process as the machine, have their own host name, machine id and network, and live on when it ends." },
});

const pause = buildCommand<{ readonly memory: boolean }, readonly [string], AppContext>({
  loader: async () => (await import("./snapshot-commands.ts")).pauseHeld,
  parameters: { flags: MEMORY, positional: one(ID) },
  docs: { brief: "Give a machine's memory back and keep its files on disk, until `resume`.", fullDescription: "Its processes end, unless --memory keeps them. Its holder stays." },
});

const resume = buildCommand<Record<never, never>, readonly [string], AppContext>({
  loader: async () => (await import("./snapshot-commands.ts")).resumeHeld,
  parameters: { flags: {}, positional: one(ID) },
  docs: { brief: "Let a paused machine go on." },
});

const snapshots = buildRouteMap({
  routes: {
    ls: buildCommand<{ readonly json: boolean }, readonly [], AppContext>({
      loader: async () => (await import("./snapshot-commands.ts")).listSnapshots,
      parameters: { flags: JSON_FLAG, positional: { kind: "tuple", parameters: [] } },
      docs: { brief: "List the snapshots of this data directory." },
    }),
    rm: buildCommand<Record<never, never>, readonly string[], AppContext>({
      loader: async () => (await import("./snapshot-commands.ts")).removeSnapshots,
      parameters: { flags: {}, positional: { kind: "array", parameter: SNAPSHOT, minimum: 1 } },
      docs: { brief: "Remove snapshots; machines that started from them keep what they use." },
    }),
    export: buildCommand<Record<never, never>, readonly [string, string], AppContext>({
      loader: async () => (await import("./snapshot-commands.ts")).exportSnapshotTo,
      parameters: { flags: {}, positional: { kind: "tuple", parameters: [SNAPSHOT, { brief: "file that does not exist yet", parse: textParser, placeholder: "file" }] } },
      docs: { brief: "Write a snapshot to one file, for another data directory or machine. The image below it is not in it." },
    }),
    import: buildCommand<{ readonly name?: string }, readonly [string], AppContext>({
      loader: async () => (await import("./snapshot-commands.ts")).importSnapshotFrom,
      parameters: { flags: { name: NAME }, positional: one({ brief: "file that `export` wrote", parse: textParser, placeholder: "file" }) },
      docs: { brief: "Take a snapshot in from a file." },
    }),
    gc: buildCommand<{ readonly json: boolean }, readonly [], AppContext>({
      loader: async () => (await import("./snapshot-commands.ts")).collectSnapshots,
      parameters: { flags: JSON_FLAG, positional: { kind: "tuple", parameters: [] } },
      docs: { brief: "Remove what no snapshot and no living machine uses." },
    }),
  },
  docs: { brief: "Snapshots of this data directory: ls, rm, export, import, gc." },
});

export const snapshotRoutes = { snapshot, fork, pause, resume, snapshots } as const;
