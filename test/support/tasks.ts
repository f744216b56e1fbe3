/** Small tasks for tests, written where the test wants them. */
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

export interface TaskFiles {
  readonly name?: string;
  readonly instruction?: string;
  /** More lines of task.toml, after everything else. */
  readonly toml?: string;
  readonly environment?: string;
  readonly test?: string;
  readonly solve?: string;
}

/** Done when /work/out holds `hello`. Starts from the host's own programs, so that nothing has to be built. */
export function writeTask(directory: string, files: TaskFiles = {}): string {
  for (const folder of ["environment", "tests", "solution"]) mkdirSync(join(directory, folder), { recursive: true });
  writeFileSync(
    join(directory, "task.toml"),
    [
      'schema_version = "1.4"',
      ...(files.name === undefined ? [] : ["[task]", `name = ${JSON.stringify(files.name)}`]),
      "[agent]",
      "timeout_sec = 60",
      "[verifier]",
      "timeout_sec = 60",
      "[environment]",
      files.environment ?? 'docker_image = "host"\nnetwork_mode = "no-network"',
      files.toml ?? "",
    ].join("\n"),
  );
  writeFileSync(join(directory, "instruction.md"), files.instruction ?? "Write hello to /work/out.\n");
  writeScript(join(directory, "tests", "test.sh"), files.test ?? 'if [ "$(cat /work/out 2>/dev/null)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt');
  writeScript(join(directory, "solution", "solve.sh"), files.solve ?? "mkdir -p /work && echo hello > /work/out");
  return directory;
}

function writeScript(path: string, body: string): void {
  writeFileSync(path, `#!/bin/sh\n${body}\n`);
  chmodSync(path, 0o755);
}
