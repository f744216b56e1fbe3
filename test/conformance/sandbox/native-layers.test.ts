/** Extra layers over images that are made differently from the small one of the suite: the host's own programs, which are several mounts, and a Debian. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe } from "vitest";
import { openImageStore } from "../../../src/image/index.ts";
import { openNativeBackend, type RootFilesystem } from "../../../src/sandbox/index.ts";
import { layerSuite } from "./layers.ts";

/** The second is the base of the shipped tasks, which other suites use as well; an ordinary user cannot everywhere make one. */
const IMAGES = process.getuid?.() === 0 ? ["host", "manyworlds/terminal"] : ["host"];

describe.each(IMAGES)("layers over the image %s", (reference) => {
  let base = "";
  let root: RootFilesystem | null = null;
  beforeAll(async () => {
    base = mkdtempSync(join(tmpdir(), "mw-layers-"));
    const store = await openImageStore({ home: process.env["MW_HOME"] ?? base });
    root = await store.rootFilesystem(await store.resolve(reference));
  }, 600_000);
  afterAll(() => rmSync(base, { recursive: true, force: true }));
  layerSuite({
    open: () => openNativeBackend({ home: join(base, "home") }),
    root: () => {
      if (root === null) throw new Error("The image is made before the tests.");
      return root;
    },
    scratch: () => base,
  });
});
