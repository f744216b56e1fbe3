import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import type { Image, ImageStore } from "../image/image.ts";
import { stepCache } from "./builder.ts";

it("takes the same step from many builds that end it at once", async () => {
  const directory = mkdtempSync(join(tmpdir(), "mw-step-cache-"));
  try {
    const image = { digest: "sha256:1" } as unknown as Image;
    const cache = stepCache(directory, { find: (digest: string) => Promise.resolve(digest === image.digest ? image : null) } as unknown as ImageStore);
    await Promise.all(Array.from({ length: 32 }, () => cache.add("equal", image)));
    expect(await cache.find("equal")).toBe(image);
    expect(readdirSync(directory).length).toBe(1);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});
