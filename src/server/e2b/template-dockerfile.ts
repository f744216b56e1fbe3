/** The steps of a template as a Dockerfile for our image builder: everything that a client wrote is quoted, so that a step says only what it says. */
import { MwError } from "../../core/errors.ts";
import type { BuildBody } from "./schemas.ts";

export interface TemplateDockerfile {
  readonly text: string;
  /** Archives that steps copy from, by their hash: each is unpacked into a directory of that name in the build context. */
  readonly archives: ReadonlySet<string>;
  /** Number of the step, from 1, that each instruction of the Dockerfile belongs to, from its first after FROM. */
  readonly steps: readonly number[];
}

/** Runs as clients of this protocol expect it, where the image has what that takes. */
export const SHELL = 'if command -v bash > /dev/null; then exec bash -l -c "$0"; fi; exec /bin/sh -c "$0"';

export function templateDockerfile(base: string, steps: BuildBody["steps"], user: string): TemplateDockerfile {
  const lines = [`FROM ${checkedBase(base)}`];
  const numbers: number[] = [];
  const archives = new Set<string>();
  let current = user;
  for (const [index, step] of steps.entries()) {
    const number = index + 1;
    const add = (line: string): void => {
      lines.push(line);
      numbers.push(number);
    };
    const [first = "", second = "", third = "", fourth = ""] = step.args;
    switch (step.type) {
      case "RUN": {
        const as = second === "" ? current : checkedUser(second, number);
        if (as !== current) add(`USER ${as === "" ? "root" : as}`);
        add(`RUN ${JSON.stringify(["/bin/sh", "-c", SHELL, expectText(first, number, "RUN")])}`);
        if (as !== current) add(`USER ${current === "" ? "root" : current}`);
        break;
      }
      case "COPY": {
        if (step.filesHash === undefined) throw bad(number, "COPY needs filesHash, the archive that holds the files");
        archives.add(step.filesHash);
        const owner = third === "" ? current : checkedUser(third, number);
        if (fourth !== "" && !/^[0-7]{3,4}$/.test(fourth)) throw bad(number, `the mode ${JSON.stringify(fourth)} is no octal number`);
        if (first.split("/").includes("..") || first.startsWith("/")) throw bad(number, `${JSON.stringify(first)} leaves the archive`);
        add(`COPY${owner === "" ? "" : ` --chown=${owner}`}${fourth === "" ? "" : ` --chmod=${fourth}`} ${JSON.stringify([`${step.filesHash}/${first}`, expectText(second, number, "COPY")])}`);
        break;
      }
      case "ENV": {
        if (step.args.length === 0 || step.args.length % 2 !== 0) throw bad(number, "ENV takes names and values in turn");
        for (let at = 0; at < step.args.length; at += 2) add(`ENV ${checkedName(step.args[at] ?? "", number)}=${quoted(step.args[at + 1] ?? "", number)}`);
        break;
      }
      case "WORKDIR":
        add(`WORKDIR ${oneLine(expectText(first, number, "WORKDIR"), number).replaceAll("$", "\\$")}`);
        break;
      case "USER":
        current = checkedUser(first, number);
        add(`USER ${current}`);
        break;
    }
  }
  return { text: `${lines.join("\n")}\n`, archives, steps: numbers };
}

function checkedBase(base: string): string {
  if (/[\s$\\]/.test(base)) throw new MwError("invalid_image", `not an image name: ${JSON.stringify(base.slice(0, 200))}`);
  return base;
}

function checkedUser(user: string, step: number): string {
  if (!/^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$/.test(user)) throw bad(step, `${JSON.stringify(user.slice(0, 100))} cannot be a user`);
  return user;
}

function checkedName(name: string, step: number): string {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) throw bad(step, `${JSON.stringify(name.slice(0, 100))} cannot be a variable`);
  return name;
}

function quoted(value: string, step: number): string {
  return `"${oneLine(value, step).replaceAll(/["\\$]/g, String.raw`\$&`)}"`;
}

function oneLine(text: string, step: number): string {
  if (/[\n\r\0]/.test(text)) throw bad(step, "a value cannot hold a line break here");
  return text;
}

function expectText(text: string, step: number, what: string): string {
  if (text === "" || text.includes("\0")) throw bad(step, `${what} has an empty argument`);
  return text;
}

function bad(step: number, message: string): MwError {
  return new MwError("invalid_input", `step ${step}: ${message}`, { facts: { step } });
}
