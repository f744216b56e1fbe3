/** The whole conformance suite with each OCI runtime. */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll } from "vitest";
import { openOciBackend } from "../../src/sandbox/index.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { sandboxConformance } from "../conformance/sandbox/suite.ts";

let base = "";
let image: TestRoot;

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-oci-"));
  chmodSync(base, 0o755);
  image = makeTestRoot(base);
});
afterAll(() => rmSync(base, { recursive: true, force: true }));

for (const program of ["runc", "crun"]) {
  sandboxConformance(`oci backend with ${program}`, { open: () => openOciBackend({ home: join(base, "home"), program }), root: () => image.root, scratch: () => mkdtempSync(join(base, "scratch-")) });
}
