/** The harnesses by name. */
import { MwError } from "../core/errors.ts";
import { bash, type BashOptions } from "./bash/bash.ts";
import type { Harness } from "./harness.ts";
import { nop } from "./nop.ts";
import { oracle } from "./oracle.ts";
import { script } from "./script.ts";


export interface HarnessOptions {
  /** Host path of the `script` harness's file. */
  readonly script?: string;
  /** For the `bash` harness. */
  readonly bash?: BashOptions;
}

export const HARNESS_NAMES = ["nop", "oracle", "script", "bash"] as const;
type HarnessName = (typeof HARNESS_NAMES)[number];

/** Rejects `usage` for an unknown name, a missing option, or an option that the harness does not have. */
export function makeHarness(name: string, options: HarnessOptions = {}): Harness {
  if (!isHarnessName(name)) {
    const near = closest(name);
    throw new MwError("usage", `There is no harness ${JSON.stringify(name)}.`, {
      fix: `${near === null ? "" : `Did you mean ${near}? `}The harnesses are ${HARNESS_NAMES.join(", ")}.`,
    });
  }
  if (options.script !== undefined && name !== "script") {
    throw new MwError("usage", `The harness ${name} plays no script.`, { fix: "Use --harness script with --script FILE, or leave --script out." });
  }
  switch (name) {
    case "nop":
      return nop;
    case "oracle":
      return oracle;
    case "script":
      if (options.script === undefined) throw new MwError("usage", "The harness script needs a file to play.", { fix: "Add --script FILE." });
      return script(options.script);
    case "bash":
      return bash(options.bash);
  }
}

function isHarnessName(name: string): name is HarnessName {
  return (HARNESS_NAMES as readonly string[]).includes(name);
}

function closest(name: string): HarnessName | null {
  const scored = HARNESS_NAMES.map((candidate) => ({ candidate, distance: editDistance(name.toLowerCase().slice(0, 64), candidate) }));
  scored.sort((a, b) => a.distance - b.distance);
  const best = scored[0];
  return best !== undefined && best.distance <= Math.max(1, Math.floor(best.candidate.length / 2)) ? best.candidate : null;
}

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next.push(Math.min((row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1, (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}
