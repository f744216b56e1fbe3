import { rm } from "node:fs/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { temporaryDirectory, writeTask } from "../../test/support/task-fixture.ts";
import type { Capabilities } from "../sandbox/sandbox.ts";
import { loadTask } from "./load-task.ts";
import { unsupportedReasons } from "./unsupported.ts";

const FULL: Capabilities = {
  isolation: { backend: "native", profile: "userns", privileged: true, enforced: { cpu: true, memory: true, pids: true, disk: true } },
  networks: ["none", "allowlist", "public"],
  users: true,
  freeze: true,
  seal: true,
  snapshot: false,
  memorySnapshot: false,
  export: true,
  services: true,
  layers: true,
  hostname: true,
  guarded: true,
  fork: false,
  pause: false,
  missing: {},
};

let root = "";
let next = 0;
beforeAll(async () => {
  root = await temporaryDirectory();
});
afterAll(() => rm(root, { recursive: true, force: true }));

async function reasons(toml: string, capabilities: Capabilities = FULL, overrides = {}, files: Parameters<typeof writeTask>[2] = {}): Promise<string[]> {
  const directory = await writeTask(root, `t${next++}`, { "task.toml": toml, "environment/Dockerfile": "FROM x\n", ...files });
  return unsupportedReasons(await loadTask(directory), capabilities, overrides);
}

test("a plain task needs nothing", async () => {
  expect(await reasons('[environment]\ncpus = 2\nmemory_mb = 512\nstorage_mb = 100\ngpus = 0\n[agent]\nuser = "me"\n')).toEqual([]);
});

test.each([
  ["[environment]\ngpus = 1\n", /^\[environment\] gpus: asks for 1/],
  ['[environment]\ntpu = { type = "v6e", topology = "2x4" }\n', /^\[environment\] tpu: asks for v6e 2x4/],
  ['[environment]\nos = "Windows"\n', /^\[environment\] os: "windows"/],
  ['[[environment.mcp_servers]]\nname = "tools"\nurl = "http://x"\n', /^\[environment\] mcp_servers: .*tools/],
  ['[environment]\nskills_dir = "/skills"\n', /^\[environment\] skills_dir/],
  ['[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\ngpus = 2\n', /^\[verifier\.environment\] gpus: asks for 2/],
  ['[[verifier.collect]]\ncommand = "dump"\nservice = "db"\n', /^\[verifier\] collect: "dump" runs in the compose service "db"/],
  ['artifacts = [{ source = "/x", service = "db" }]\n', /^artifacts: "\/x" comes from the compose service "db"/],
])("%j is refused by name", async (toml, expected) => {
  expect(await reasons(toml)).toEqual([expect.stringMatching(expected)]);
});

test("files that ask for something", async () => {
  expect(await reasons("", FULL, {}, { "environment/docker-compose.yaml": "services: {}\n" })).toEqual([expect.stringMatching(/docker-compose\.yaml: compose environments/)]);
  expect(await reasons("", FULL, {}, { "trajectory.json": "{}" })).toEqual([expect.stringMatching(/^trajectory\.json/)]);
});

test("a network is a reason where it cannot be had, unless it is overridden", async () => {
  const listed = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.b"]\n[agent]\nnetwork_mode = "allowlist"\n';
  expect(await reasons(listed)).toEqual([]);
  const without: Capabilities = { ...FULL, networks: ["none", "public"], missing: { allowlist: "no proxy" } };
  expect(await reasons(listed, without)).toEqual(['[environment] network_mode, [agent] network_mode: "allowlist" is not available here (no proxy); override with --network none or --network public']);
  expect(await reasons(listed, without, { network: "none" })).toEqual([]);
});

test("tests in the agent's machine have its network, or one that it can change to", async () => {
  const inPlace = (agent: string, verifier: string): string => `[agent]\nnetwork_mode = "${agent}"\n[verifier]\nnetwork_mode = "${verifier}"\n[metadata.manyworlds]\nsurvivors = ["/bin/server"]\n`;
  expect(await reasons(inPlace("no-network", "allowlist"))).toEqual([]);
  expect(await reasons(inPlace("public", "public"))).toEqual([]);
  expect(await reasons(inPlace("no-network", "public"))).toEqual([expect.stringMatching(/^network_mode: the agent and the tests .*no-network, public.*override with --network/)]);
  expect(await reasons(inPlace("no-network", "public"), FULL, { network: "allowlist" })).toEqual([]);
});

test("what the backend lacks", async () => {
  const poor: Capabilities = {
    ...FULL,
    isolation: { ...FULL.isolation, enforced: { cpu: false, memory: false, pids: false, disk: false } },
    networks: ["none"],
    users: false,
    missing: { memory: "no writable cgroup", users: "no subordinate ids" },
  };
  const found = await reasons('[environment]\ncpus = 1\nmemory_mb = 1\nstorage_mb = 1\n[agent]\nuser = "me"\n[verifier]\nuser = "root"\n', poor);
  expect(found.map((reason) => reason.split(":")[0])).toEqual(["[environment] network_mode", "[environment] cpus, [environment] storage_mb", "[environment] memory_mb", "[agent] user"]);
  expect(found.join("\n")).toContain("no writable cgroup");
  expect(found[0]).toContain("override with --network none");
});

test("users besides root, where there are none; a reason that several fields share is given once", async () => {
  const missing = "no control groups";
  const poor: Capabilities = { ...FULL, users: false, isolation: { ...FULL.isolation, enforced: { cpu: false, memory: false, pids: false, disk: true } }, missing: { cpu: missing, memory: missing, users: "no subordinate ids" } };
  const toml = '[environment]\ncpus = 1\nmemory_mb = 1\n[metadata.manyworlds]\nneeds_users = true\n';
  expect(await reasons(toml)).toEqual([]);
  expect(await reasons(toml, poor)).toEqual([
    "[environment] cpus, [environment] memory_mb: cannot be enforced here (no control groups)",
    "[metadata.manyworlds] needs_users: other users than root do not exist in these sandboxes (no subordinate ids)",
  ]);
});
