/** The remote backend, against a server of ours that the test starts: all of it goes through the E2B protocol. */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll } from "vitest";
import { openRemoteBackend } from "../../../src/sandbox/index.ts";
import { makeTestRoot, type TestRoot } from "../../support/rootfs.ts";
import { serve, type Served } from "../../support/serve.ts";
import { sandboxConformance } from "./suite.ts";

const KEY = "e2b_0123456789abcdef0123456789abcdef01234567";
let base = "";
let root: TestRoot | null = null;
let server: Served | null = null;

beforeAll(async () => {
  base = mkdtempSync(join(tmpdir(), "mw-remote-"));
  chmodSync(base, 0o755);
  root = makeTestRoot(base);
  server = await serve({ home: join(base, "server"), key: KEY });
}, 200_000);

afterAll(async () => {
  await server?.stop();
  rmSync(base, { recursive: true, force: true });
});

sandboxConformance("remote backend", {
  open: () => {
    if (server === null) throw new Error("The server is started before the tests.");
    return openRemoteBackend({ url: new URL(server.url), key: KEY });
  },
  root: () => {
    if (root === null) throw new Error("The test image is made before the tests.");
    return root.root;
  },
  scratch: () => base,
});
