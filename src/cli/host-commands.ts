/** Commands about this host: doctor, demo, and the build of images. */
import { buildCommand, type Command } from "@stricli/core";
import { LIMITS } from "../core/limits.ts";
import type { DemoFlags } from "./commands/demo.ts";
import type { ImageBuildFlags } from "./commands/image-build.ts";
import type { AppContext } from "./context.ts";
import { choiceParser, durationParser, hostParser, integerParser, textParser } from "./parsers.ts";

const json = { kind: "boolean", default: false, withNegated: false, brief: "print one JSON document on stdout" } as const;
const quiet = { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" } as const;

export const doctorCommand: Command<AppContext> = buildCommand<{ readonly json: boolean }, [], AppContext>({
  loader: async () => (await import("./commands/doctor.ts")).doctor,
  parameters: { flags: { json } },
  docs: { brief: "What this host can do, what is missing and how to get it, where each setting comes from" },
});

export const demoCommand: Command<AppContext> = buildCommand<DemoFlags, [], AppContext>({
  loader: async () => (await import("./commands/demo.ts")).demo,
  parameters: {
    flags: { json, quiet, train: { kind: "boolean", default: true, brief: "also train a small policy in machines, which takes some minutes" }, concurrency: { kind: "parsed", parse: integerParser(1, LIMITS.sandboxesPerHost / 2), optional: true, placeholder: "n", brief: "rollouts alive at once (default 4)" } },
    aliases: { j: "concurrency", q: "quiet" },
  },
  docs: {
    brief: "Run the shipped tasks with a reference and an idle agent, then train a small policy",
    fullDescription:
      "Runs every shipped task twice, in real machines: solved by its reference (mean reward 1) and left alone (mean reward 0). Then a small policy learns errands from the rewards of its own rollouts. Exits with 1 when that does not hold, the policy does not come to a mean reward of 0.8, or anything is left behind.",
  },
});

export const imageBuildCommand: Command<AppContext> = buildCommand<ImageBuildFlags, [string], AppContext>({
  loader: async () => (await import("./commands/image-build.ts")).buildImage,
  parameters: {
    flags: {
      json,
      quiet,
      tag: { kind: "parsed", parse: textParser, optional: true, placeholder: "name", brief: "name of the image" },
      file: { kind: "parsed", parse: textParser, optional: true, placeholder: "path", brief: "Dockerfile (default: DIRECTORY/Dockerfile)" },
      buildArg: { kind: "parsed", parse: textParser, variadic: true, optional: true, placeholder: "name=value", brief: "value of an ARG; repeatable" },
      target: { kind: "parsed", parse: textParser, optional: true, placeholder: "stage", brief: "stage to stop at" },
      network: { kind: "parsed", parse: choiceParser(["none", "allowlist", "public"]), optional: true, placeholder: "mode", brief: "network of RUN steps (default: public where it can be had)" },
      allow: { kind: "parsed", parse: hostParser, variadic: true, optional: true, placeholder: "host", brief: "host that RUN steps reach over HTTP and HTTPS; means --network allowlist; repeatable" },
      timeout: { kind: "parsed", parse: durationParser, optional: true, placeholder: "time", brief: "of the whole build (default 10m)" },
    },
    positional: { kind: "tuple", parameters: [{ parse: textParser, placeholder: "directory", brief: "build context" }] },
    aliases: { t: "tag", f: "file", q: "quiet" },
  },
  docs: { brief: "Build a Dockerfile; its steps run in sandboxes" },
});
