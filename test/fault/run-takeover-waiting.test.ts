/** A run whose machines wait for `mw resume`: whoever else comes to the data directory is told so, and ends nothing of it. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { asking } from "../support/asking.ts";
import { mw } from "../support/cli.ts";
import { startEngine, type Engine } from "../support/engine/index.ts";
import { killWhen, RunFiles, startCli } from "../support/killed-run.ts";
import { leftoversAfter, machines } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { asked, begun, eventsOf, isTurn, SurvivingRuns, until } from "../support/surviving-run.ts";

const place = mkdtempSync(join(tmpdir(), "mw-run-takeover-waiting-"));
const KEY = "the-first-key-of-all";
const runs = new SurvivingRuns(place);
let silent: Engine;
beforeAll(async () => {
  silent = await startEngine((request) => ({ content: "late", ...(isTurn(request) ? { delayMs: 600_000 } : {}) }));
  await runs.prepare();
});
afterAll(async () => {
  await silent.close();
  rmSync(place, { recursive: true, force: true });
});

/** A run that was killed, and whose machines did not wait long. */
async function abandonedRun(): Promise<string> {
  const files = new RunFiles(runs.home);
  await killWhen(startCli(runs.home, runs.arguments(silent, "abandoned", ["--take-over", "1"])), "its agent", () => begun(files) === 1);
  await until("the end of its machine", () => machines(runs.home).every((text) => text.startsWith("gateway socket")));
  return files.run;
}

it("mw run, mw resume of another one and mw serve refuse kindly, with --take-over or without, and mw resume goes on", async () => {
  const abandoned = await abandonedRun();
  let refused = 0;
  const { files, pids } = await runs.disturbed(
    "waiting",
    [
      {
        what: "the third question",
        holds: 2,
        when: (of, to) => begun(of) === 1 && asked(to, 2) === 1,
        after: async (_, { run }) => {
          const told = { code: 3, stderr: expect.stringMatching(new RegExp(`has died, and its machines wait \\d+ s more[^]*mw resume ${run} goes on with 1 of the run's rollouts`)) as unknown };
          for (const command of [runs.arguments(silent, "new", []), runs.arguments(silent, "new", ["--take-over", "60"]), ["resume", abandoned], ["serve", "--port", "0", "--take-over", "60"]]) {
            // The machines' keeper notices the death in its own time.
            await expect.poll(() => mw(command, { env: { MW_HOME: runs.home } })).toMatchObject(told);
            refused++;
          }
          return true;
        },
      },
    ],
    ["--take-over", "300"],
  );
  expect(refused).toBe(4);
  expect(pids.size).toBe(1);
  expect(eventsOf(files, "rollout_leased").length).toBe(1);
  expect(eventsOf(files, "rollout_taken_over").length).toBe(1);
  expect(await runs.essence(files.run)).toEqual([await runs.expected()]);
}, 600_000);

it("so does mw run where sandboxes wait for the next server, which then has them", async () => {
  const home = join(place, "server");
  const start = (): Promise<Served> => serve({ home, key: KEY, args: ["--warm", "0", "--take-over", "300"] });
  let server = await start();
  const ask = asking(() => server, KEY);
  try {
    const made = await ask("POST", "/v1/sandboxes", { image: "host", ttl_ms: 900_000 });
    expect(made.status, JSON.stringify(made.body)).toBe(201);
    await server.stop("SIGKILL");
    const command = runs.arguments(silent, "new", ["--take-over", "60"]);
    await expect.poll(() => mw(command, { env: { MW_HOME: home } })).toMatchObject({ code: 3, stderr: expect.stringContaining("a server started with mw serve --take-over SECONDS goes on with 1 sandboxes of its clients") as unknown });
    server = await start();
    expect((await ask("GET", `/v1/sandboxes/${made.body.id as string}`)).status).toBe(200);
    expect(await server.stop()).toBe(0);
    expect(await leftoversAfter(home)).toEqual([]);
  } finally {
    await server.stop("SIGKILL");
  }
});
