/** `mw image`: what sandboxes start from. Names, flags and help only; the commands themselves load when they are called. */
import { buildCommand, buildRouteMap, type Command, type RouteMap } from "@stricli/core";
import type { AppContext } from "./context.ts";
import { textParser } from "./parsers.ts";

const json = { kind: "boolean", default: false, withNegated: false, brief: "print one JSON document on stdout" } as const;
const quiet = { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" } as const;
const image = { parse: textParser, placeholder: "image", brief: "host, dir:PATH, tar:PATH, oci:PATH[:TAG], docker-archive:PATH[:TAG], mmdebstrap:SUITE[+package,...], a name or a digest" } as const;
const name = { parse: textParser, placeholder: "name", brief: "a name such as mine:latest" } as const;

export interface OutputFlags {
  readonly json: boolean;
}
export interface MakeFlags extends OutputFlags {
  readonly quiet: boolean;
}

const pullCommand: Command<AppContext> = buildCommand<MakeFlags & { readonly refresh: boolean }, [string], AppContext>({
  loader: async () => (await import("./commands/image.ts")).pull,
  parameters: {
    flags: { json, quiet, refresh: { kind: "boolean", default: false, withNegated: false, brief: "ask the source again, even when the image is here" } },
    positional: { kind: "tuple", parameters: [image] },
    aliases: { q: "quiet" },
  },
  docs: { brief: "Make an image available here: pull, import or bootstrap it" },
});

const importCommand: Command<AppContext> = buildCommand<MakeFlags, [string, string?], AppContext>({
  loader: async () => (await import("./commands/image.ts")).importImage,
  parameters: {
    flags: { json, quiet },
    positional: { kind: "tuple", parameters: [{ parse: textParser, placeholder: "path", brief: "root directory, root archive, OCI layout or docker-save archive; what it is is found out" }, { ...name, optional: true }] },
    aliases: { q: "quiet" },
  },
  docs: { brief: "Import a file or directory and give it a name" },
});

const listCommand: Command<AppContext> = buildCommand<OutputFlags & { readonly all: boolean }, [], AppContext>({
  loader: async () => (await import("./commands/image.ts")).list,
  parameters: { flags: { json, all: { kind: "boolean", default: false, withNegated: false, brief: "also images without a name" } } },
  docs: { brief: "List the images that are here" },
});

const showCommand: Command<AppContext> = buildCommand<OutputFlags, [string], AppContext>({
  loader: async () => (await import("./commands/image.ts")).show,
  parameters: { flags: { json }, positional: { kind: "tuple", parameters: [image] } },
  docs: { brief: "Show an image's configuration and layers" },
});

const tagCommand: Command<AppContext> = buildCommand<OutputFlags, [string, string], AppContext>({
  loader: async () => (await import("./commands/image.ts")).tag,
  parameters: { flags: { json }, positional: { kind: "tuple", parameters: [image, name] } },
  docs: { brief: "Give a name to an image" },
});

const removeCommand: Command<AppContext> = buildCommand<OutputFlags, string[], AppContext>({
  loader: async () => (await import("./commands/image.ts")).remove,
  parameters: { flags: { json }, positional: { kind: "array", parameter: { parse: textParser, placeholder: "name|digest", brief: "a name, or a digest with all its names" }, minimum: 1 } },
  docs: { brief: "Remove names or images; mw image gc then frees the space" },
});

const collectCommand: Command<AppContext> = buildCommand<OutputFlags, [], AppContext>({
  loader: async () => (await import("./commands/image.ts")).collect,
  parameters: { flags: { json } },
  docs: { brief: "Delete layers that no named image and no living process uses" },
});

const exportCommand: Command<AppContext> = buildCommand<MakeFlags, [string, string], AppContext>({
  loader: async () => (await import("./commands/image.ts")).exportImage,
  parameters: { flags: { json, quiet }, positional: { kind: "tuple", parameters: [image, { parse: textParser, placeholder: "file", brief: "archive to write; it must not exist" }] }, aliases: { q: "quiet" } },
  docs: { brief: "Write an image as an OCI archive" },
});

const aliasCommand: Command<AppContext> = buildCommand<OutputFlags & { readonly remove: boolean }, [string?, string?], AppContext>({
  loader: async () => (await import("./commands/image.ts")).alias,
  parameters: {
    flags: { json, remove: { kind: "boolean", default: false, withNegated: false, brief: "take the name out of the data directory's table" } },
    positional: { kind: "tuple", parameters: [{ ...name, optional: true }, { ...image, optional: true }] },
  },
  docs: { brief: "Show the alias table, or map a name to an image", fullDescription: "Maps names such as python:3.12-slim, as tasks have them, to images that can be made here. Without arguments: shows the table." },
});

/** `build` is added by the builder's own command. */
export function imageRoutes(more: Readonly<Record<string, Command<AppContext>>> = {}): RouteMap<AppContext> {
  return buildRouteMap<string, AppContext>({
    routes: {
      pull: pullCommand, import: importCommand, ...more, ls: listCommand, show: showCommand, tag: tagCommand, rm: removeCommand, gc: collectCommand, export: exportCommand, alias: aliasCommand,
    },
    docs: { brief: "Images: what sandboxes start from" },
  });
}
