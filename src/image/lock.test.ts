import { spawn } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { temporaryDirectory } from "../../test/support/image-tools.ts";
import { holderLives, ownToken } from "./holder.ts";
import { withLock } from "./lock.ts";
import { mortal } from "../../test/support/mortal.ts";

const module = new URL("../../dist/image/lock.js", import.meta.url).href;

/** A process that counts up a file under the lock; without exclusion, counts get lost. */
function counter(directory: string, times: number): Promise<number | null> {
  const code = `
    const { withLock } = await import(${JSON.stringify(module)});
    const { readFileSync, writeFileSync } = await import("node:fs");
    for (let i = 0; i < ${times}; i++) await withLock(${JSON.stringify(join(directory, "lock"))}, async () => {
      const value = Number(readFileSync(${JSON.stringify(join(directory, "count"))}, "utf8"));
      await new Promise((resolve) => setTimeout(resolve, 1));
      writeFileSync(${JSON.stringify(join(directory, "count"))}, String(value + 1));
    });`;
  return new Promise((resolve) => mortal(spawn(process.execPath, ["--input-type=module", "-e", code], { stdio: "ignore" })).once("exit", resolve));
}

it("excludes processes and callers, and leaves nothing behind", async () => {
  const directory = temporaryDirectory();
  writeFileSync(join(directory, "count"), "0");
  const own = Promise.all(
    Array.from({ length: 20 }, () =>
      withLock(join(directory, "lock"), async () => {
        const value = Number(readFileSync(join(directory, "count"), "utf8"));
        await new Promise((resolve) => setTimeout(resolve, 1));
        writeFileSync(join(directory, "count"), String(value + 1));
      }),
    ),
  );
  expect(await Promise.all([counter(directory, 15), counter(directory, 15), counter(directory, 15)])).toEqual([0, 0, 0]);
  await own;
  expect(readFileSync(join(directory, "count"), "utf8")).toBe("65");
  expect(readdirSync(directory).sort()).toEqual(["count", "lock"]);
  expect(readdirSync(join(directory, "lock"))).toEqual([]);
});

it("is taken over from a holder that was killed, and never from one that lives", async () => {
  const directory = temporaryDirectory();
  const path = join(directory, "lock");
  const child = mortal(spawn(process.execPath, ["--input-type=module", "-e", `const { withLock } = await import(${JSON.stringify(module)}); await withLock(${JSON.stringify(path)}, () => new Promise(() => setInterval(() => {}, 1000)));`], { stdio: "ignore" }));
  while (!readdirSync(directory).includes("lock")) await new Promise((resolve) => setTimeout(resolve, 5));
  let waitingFor = "";
  const taken = withLock(path, () => Promise.resolve("mine"), { onWait: (pid) => (waitingFor = pid) });
  await expect.poll(() => waitingFor, { timeout: 60_000 }).toBe(String(child.pid));
  child.kill("SIGKILL");
  expect(await taken).toBe("mine");
});

it("gives up when told to", async () => {
  const path = join(temporaryDirectory(), "lock");
  await withLock(path, async () => {
    const controller = new AbortController();
    const waiting = withLock(path, () => Promise.resolve(), { signal: controller.signal });
    controller.abort(new Error("enough"));
    await expect(waiting).rejects.toThrow("enough");
  });
});

it("tells a living process from a dead one and from one that reuses its pid", () => {
  expect(holderLives(ownToken())).toBe(true);
  const [pid, start, boot, random] = ownToken().split("-");
  expect(holderLives(`${pid}-${Number(start) - 1}-${boot}-${random}`)).toBe(false);
  expect(holderLives(`${pid}-${start}-00000000-${random}`)).toBe(false);
  expect(holderLives(`4194304-1-${boot}-${random}`)).toBe(false);
  expect(holderLives("rubbish")).toBe(false);
});
