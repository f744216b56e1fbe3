/** The Python client against the real delivery service; rollouts are simulated, by the names of their tasks. The tests are Python's, in python/tests/server. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.ts";
import type { MemberJob, WorkerFactory } from "../../../src/delivery/worker.ts";
import { startDeliveryServer, type DeliveryServer } from "../../support/delivery/delivery-server.ts";
import { failedEnd, scoredEnd, SimulatedWorker, type Draw } from "../../support/delivery/simulated-worker.ts";
import { PACKAGE, python, pythonEnvironment, pythonPath } from "../../support/python.ts";

const directory = mkdtempSync(join(tmpdir(), "mw-python-client-"));
let server: DeliveryServer;
let packages = "";

/** `/t/broken`: fails; `/t/half`: members with an even number fail; `/t/slow`: takes a while. */
function draw(job: MemberJob): Draw {
  const fails = job.task === "/t/broken" || (job.task === "/t/half" && job.member % 2 === 0);
  return {
    durationMs: job.task === "/t/slow" ? 200 : 0,
    end: ({ startedAt, endedAt, version }) =>
      fails
        ? failedEnd(job, "sandbox_error", "sandbox_failed", startedAt, endedAt)
        : scoredEnd(job, { startedAt, endedAt, reward: job.member % 2, prompt: 3, sampled: 5, versionMin: version, versionMax: version }),
  };
}
const workers: WorkerFactory = () => Promise.resolve(new SimulatedWorker(systemRuntime, draw));

const control = createServer((_request, response) => {
  void (async () => {
    const port = Number(new URL(server.url).port);
    await server.close();
    server = await startDeliveryServer(directory, workers, port);
    response.end();
  })();
});

beforeAll(async () => {
  packages = await pythonPath(["pytest==9.2.0", "numpy==2.4.6", "msgpack==1.2.4"]);
  server = await startDeliveryServer(directory, workers);
  await new Promise<void>((resolve) => control.listen(0, "127.0.0.1", resolve));
}, 600_000);
afterAll(async () => {
  control.close();
  await server.close();
  rmSync(directory, { recursive: true, force: true });
});

it("the example of docs/python.md that awaits groups by name runs as it stands", async () => {
  const example = /```python\n(from manyworlds_rl import Client, Collector\n[\s\S]*?)```/.exec(readFileSync("docs/python.md", "utf8"))?.[1] ?? "";
  const { stdout, stderr } = await python(["-c", example], { env: { ...pythonEnvironment([packages]), MW_URL: server.url, MW_API_KEY: "unused-key" } });
  expect(stdout, stderr).toBe("complete [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]\n");
});

it("passes its tests: every route by both clients, the loop, collectors, kills and restarts", async () => {
  const { port } = control.address() as AddressInfo;
  const env = { ...pythonEnvironment([packages]), MW_URL: server.url, MW_API_KEY: "unused-key", MW_CONTROL: `http://127.0.0.1:${port}` };
  const { code, stdout } = await python(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", join(PACKAGE, "tests/server"), join(PACKAGE, "tests/test_decode.py")], { env, cwd: directory });
  expect(stdout.slice(-6000)).toContain("passed");
  expect({ code, stdout: code === 0 ? "" : stdout.slice(-6000) }).toEqual({ code: 0, stdout: "" });
}, 600_000);
