import { rm } from "node:fs/promises";
import { basename } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { MINIMAL, temporaryDirectory, writeTask } from "../../test/support/task-fixture.ts";
import { MwError } from "../core/errors.ts";
import { loadTask } from "./load-task.ts";

const MIB = 1024 * 1024;
let root = "";
let next = 0;
beforeAll(async () => {
  root = await temporaryDirectory();
});
afterAll(() => rm(root, { recursive: true, force: true }));

const load = async (toml: string | Uint8Array, files: Parameters<typeof writeTask>[2] = {}): ReturnType<typeof loadTask> =>
  loadTask(await writeTask(root, `t${next++}`, { "task.toml": toml, "environment/Dockerfile": "FROM x\n", ...files }));

async function fault(toml: string | Uint8Array, files: Parameters<typeof writeTask>[2] = {}): Promise<MwError> {
  const error: unknown = await load(toml, files).then(
    () => null,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(MwError);
  return error as MwError;
}

describe("what is read", () => {
  test("defaults of an empty task.toml", async () => {
    const task = await load("");
    expect(task).toMatchObject({
      schemaVersion: "1.4",
      instruction: "Do it.\n",
      agent: { timeoutMs: null, user: null, network: null, allowedHosts: [] },
      environment: { image: null, buildTimeoutMs: 600_000, cpus: null, memoryBytes: null, diskBytes: null, network: "public", healthcheck: null, os: "linux", gpus: 0 },
      verifier: { timeoutMs: 600_000, mode: "fresh", declaredMode: null, user: null, agentOwns: [], services: [], survivors: [] },
      steps: [],
      multiStepReward: "mean",
      needsUsers: false,
      warnings: [],
    });
    expect(task.name).toBe(basename(task.directory));
    expect(task.family).toBe(basename(root));
  });

  test("old spellings", async () => {
    const task = await load('version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "5G"\ncpus = 1\nallow_internet = false\n');
    expect(task.schemaVersion).toBe("1.0");
    expect(task.environment).toMatchObject({ memoryBytes: 2048 * MIB, diskBytes: 5120 * MIB, cpus: 1, network: "none" });
  });

  test("a new spelling wins over an old one, and that is said", async () => {
    const task = await load('[environment]\nmemory = "2G"\nmemory_mb = 512\nallow_internet = false\nnetwork_mode = "public"\n');
    expect(task.environment.memoryBytes).toBe(512 * MIB);
    expect(task.environment.network).toBe("public");
    expect(task.warnings.join("\n")).toContain("environment.memory is overruled by memory_mb = 512");
    expect(task.warnings.join("\n")).toContain("environment.allow_internet is overruled by network_mode");
  });

  test.each(["2G", "2g", " 2GB ", "2GiB", "2048M", "2097152K"])("size %j is 2 GiB", async (size) => {
    expect((await load(`[environment]\nmemory = "${size}"\n`)).environment.memoryBytes).toBe(2048 * MIB);
  });

  test("whole and fractional numbers alike", async () => {
    const task = await load("[agent]\ntimeout_sec = 120\n[verifier]\ntimeout_sec = 0.5\n[environment]\nbuild_timeout_sec = 600.0\ncpus = 1.5\n");
    expect(task.agent.timeoutMs).toBe(120_000);
    expect(task.verifier.timeoutMs).toBe(500);
    expect(task.environment).toMatchObject({ buildTimeoutMs: 600_000, cpus: 1.5 });
  });

  test("byte order mark, CRLF, no final newline", async () => {
    const task = await load('\uFEFFversion = "1.0"\r\n[environment]\r\nmemory = "2G"\r\nstorage = "1G"');
    expect(task.environment.memoryBytes).toBe(2048 * MIB);
    expect(task.schemaVersion).toBe("1.0");
    expect(task.warnings).toEqual([]);
  });

  test("a version written as a number", async () => {
    expect((await load("version = 1.0\n")).schemaVersion).toBe("1.0");
    expect((await load("schema_version = 1.2\n")).schemaVersion).toBe("1.2");
  });

  test("the instruction byte for byte", async () => {
    const text = "\n\n- [ ] --help '$(x)' 😀\r\nEOF\n\n";
    expect((await load("", { "instruction.md": text })).instruction).toBe(text);
  });

  test("our own table", async () => {
    const task = await load(
      '[metadata]\ncategory = "web"\n[metadata.manyworlds]\nfamily = "sysadmin"\nagent_owns = ["/usr/local/bin/backup"]\nsurvivors = ["/usr/sbin/nginx"]\n[[metadata.manyworlds.services]]\ncommand = "nginx"\nready_command = "curl -f localhost"\nready_timeout_sec = 5\n',
    );
    expect(task.family).toBe("sysadmin");
    expect(task.verifier).toMatchObject({
      mode: "shared",
      agentOwns: ["/usr/local/bin/backup"],
      services: [{ command: "nginx", user: null, readyCommand: "curl -f localhost", readyTimeoutMs: 5000 }],
    });
  });

  test("family falls back to the category", async () => {
    expect((await load('[metadata]\ncategory = "web"\n')).family).toBe("web");
  });

  test("steps inherit from the task", async () => {
    const task = await load(
      '[agent]\ntimeout_sec = 10\nuser = 1000\n[verifier.env]\nA = "1"\n[[steps]]\nname = "one"\nmin_reward = 0.5\n[[steps]]\nname = "two"\n[steps.agent]\ntimeout_sec = 20\n[steps.verifier]\ntimeout_sec = 5\n[steps.verifier.env]\nB = "2"\n',
      { "steps/one/instruction.md": "1", "steps/two/instruction.md": "2", "steps/two/tests/test.sh": "true", "instruction.md": null },
    );
    expect(task.instruction).toBe("");
    expect(task.steps).toMatchObject([
      { name: "one", instruction: "1", agentTimeoutMs: 10_000, agentUser: "1000", verifierTimeoutMs: 600_000, minReward: { reward: 0.5 }, tests: null },
      { name: "two", instruction: "2", agentTimeoutMs: 20_000, verifierTimeoutMs: 5000, verifier: { env: { A: "1", B: "2" } } },
    ]);
  });

  test("separate verification, with tests uploaded or in the image", async () => {
    const copy = await load('[verifier]\nenvironment_mode = "separate"\n');
    expect(copy.verifier).toMatchObject({ mode: "separate", bundledTests: false });
    expect(copy.verifier.environment?.dockerfile).toBe(copy.environment.dockerfile);
    const image = await load('[verifier.environment]\ndocker_image = "grader:1"\n', { "tests/test.sh": null });
    expect(image.verifier).toMatchObject({ mode: "separate", bundledTests: true, environment: { image: "grader:1", dockerfile: null } });
    const built = await load('[verifier]\nenvironment_mode = "separate"\n', { "tests/Dockerfile": "FROM y\n" });
    expect(built.verifier.environment?.dockerfile).toMatch(/tests\/Dockerfile$/);
    expect(built.verifier.bundledTests).toBe(true);
  });

  test.each([".", "My Task (v2)_", "ünïcode", "a__b", "x".repeat(200), "-x", "a b", "a_b"])("directory name %j", async (name) => {
    const directory = await writeTask(root, `names/${name}`, { "task.toml": "", "environment/Dockerfile": "FROM x\n" });
    expect((await loadTask(directory)).name).toBe(basename(directory));
  });

  test("numbers and booleans in env are text, users may be numbers", async () => {
    const task = await load("[environment.env]\nPORT = 8080\nDEBUG = true\n[verifier]\nuser = 0\n");
    expect(task.environment.env).toEqual({ PORT: "8080", DEBUG: "true" });
    expect(task.verifier.user).toBe("0");
  });

  test("artifacts", async () => {
    const task = await load('artifacts = ["/app/out", { source = "/var/log/x", destination = "logs/x", exclude = ["*.gz"] }]\n');
    expect(task.artifacts).toEqual([
      { source: "/app/out", destination: "app/out", exclude: [], service: null },
      { source: "/var/log/x", destination: "logs/x", exclude: ["*.gz"], service: null },
    ]);
  });
});

describe("what is wrong is named", () => {
  test.each([
    ["not TOML", "[environment\ncpus = 1\n", /task\.toml:1:\d+: /],
    ["an unclosed string on line 3", 'a = 1\nb = 2\nc = "x\n', /task\.toml:3:/],
    ["a duplicate key", "a = 1\na = 2\n", /task\.toml:2:/],
    ["a wrong type", '[environment]\n\ncpus = "two"\n', /task\.toml:3: environment\.cpus must be a number/],
    ["a misspelt value", '[environment]\nnetwork_mode = "publc"\n', /task\.toml:2: environment\.network_mode must be one of .*did you mean "public"\?/],
    ["a negative limit", "[environment]\nmemory_mb = -1\n", /environment\.memory_mb must be more than 0/],
    ["memory as a number", "[environment]\nmemory = 2048\n", /environment\.memory must be text/],
    ["a size without unit", '[environment]\nmemory = "2048"\n', /environment\.memory must be a size such as "2G"/],
    ["a timeout of zero", "[agent]\ntimeout_sec = 0\n", /agent\.timeout_sec must be more than 0/],
    ["a timeout that no timer can wait for", "[agent]\ntimeout_sec = 1e12\n", /agent\.timeout_sec must be at most/],
    ["a timeout that is not a number", "[agent]\ntimeout_sec = nan\n", /agent\.timeout_sec must be a number/],
    ["an unknown schema", 'schema_version = "2.0"\n', /schema_version "2\.0" is not a known schema/],
    ["hosts without allowlist", '[environment]\nallowed_hosts = ["a.b"]\n', /allowed_hosts is only valid with network_mode = "allowlist"/],
    ["a URL as a host", '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["https://a.b"]\n', /allowed_hosts\[0\] "https:\/\/a\.b" is not a host name/],
    ["shared with an environment", '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n', /"shared" contradicts \[verifier\.environment\]/],
    ["an artifact that escapes", 'artifacts = ["/a/../../b"]\n', /artifacts\[0\] source .* must not contain/],
    ["an artifact over the manifest", 'artifacts = [{ source = "/a", destination = "manifest.json" }]\n', /is reserved/],
    ["a step name with a separator", '[[steps]]\nname = "../x"\n', /steps\[0\]\.name "\.\.\/x" cannot be a directory name/],
    ["a misspelt key of our own table", '[metadata.manyworlds]\nagent_own = ["/x"]\n', /task\.toml:2: metadata\.manyworlds\.agent_own is not a known key; did you mean agent_owns\?/],
    ["a relative owned path", '[metadata.manyworlds]\nagent_owns = ["x"]\n', /agent_owns\[0\] must be an absolute path/],
    ["an MCP server without URL", '[[environment.mcp_servers]]\nname = "x"\n', /mcp_servers\[0\]\.url is needed/],
  ])("%s", async (_, toml, expected) => {
    const error = await fault(toml);
    expect(error.code).toBe("invalid_task");
    expect(error.exitCode).toBe(2);
    expect(error.message).toMatch(expected);
  });

  test("several faults at once", async () => {
    const error = await fault('[environment]\ncpus = "x"\n[agent]\ntimeout_sec = -1\n');
    expect(error.message).toMatch(/2 faults/);
    expect(error.message).toMatch(/task\.toml:2: environment\.cpus/);
    expect(error.message).toMatch(/task\.toml:4: agent\.timeout_sec/);
  });

  test("two steps of one name", async () => {
    const error = await fault('[[steps]]\nname = "A"\n[[steps]]\nname = "a"\n');
    expect(error.message).toMatch(/task\.toml:4: steps\[1\]\.name "a" is already the name of step 1/);
  });

  test("unknown keys are warnings with the nearest key", async () => {
    const task = await load("[environment]\ncpu = 2\n[agent]\ntimeout_secs = 1\n[whatever]\nx = 1\n");
    expect(task.warnings).toEqual([
      expect.stringMatching(/task\.toml:2: environment\.cpu is not a known key and is ignored; did you mean cpus\?/),
      expect.stringMatching(/task\.toml:4: agent\.timeout_secs .*did you mean timeout_sec\?/),
      expect.stringMatching(/task\.toml:5: whatever is not a known key and is ignored$/),
    ]);
  });

  test("bytes that are not UTF-8", async () => {
    expect((await fault(Buffer.from([0xff, 0xfe, 0x61, 0x00]))).message).toMatch(/not UTF-8 text \(it looks like UTF-16\)/);
    expect((await fault("", { "instruction.md": Buffer.from([0x61, 0xff]) })).message).toMatch(/instruction\.md is not UTF-8/);
  });

  test("a NUL in the instruction", async () => {
    expect((await fault("", { "instruction.md": "a\0b" })).message).toMatch(/instruction\.md contains a NUL byte at offset 1/);
  });

  test("missing files", async () => {
    expect((await fault("", { "instruction.md": null })).message).toMatch(/there is no instruction\.md/);
    expect((await fault("", { "tests/test.sh": null })).message).toMatch(/has no tests\/test\.sh/);
    expect((await fault("", { "environment/Dockerfile": null })).message).toMatch(/has no environment/);
    await expect(loadTask(`${root}/nothing`)).rejects.toThrow(/there is no task\.toml/);
    await expect(loadTask(await writeTask(root, "bare", {}, { "x": MINIMAL["task.toml"] ?? "" }))).rejects.toThrow(/there is no task\.toml/);
  });

  test("a link out of the task", async () => {
    expect((await fault("", { "instruction.md": { link: "/etc/hostname" } })).message).toMatch(/instruction\.md is a link out of the task/);
  });
});
