/** Python packages for tests, pinned, in a directory of their own under `node_modules/.cache`. */
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { promisify } from "node:util";
import { cached } from "./cache.ts";

const run = promisify(execFile);

/** A directory for `PYTHONPATH` that holds these requirements and what they need. */
export function pythonPath(requirements: readonly string[]): Promise<string> {
  const digest = createHash("sha256").update(requirements.join(" ")).digest("hex").slice(0, 12);
  return cached(`python-${digest}`, async (draft) => {
    await run("python3", ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", draft, ...requirements], { maxBuffer: 1 << 26 });
  });
}
