/** `mw harness`: agent CLIs that this product drives. Names, flags and help only; the commands themselves load when they are called. */
import { buildCommand, buildRouteMap, type Command, type RouteMap } from "@stricli/core";
import type { AppContext } from "./context.ts";
import type { MakeFlags, OutputFlags } from "./image.ts";
import { textParser } from "./parsers.ts";

const json = { kind: "boolean", default: false, withNegated: false, brief: "print one JSON document on stdout" } as const;
const quiet = { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" } as const;
const all = { kind: "boolean", default: false, withNegated: false, brief: "every agent CLI that has a descriptor" } as const;
const name = { parse: textParser, placeholder: "name", brief: "name of an agent CLI, as mw harness ls shows it" } as const;

export interface BakeFlags extends MakeFlags {
  readonly all: boolean;
}
export interface TestFlags extends BakeFlags {
  readonly image?: string;
  readonly user?: string;
}

const listCommand: Command<AppContext> = buildCommand<OutputFlags, [], AppContext>({
  loader: async () => (await import("./commands/harness.ts")).list,
  parameters: { flags: { json } },
  docs: { brief: "List the agent CLIs: version, model API, whether they are baked, size" },
});

const bakeCommand: Command<AppContext> = buildCommand<BakeFlags, string[], AppContext>({
  loader: async () => (await import("./commands/harness.ts")).bake,
  parameters: { flags: { json, quiet, all }, positional: { kind: "array", parameter: name }, aliases: { q: "quiet" } },
  docs: {
    brief: "Install agent CLIs into layers that run over any image",
    fullDescription: "Each is installed once, at its pinned version, with its own runtime and C library; what is here already is left alone. mw run bakes by itself what it needs. mw image rm mw-harness/NAME:VERSION and mw image gc take a layer away again.",
  },
});

const testCommand: Command<AppContext> = buildCommand<TestFlags, string[], AppContext>({
  loader: async () => (await import("./commands/harness.ts")).test,
  parameters: {
    flags: {
      json,
      quiet,
      all,
      image: { kind: "parsed", parse: textParser, optional: true, placeholder: "reference", brief: "image of the machine (default: host)" },
      user: { kind: "parsed", parse: textParser, optional: true, placeholder: "user", brief: "user that runs the CLI (default: the image's)" },
    },
    positional: { kind: "array", parameter: name },
    aliases: { q: "quiet" },
  },
  docs: {
    brief: "Try agent CLIs in a machine without network, with a scripted model",
    fullDescription: "Bakes them if need be, has each one play an episode of several turns, and compares. Exits with 1 when something is not as it should be, and says what.",
  },
});

export const harnessRoutes: RouteMap<AppContext> = buildRouteMap({
  routes: { ls: listCommand, bake: bakeCommand, test: testCommand },
  docs: { brief: "Agent CLIs: list, bake, test" },
});
