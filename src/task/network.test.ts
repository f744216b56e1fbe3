import { rm } from "node:fs/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { temporaryDirectory, writeTask } from "../../test/support/task-fixture.ts";
import { loadTask } from "./load-task.ts";
import { agentNetwork, machineNetwork, phasesFrom, setupNetwork, verifierNetwork, type NetworkOverride } from "./network.ts";
import type { Task } from "./task.ts";

let root = "";
let next = 0;
beforeAll(async () => {
  root = await temporaryDirectory();
});
afterAll(() => rm(root, { recursive: true, force: true }));

async function task(toml: string, files: Parameters<typeof writeTask>[2] = {}): Promise<Task> {
  return loadTask(await writeTask(root, `n${next++}`, { "task.toml": toml, "environment/Dockerfile": "FROM x\n", ...files }));
}

const NONE = { mode: "none", allow: [] };
const PUBLIC = { mode: "public", allow: [] };
const list = (...allow: string[]): object => ({ mode: "allowlist", allow });

test.each<[string, string, NetworkOverride, object, object, object | null]>([
  ["nothing said", "", {}, PUBLIC, PUBLIC, PUBLIC],
  ["the old spelling", "[environment]\nallow_internet = false\n", {}, NONE, NONE, NONE],
  ["the environment's is everybody's", '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["A.test."]\n', {}, list("a.test"), list("a.test"), list("a.test")],
  // The baseline of the tests is the environment's, not the agent's.
  ["the agent's own", '[agent]\nnetwork_mode = "no-network"\n', {}, NONE, NONE, PUBLIC],
  ["a list for the agent, another before it, none for the tests", '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.test"]\n[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["b.test"]\n[verifier]\nnetwork_mode = "no-network"\n', {}, list("a.test"), list("b.test"), NONE],
  ["an agent that loses a list", '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.test"]\n[agent]\nnetwork_mode = "no-network"\n', {}, list("a.test"), NONE, list("a.test")],
  ["a mode in place of all", '[agent]\nnetwork_mode = "no-network"\n', { network: "public" }, PUBLIC, PUBLIC, PUBLIC],
  ["a list in place of all keeps the hosts that were named", '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["b.test"]\n', { network: "allowlist", allow: ["c.test"] }, list("c.test"), list("b.test", "c.test"), list("c.test")],
  ["hosts added where there is a list or nothing", '[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n', { allow: ["c.test"] }, list("c.test"), list("c.test"), PUBLIC],
  ["nothing is added to nothing that the run asks for", "", { network: "none", allow: ["c.test"] }, NONE, NONE, NONE],
])("%s", async (_what, toml, override, setup, agent, verifier) => {
  const one = await task(toml);
  expect([setupNetwork(one, null, override), agentNetwork(one, null, override), verifierNetwork(one, null, override)]).toEqual([setup, agent, verifier]);
});

test("a separate verifier has its environment's network; one in place that says nothing has the agent's", async () => {
  const separate = await task('[environment]\nnetwork_mode = "public"\n[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["v.test"]\n');
  expect(verifierNetwork(separate, null, {})).toEqual(list("v.test"));
  const inPlace = await task('[metadata.manyworlds]\nsurvivors = ["/bin/x"]\n[agent]\nnetwork_mode = "no-network"\n');
  expect(verifierNetwork(inPlace, null, {})).toBeNull();
  expect(machineNetwork(phasesFrom(inPlace, 0, {}))).toEqual(NONE);
});

test("each step has its own, and a machine of its own where the tests have one", async () => {
  const steps = await task(
    '[environment]\nnetwork_mode = "no-network"\n[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.test"]\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n[steps.agent]\nnetwork_mode = "public"\n[[steps]]\nname = "three"\n[steps.agent]\nnetwork_mode = "no-network"\n',
    Object.fromEntries(["one", "two", "three"].map((name) => [`steps/${name}/instruction.md`, "do\n"])),
  );
  expect(steps.steps.map((step) => agentNetwork(steps, step, {}))).toEqual([list("a.test"), PUBLIC, NONE]);
  expect([0, 1, 2].map((index) => machineNetwork(phasesFrom(steps, index, {})))).toEqual([list(), PUBLIC, NONE]);
});

test("a machine changes between nothing and lists, not to everything or from it", () => {
  const [none, one, two] = [{ mode: "none", allow: [] }, { mode: "allowlist", allow: ["a.test"] }, { mode: "public", allow: [] }] as const;
  expect(machineNetwork([none, one])).toEqual(list());
  expect(machineNetwork([one, none])).toEqual(list("a.test"));
  expect(machineNetwork([one, two])).toBeNull();
  expect(machineNetwork([none, none])).toEqual(NONE);
});
