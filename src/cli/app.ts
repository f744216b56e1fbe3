/** The command tree. Commands load only when they are called; what is here is their names, flags and help. */
import {
  ArgumentParseError,
  ArgumentScannerError,
  buildApplication,
  buildRouteMap,
  formatMessageForArgumentScannerError,
  text_en,
  type Application,
  type ApplicationText,
} from "@stricli/core";
import { MwError, toMwError } from "../core/errors.ts";
import type { AppContext } from "./context.ts";
import { harnessRoutes } from "./harness.ts";
import { gatewayCommand } from "./gateway.ts";
import { demoCommand, doctorCommand, imageBuildCommand } from "./host-commands.ts";
import { imageRoutes } from "./image.ts";
import { formatError } from "./output.ts";
import { exportCommand, resumeCommand, reverifyCommand, runsCommand, showCommand } from "./run-commands.ts";
import { runCommand } from "./run-flags.ts";
import { keyRoutes, serveCommand } from "./serve.ts";
import { sandboxRoutes } from "./sandbox.ts";
import { taskRoutes } from "./task.ts";
import { trainCommand } from "./train.ts";
import { VERSION } from "./version.ts";

export function buildApp(): Application<AppContext> {
  const root = buildRouteMap<string, AppContext>({
    routes: { demo: demoCommand, run: runCommand, train: trainCommand, resume: resumeCommand, runs: runsCommand, show: showCommand, export: exportCommand, reverify: reverifyCommand, task: taskRoutes, sandbox: sandboxRoutes, harness: harnessRoutes, image: imageRoutes({ build: imageBuildCommand }), gateway: gatewayCommand, serve: serveCommand, key: keyRoutes, doctor: doctorCommand },
    docs: { brief: "One machine per rollout: run agents on tasks in sandboxes, grade them elsewhere, lose nothing." },
  });
  return buildApplication(root, {
    name: "mw",
    versionInfo: { currentVersion: VERSION },
    scanner: { caseStyle: "allow-kebab-for-camel", allowArgumentEscapeSequence: true },
    documentation: { caseStyle: "convert-camel-to-kebab", disableAnsiColor: true, useAliasInUsageLine: true, onlyRequiredInUsageLine: true },
    localization: { text: TEXT },
    determineExitCode: (error) => toMwError(error).exitCode,
  });
}

const failure = (error: unknown): string => formatError(toMwError(error));

const TEXT: ApplicationText = {
  ...text_en,
  noCommandRegisteredForInput: ({ input, corrections }) =>
    formatError(new MwError("usage", `there is no command ${JSON.stringify(input)}`, { fix: corrections.length > 0 ? `did you mean ${corrections.join(" or ")}?` : "mw --help lists the commands" })),
  exceptionWhileParsingArguments: (error) => formatError(argumentError(error)),
  exceptionWhileLoadingCommandFunction: failure,
  exceptionWhileLoadingCommandContext: failure,
  exceptionWhileRunningCommand: failure,
  commandErrorResult: failure,
};

function argumentError(error: unknown): MwError {
  if (error instanceof ArgumentParseError) {
    const inner = toMwError(error.exception);
    const name = error.externalFlagNameOrPlaceholder;
    return new MwError("usage", `${/^[a-z]/.test(name) ? `--${name}` : name}: ${inner.message}, got ${JSON.stringify(error.input)}`, {
      fix: inner.fix ?? "see --help of this command",
    });
  }
  if (error instanceof ArgumentScannerError) return new MwError("usage", formatMessageForArgumentScannerError(error, {}).replaceAll(/--\w+/g, kebab), { fix: "see --help of this command" });
  return toMwError(error);
}

/** Flags as they are written, not as they are called inside. */
function kebab(flag: string): string {
  return flag.replaceAll(/[A-Z]/g, (char) => `-${char.toLowerCase()}`);
}
