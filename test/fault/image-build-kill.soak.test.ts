/**
 * `mw image build` killed with -9 in each of its steps, at moments drawn from a seed: whatever is listed is whole, the same build then goes through from the steps that were finished, and
 * nothing is left over after the next collection. `MW_FAULT_SEED` draws others.
 */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { randomBytes } from "node:crypto";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { toMwError } from "../../src/core/errors.ts";
import { openImageStore } from "../../src/image/index.ts";
import { openNativeBackend } from "../../src/sandbox/index.ts";
import { mw } from "../support/cli.ts";
import { delays } from "../support/helper-kills.ts";
import { startCli } from "../support/killed-run.ts";
import { leftovers, leftoversAfter, machines } from "../support/leftovers.ts";
import { makeTestRoot } from "../support/rootfs.ts";
import { sh, until } from "../conformance/sandbox/fixture.ts";

const SEED = Number(process.env["MW_FAULT_SEED"] ?? 7);
/** About as long as a step takes where nothing else runs. */
const MOST_MS = 150;

const place = mkdtempSync(join(tmpdir(), "mw-buildkill-"));
const home = join(place, "home");
const context = join(place, "context");

beforeAll(async () => {
  const image = makeTestRoot(place);
  mkdirSync(home);
  mkdirSync(join(context, "tree"), { recursive: true });
  for (let i = 0; i < 300; i++) writeFileSync(join(context, "tree", String(i)), String(i));
  writeFileSync(join(context, "big"), randomBytes(6_000_000));
  const dockerfile = ["FROM base AS first", "ARG ROUND", 'RUN echo "$ROUND" > /round; mkdir /w; i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i > /w/$i; done', "COPY big /w/big", "RUN md5sum /w/big > /w/sum", "FROM base", "COPY --from=first /w /w", "COPY tree /tree", "COPY --from=first /round /round"];
  writeFileSync(join(context, "Dockerfile"), `${dockerfile.join("\n")}\n`);
  expect((await mw(["image", "import", `dir:${image.directory}`, "base", "--quiet"], { env: { MW_HOME: home } })).code).toBe(0);
});
afterAll(() => rmSync(place, { recursive: true, force: true }));

const build = (round: number): ReturnType<typeof startCli> => startCli(home, ["image", "build", context, "--tag", `built-${round}`, "--build-arg", `ROUND=${round}`, "--network", "none"]);

/** Kills the build `afterMs` after it says that it begins its `step`th step. False when it was over before. */
async function killed(round: number, step: number, afterMs: number): Promise<boolean> {
  const { child, ended } = build(round);
  let told = "";
  const reached = new Promise<void>((resolve) => {
    child.stderr?.on("data", (data: Buffer) => {
      told += data.toString();
      if ((told.match(/^Dockerfile \[|\/Dockerfile \[/gm) ?? []).length >= step) resolve();
    });
  });
  await Promise.race([reached, ended]);
  await new Promise((resolve) => setTimeout(resolve, afterMs));
  child.kill("SIGKILL");
  return (await ended).code === null;
}

const whole = new Set<string>();

/** Everything that is newly listed can be a machine's root, and what was copied is what it was. */
async function checkListed(): Promise<void> {
  const images = await openImageStore({ home, aliases: {} });
  // The spawner of a dead builder needs a moment to take its machines away.
  const backend = await until("the data directory is free", () => openNativeBackend({ home, log: () => undefined }).catch((error: unknown) => (toMwError(error).code === "busy" ? null : Promise.reject(toMwError(error)))));
  if (backend === null) return;
  try {
    for (const { image } of await images.list()) {
      if (whole.has(image.digest)) continue;
      whole.add(image.digest);
      const sandbox = await backend.create({ root: await images.rootFilesystem(image) });
      expect((await sh(sandbox, "cat /etc/marker; test ! -e /w/sum || md5sum -c /w/sum; test ! -e /tree || ls /tree | wc -l")).out).toMatch(/^image\n(\/w\/big: OK\n)?(300\n)?$/);
      await sandbox.kill();
    }
  } finally {
    await backend.close();
  }
}

it("killed in any step, the next build goes through, and collection leaves nothing of the dead one", async () => {
  const delay = delays("killing image builds", SEED);
  let kills = 0;
  for (let step = 1; step <= 7; step++) {
    const afterMs = delay(MOST_MS);
    const where = `step ${step}, after ${afterMs.toFixed(0)} ms`;
    if (await killed(step, step, afterMs)) kills++;
    // Its machines die with it; what it had half made waits for the next one.
    expect(await leftoversAfter(home, machines), where).toEqual([]);
    await checkListed();
    const { code, stderr } = await build(step).ended;
    expect([where, code], stderr).toEqual([where, 0]);
    const looked = await startCli(home, ["sandbox", "run", "--json", `built-${step}`, "--", "/bin/sh", "-c", "cat /round; md5sum -c /w/sum; ls /w | wc -l; ls /tree | wc -l"]).ended;
    expect(JSON.parse(looked.stdout), where).toMatchObject({ stdout: `${step}\n/w/big: OK\n302\n300\n` });
    expect(leftovers(home), where).toEqual([]);
  }
  expect(kills).toBeGreaterThan(3);
  // Killed once more, and collected without another build. One that went through first is no part of it.
  for (let round = 90; !(await killed(round, 3, 0)); round++) expect((await mw(["image", "rm", `built-${round}`], { env: { MW_HOME: home } })).code).toBe(0);
  await checkListed();
  // What was looked at here is not in use any more.
  for (const name of readdirSync(join(home, "images", "leases"))) if (name.startsWith(`${process.pid}-`)) rmSync(join(home, "images", "leases", name));
  for (let step = 1; step <= 7; step++) expect((await mw(["image", "rm", `built-${step}`], { env: { MW_HOME: home } })).code).toBe(0);
  expect((await mw(["image", "gc"], { env: { MW_HOME: home } })).code).toBe(0);
  expect(await leftoversAfter(home)).toEqual([]);
  for (const part of ["tmp", "locks"]) expect(readdirSync(join(home, "images", part)).filter((name) => /^\d+-/.test(name)), part).toEqual([]);
  const { images } = JSON.parse((await mw(["image", "ls", "--all", "--json"], { env: { MW_HOME: home } })).stdout) as { images: { digest: string }[] };
  expect(new Set(images.map(({ digest }) => digest)).size).toBe(1);
  whole.clear();
  await checkListed();
}, 600_000);
