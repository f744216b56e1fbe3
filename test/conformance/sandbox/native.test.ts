/** The native backend as whoever runs the tests: root, or (see native-user.test.ts) an ordinary user. */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll } from "vitest";
import { openNativeBackend } from "../../../src/sandbox/index.ts";
import { makeTestRoot, type TestRoot } from "../../support/rootfs.ts";
import { sandboxConformance } from "./suite.ts";

let base = "";
let root: TestRoot | null = null;
let homes = 0;

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), "mw-conf-"));
  chmodSync(base, 0o755);
  root = makeTestRoot(base);
});

afterAll(() => {
  rmSync(base, { recursive: true, force: true });
});

sandboxConformance(process.getuid?.() === 0 ? "native backend as root" : "native backend as an ordinary user", {
  open: () => openNativeBackend({ home: join(base, `home-${homes++}`) }),
  root: () => {
    if (root === null) throw new Error("The test image is made before the tests.");
    return root.root;
  },
  scratch: () => base,
});
