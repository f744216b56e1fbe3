/** Commands about tasks. */
import { buildCommand, buildRouteMap, type Command } from "@stricli/core";
import type { AppContext } from "./context.ts";
import type { TaskCheckFlags } from "./commands/task-check.ts";
import { choiceParser, hostParser, textParser } from "./parsers.ts";

const checkCommand: Command<AppContext> = buildCommand<TaskCheckFlags, string[], AppContext>({
  loader: async () => (await import("./commands/task-check.ts")).taskCheck,
  parameters: {
    flags: {
      lint: { kind: "boolean", default: false, withNegated: false, brief: "only what can be said without running anything" },
      certify: { kind: "boolean", default: false, withNegated: false, brief: "write what the gates said into certificate.json of each task's directory, where the dashboard shows it" },
      image: { kind: "parsed", parse: textParser, optional: true, placeholder: "image", brief: "image used instead of the task's" },
      network: { kind: "parsed", parse: choiceParser(["none", "allowlist", "public"]), optional: true, placeholder: "mode", brief: "network instead of the task's: none, allowlist or public" },
      allow: { kind: "parsed", parse: hostParser, variadic: true, optional: true, placeholder: "host", brief: "host that machines may reach besides those that the task names; repeatable" },
      ignoreLimits: { kind: "boolean", default: false, withNegated: false, brief: "run although declared limits cannot be enforced here" },
      json: { kind: "boolean", default: false, withNegated: false, brief: "print one JSON document on stdout" },
      quiet: { kind: "boolean", default: false, withNegated: false, brief: "no progress on stderr" },
    },
    positional: { kind: "array", minimum: 1, parameter: { parse: textParser, placeholder: "task", brief: "task directory, directory of tasks, or dataset file" } },
    aliases: { q: "quiet" },
  },
  docs: {
    brief: "Lint tasks; run the reference in each mode that a task allows, and nothing at all; exit 1 when a gate fails",
  },
});

export const taskRoutes = buildRouteMap<string, AppContext>({ routes: { check: checkCommand }, docs: { brief: "Check tasks" } });
