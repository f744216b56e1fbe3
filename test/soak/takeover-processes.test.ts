/** A machine whose processes were kept and restored by CRIU outlives its controller as any other does. */
import { type ChildProcess, fork, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { ExecId } from "../../src/core/ids.ts";
import { openImageStore } from "../../src/image/index.ts";
import { openNativeBackend } from "../../src/sandbox/index.ts";
import { sh, until } from "../conformance/sandbox/fixture.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import type { Done, Errand } from "../support/mortal-controller.ts";
import { mortal } from "../support/mortal.ts";

const BUILD = fileURLToPath(new URL("../../scripts/build-criu.mjs", import.meta.url));
const GRACE_S = 120;
const place = mkdtempSync(join(tmpdir(), "mw-takeover-criu-"));
const home = join(place, "home");

beforeAll(() => {
  const built = spawnSync(process.execPath, [BUILD], { encoding: "utf8" });
  expect(built.status, built.stderr).toBe(0);
  process.env["MW_CRIU"] = built.stdout.trim();
  mkdirSync(home);
}, 1_800_000);
afterAll(() => rmSync(place, { recursive: true, force: true }));

async function heard(child: ChildProcess): Promise<Done> {
  const [done] = (await once(child, "message")) as [Done];
  if (done.error !== undefined) throw new Error(done.error);
  return done;
}

test("its commands go on, with their input and output, and it can be kept, resumed and taken over again", async () => {
  const images = await openImageStore({ home, aliases: {}, cwd: place, env: process.env });
  const root = await images.rootFilesystem(await images.resolve("host"));
  const controller = async (): Promise<{ readonly child: ChildProcess; readonly ask: (errand: Errand) => Promise<Done> }> => {
    const child = mortal(fork(join(import.meta.dirname, "../support/mortal-controller.ts"), [home, String(GRACE_S)], { execArgv: ["--import", import.meta.resolve("tsx")], stdio: ["ignore", "inherit", "inherit", "ipc"] }));
    await heard(child);
    return {
      child,
      ask: (errand) => {
        const answer = heard(child);
        child.send(errand);
        return answer;
      },
    };
  };
  const kill = async (child: ChildProcess): Promise<void> => {
    const gone = once(child, "exit");
    child.kill("SIGKILL");
    await gone;
  };
  const exec = "counting" as ExecId;
  const first = await controller();
  const { sandbox: id } = await first.ask({ spec: { root, checkpointable: true, memoryBytes: 256 << 20 }, begin: { id: exec, command: "V=kept; echo begun; read line; echo $V $line; exit 5" } });
  if (id === undefined) throw new Error("no sandbox");
  await first.ask({ sandbox: id, start: "remake" });
  await kill(first.child);
  // The next one restores it once more, and dies as well.
  const second = await controller();
  await second.ask({ sandbox: id, start: "remake" });
  await kill(second.child);
  const backend = await openNativeBackend({ home, keepSeconds: GRACE_S, log: () => undefined });
  try {
    const sandbox = backend.get(id);
    if (sandbox === null) throw new Error("it was not taken over");
    const attached = await sandbox.attach(exec);
    await attached.writeStdin("on\n");
    let said = "";
    for await (const { data } of attached.output) said += Buffer.from(data).toString();
    // What a controller had heard before it parted from init went with it.
    expect(said).toMatch(/^(begun\n)?kept on\n$/);
    expect((await attached.exit).code).toBe(5);
    await attached.acknowledge();
    const { snapshot, method } = await sandbox.snapshot({ memory: true });
    expect([method, snapshot.memory]).toEqual(["dumped", true]);
    expect((await sh(sandbox, "echo works")).out).toBe("works\n");
    await backend.snapshots.remove(snapshot.id);
    await sandbox.kill();
    await until("nothing is listed", async () => (await backend.list()).length === 0);
  } finally {
    await backend.close();
  }
  expect(await leftoversAfter(home)).toEqual([]);
});
