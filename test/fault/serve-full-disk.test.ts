/** A sandbox of `mw serve` whose lease ends in a pause while the disk is full: it loses nothing, and is paused when there is room. */
import { execFileSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { asking } from "../support/asking.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { serve, type Served } from "../support/serve.ts";

const KEY = "a-key-for-full-disks";

describe.runIf(process.getuid?.() === 0)("a full disk", () => {
  let base = "";
  let home = "";
  let image: TestRoot;
  let server: Served;
  const resize = (size: string): void => void execFileSync("mount", ["-o", `remount,size=${size}`, home]);
  /** To what is used, so that nothing more goes in. Says whether it could: the server may have written meanwhile. */
  const shrink = (): boolean => {
    const { blocks, bfree, bsize } = statfsSync(home);
    try {
      resize(String((blocks - bfree) * bsize));
      return true;
    } catch {
      return false;
    }
  };

  beforeAll(async () => {
    base = mkdtempSync(join(tmpdir(), "mw-serve-full-"));
    chmodSync(base, 0o755);
    image = makeTestRoot(base);
    home = join(base, "home");
    mkdirSync(home);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=2g", "mw-test", home]);
    server = await serve({ home, key: KEY });
  });
  afterAll(async () => {
    await server.stop();
    execFileSync("umount", [home]);
    expect(await leftoversAfter(home)).toEqual([]);
    rmSync(base, { recursive: true, force: true });
  });

  const askServer = asking(() => server, KEY);
  const ask = (method: string, path: string, body?: unknown): ReturnType<typeof askServer> => askServer(method, `/v1/sandboxes${path}`, body);

  it("ends no sandbox whose lease was to end in a pause", async () => {
    const made = await ask("POST", "", { image: `dir:${image.directory}`, ttl_ms: 600_000, on_timeout: "pause" });
    expect(made.status, JSON.stringify(made.body)).toBe(201);
    const id = made.body.id as string;
    expect((await ask("POST", `/${id}/run`, { command: "head -c 3000000 /dev/urandom > /big; md5sum /big > /sum" })).body.code).toBe(0);
    await expect.poll(shrink).toBe(true);
    expect((await ask("POST", `/${id}/renew`, { ttl_ms: 1_000 })).status).toBe(200);
    await expect.poll(() => server.stderr(), { timeout: 60_000 }).toContain(`${id} could not be paused at the end of its lease, and runs on`);
    const late = (await ask("GET", `/${id}`)).body;
    expect(late).toMatchObject({ state: "running" });
    expect((await ask("POST", `/${id}/run`, { command: "md5sum -c /sum" })).body.stdout).toBe("/big: OK\n");
    resize("2g");
    await expect.poll(async () => (await ask("GET", `/${id}`)).body.state as string, { timeout: 60_000 }).toBe("paused");
    await expect.poll(() => server.stderr()).toMatch(/is paused, \d+ s after the end of its lease/);
    expect((await ask("POST", `/${id}/resume`, { ttl_ms: 600_000 })).body).toMatchObject({ state: "running" });
    expect((await ask("POST", `/${id}/run`, { command: "md5sum -c /sum" })).body.stdout).toBe("/big: OK\n");
    expect((await ask("DELETE", `/${id}`)).status).toBe(204);
  });
});
