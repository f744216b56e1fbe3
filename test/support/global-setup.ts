/** Gives every test run its own data directory and takes it away again, so that tests never meet a user's runs or images. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export default function setup(): () => void {
  const home = mkdtempSync(join(tmpdir(), "mw-test-"));
  process.env["MW_HOME"] = home;
  // What a test finds must not depend on what was built here once; those of test/soak that need CRIU build it and name it.
  process.env["MW_CRIU"] ??= "off";
  return () => rmSync(home, { recursive: true, force: true });
}
