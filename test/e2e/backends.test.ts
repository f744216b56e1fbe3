/** Runs on another backend than the native one: the whole of a rollout, verification in a fresh machine included, or a refusal before anything starts. */
import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { openRemoteBackend } from "../../src/sandbox/index.ts";
import { mw } from "../support/cli.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { serve, type Served } from "../support/serve.ts";
import { writeTask } from "../support/tasks.ts";
import { mortal } from "../support/mortal.ts";

const KEY = "e2b_0123456789abcdef0123456789abcdef89abcdef";
const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
const place = mkdtempSync(join(tmpdir(), "mw-backends-"));
chmodSync(place, 0o755);
const env = { MW_HOME: join(place, "home"), MW_REMOTE_KEY: KEY };
let image: TestRoot;
let server: Served;

interface RunJson {
  readonly run: string;
  readonly rollouts: readonly { readonly rollout: string; readonly outcome: string; readonly reward: number | null }[];
}

beforeAll(async () => {
  image = makeTestRoot(place);
  server = await serve({ home: join(place, "server"), key: KEY });
  const network = `docker_image = "dir:${image.directory}"\nnetwork_mode = "no-network"`;
  writeTask(join(place, "task"), { name: "test/remote", environment: network });
  writeTask(join(place, "limited"), { name: "test/limited", environment: `${network}\ncpus = 1\nmemory_mb = 512` });
  // The check asks a program of the image, which the agent may have replaced.
  writeTask(join(place, "guarded"), { name: "test/guarded", environment: network, test: 'if [ "$(cat /etc/marker)" = image ] && /bin/probe ids > /dev/null; then echo 0; else echo 1; fi > /logs/verifier/reward.txt' });
}, 200_000);
afterAll(async () => {
  await server.stop();
  rmSync(place, { recursive: true, force: true });
});

const remote = (): string => `remote:${server.url}`;

async function run(...args: string[]): Promise<RunJson & { readonly code: number; readonly stderr: string }> {
  const { code, stdout, stderr } = await mw(["run", ...args, "--image", `dir:${image.directory}`, "--json", "--quiet"], { env });
  if (stdout === "") throw new Error(`mw run printed nothing (exit code ${code}):\n${stderr}`);
  return { ...(JSON.parse(stdout) as RunJson), code, stderr };
}

/** Everything below a directory, as text. */
const textOf = (directory: string): string => execFileSync("grep", ["-rac", "", directory], { encoding: "utf8" }) + execFileSync("sh", ["-c", 'find "$0" -type f -exec cat {} +', directory], { encoding: "latin1", maxBuffer: 1 << 28 });

describe("mw run --backend remote:URL", () => {
  it("gives the reference 1 and the idle agent 0; the record names the backend, and holds no key", async () => {
    const oracle = await run(join(place, "task"), "--harness", "oracle", "-n", "2", "--backend", remote());
    expect(oracle.rollouts.map(({ outcome, reward }) => `${outcome} ${reward}`)).toEqual(["scored 1", "scored 1"]);
    const nop = await run(join(place, "task"), "--harness", "nop", "--backend", remote());
    expect(nop.rollouts.map(({ outcome, reward }) => `${outcome} ${reward}`)).toEqual(["scored 0"]);
    const directory = join(env.MW_HOME, "runs", oracle.run);
    expect(JSON.parse(readFileSync(join(directory, "run.json"), "utf8"))).toMatchObject({ backend: remote() });
    const all = textOf(directory);
    expect(all).toContain(`"backend":"remote:${new URL(server.url).host}"`);
    expect(all).not.toContain(KEY);
    const shown = await mw(["show", oracle.rollouts[0]?.rollout ?? "", "--json"], { env });
    expect(shown.stdout).toContain("remote:");
    expect(await list()).toEqual([]);
  });

  it("restores what the agent replaced before anybody asks it, as everywhere", async () => {
    const script = join(place, "replace");
    writeFileSync(script, "rm /bin/probe; printf '#!/bin/sh\\nexit 1\\n' > /bin/probe; chmod 755 /bin/probe\n");
    const { rollouts } = await run(join(place, "guarded"), "--harness", "script", "--script", script, "--backend", remote());
    expect(rollouts.map(({ outcome, reward }) => `${outcome} ${reward}`)).toEqual(["scored 0"]);
  });

  it("an agent that spoils our own programs in its machine has a score, not an error", async () => {
    const spoil = async (how: string): Promise<readonly string[]> => {
      const script = join(place, "spoil");
      writeFileSync(script, `mkdir -p /work; echo hello > /work/out; ${how}\n`);
      const { rollouts } = await run(join(place, "task"), "--harness", "script", "--script", script, "--backend", remote());
      return rollouts.map(({ outcome, reward }) => `${outcome} ${reward}`);
    };
    expect(await spoil("rm -rf /.manyworlds; mkdir /.manyworlds; echo evil > /.manyworlds/init; chmod 755 /.manyworlds/init")).toEqual(["scored 1"]);
    // Where nothing of ours could run on its files, the work cannot be graded: by its own doing.
    expect(await spoil("rm -rf /.manyworlds; echo evil > /.manyworlds")).toEqual(["scored 0"]);
  });

  it("refuses what the service cannot give before anything starts, and says how to go on", async () => {
    const limited = await mw(["run", join(place, "limited"), "--harness", "oracle", "--image", `dir:${image.directory}`, "--backend", remote(), "--quiet"], { env });
    expect(limited).toMatchObject({ code: 3, stderr: expect.stringContaining("--ignore-limits") });
    const cli = await mw(["run", join(place, "task"), "--harness", "claude-code", "--upstream", "http://127.0.0.1:9/v1", "--model", "m", "--image", `dir:${image.directory}`, "--backend", remote(), "--quiet"], { env });
    expect(cli.code).not.toBe(0);
    for (const [backend, code, text] of [["remote:nowhere", 2, "no http"], ["remote:http://user:pass@host", 2, "password"], ["docker", 2, "names no sandbox backend"], ["remote:http://127.0.0.1:9", 3, "cannot be reached"]] as const) {
      const refused = await mw(["run", join(place, "task"), "--harness", "oracle", "--backend", backend, "--quiet"], { env });
      expect(refused, backend).toMatchObject({ code, stderr: expect.stringContaining(text) });
    }
    expect(await mw(["run", join(place, "task"), "--harness", "oracle", "--backend", remote(), "--quiet"], { env: { ...env, MW_REMOTE_KEY: "" } })).toMatchObject({ code: 3, stderr: expect.stringContaining("MW_REMOTE_KEY") });
    const wrong = await mw(["run", join(place, "task"), "--harness", "oracle", "--backend", remote(), "--quiet"], { env: { ...env, MW_REMOTE_KEY: "e2b_ffffffffffffffffffff" } });
    expect(wrong).toMatchObject({ code: 3, stderr: expect.not.stringContaining("e2b_ffffffffffffffffffff") });
  });
});

describe("mw sandbox --backend remote:URL", () => {
  it("runs one command in a machine there", async () => {
    const result = await mw(["sandbox", "run", "--backend", remote(), "--json", `dir:${image.directory}`, "--", "/bin/cat", "/etc/marker"], { env });
    expect(result).toMatchObject({ code: 0, stdout: expect.stringContaining("image") });
    expect(await list()).toEqual([]);
  });
});

describe("mw sandbox create", () => {
  it.each(["remote", "oci:crun"])("holds a machine of --backend %s for other commands", async (backend) => {
    const holder = mortal(spawn(process.execPath, [MAIN, "sandbox", "create", "--backend", backend === "remote" ? remote() : backend, `dir:${image.directory}`], { env: { PATH: process.env["PATH"], HOME: place, ...env }, stdio: ["ignore", "pipe", "inherit"] }));
    const ended = new Promise((resolve) => holder.once("exit", resolve));
    const id = await new Promise<string>((resolve, reject) => {
      holder.stdout.once("data", (data: Buffer) => resolve(data.toString().trim()));
      holder.once("exit", (code) => reject(new Error(`the holder ended with ${code}`)));
    });
    // In processes of their own: what a command prints is theirs.
    const other = async (args: readonly string[], input = ""): Promise<string> => {
      const child = mortal(spawn(process.execPath, [MAIN, "sandbox", ...args], { env: { PATH: process.env["PATH"], HOME: place, ...env } }));
      const chunks: Buffer[] = [];
      for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk: Buffer) => chunks.push(chunk));
      child.stdin.end(input);
      const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
      return `${code}: ${Buffer.concat(chunks).toString()}`;
    };
    const run = (...command: readonly string[]): Promise<string> => other(["exec", id, "--", ...command]);
    try {
      expect(await run("/bin/cat", "/etc/marker")).toBe("0: image\n");
      const [there, back] = [join(place, `there-${backend}`), join(place, `back-${backend}`)];
      writeFileSync(there, randomBytes(300_000));
      expect(await other(["cp", there, `${id}:/copied`])).toMatch(/^0: copied 1 entries, 300000 bytes/);
      expect(await other(["exec", "-i", id, "--", "/bin/sh", "-c", "cat > /typed; test -f /copied; exit 7"], "through stdin")).toBe("7: ");
      // Several at once, each with an end of its own.
      expect(await Promise.all([run("/bin/cat", "/typed"), run("/bin/sh", "-c", "exit 3"), run("/bin/sh", "-c", "kill -9 $$")])).toEqual(["0: through stdin", "3: ", "137: "]);
      expect(await other(["cp", `${id}:/copied`, back])).toMatch(/^0: /);
      expect(readFileSync(back).equals(readFileSync(there))).toBe(true);
      expect(await other(["pause", id])).toMatch(/^3: .*This backend cannot pause a sandbox/s);
      expect(await other(["rm", id])).toBe(`0: ${id}\n`);
      expect(await ended).toBe(0);
      expect(await list()).toEqual([]);
    } finally {
      holder.kill();
      await ended;
    }
  });

  it("takes a machine of --backend remote along when it is interrupted", async () => {
    const holder = mortal(spawn(process.execPath, [MAIN, "sandbox", "create", "--backend", remote(), `dir:${image.directory}`], { env: { PATH: process.env["PATH"], HOME: place, ...env }, stdio: ["ignore", "pipe", "pipe"] }));
    let stderr = "";
    holder.stderr.on("data", (data: Buffer) => (stderr += data.toString()));
    const ended = new Promise((resolve) => holder.once("exit", resolve));
    await Promise.race([new Promise((resolve) => holder.stdout.once("data", resolve)), ended]);
    holder.kill("SIGINT");
    expect([await ended, stderr]).toEqual([0, expect.not.stringContaining("error")]);
    expect(await list()).toEqual([]);
  });
});

describe("--backend oci", () => {
  it("gives the reference 1 and the idle agent 0, limits held, and the record names the runtime", async () => {
    const oracle = await run(join(place, "limited"), "--harness", "oracle", "--backend", "oci:runc");
    expect(oracle.rollouts.map(({ outcome, reward }) => `${outcome} ${reward}`)).toEqual(["scored 1"]);
    const nop = await run(join(place, "limited"), "--harness", "nop", "--backend", "oci:crun");
    expect(nop.rollouts.map(({ outcome, reward }) => `${outcome} ${reward}`)).toEqual(["scored 0"]);
    const directory = join(env.MW_HOME, "runs", oracle.run);
    expect(JSON.parse(readFileSync(join(directory, "run.json"), "utf8"))).toMatchObject({ backend: "oci:runc" });
    expect(textOf(directory)).toContain('"backend":"oci:runc"');
  });

  it("restores what the agent replaced before anybody asks it, as everywhere", async () => {
    const script = join(place, "replace-oci");
    writeFileSync(script, "rm /bin/probe; printf '#!/bin/sh\\nexit 1\\n' > /bin/probe; chmod 755 /bin/probe\n");
    const { rollouts } = await run(join(place, "guarded"), "--harness", "script", "--script", script, "--backend", "oci");
    expect(rollouts.map(({ outcome, reward }) => `${outcome} ${reward}`)).toEqual(["scored 0"]);
  });

  it("is found by doctor, runtime by runtime, with what its machines have", async () => {
    const { stdout } = await mw(["doctor", "--json"], { env: { ...env, MW_BACKEND: remote() } });
    const probes = new Map((JSON.parse(stdout) as { readonly probes: readonly { readonly name: string; readonly state: string; readonly detail: string }[] }).probes.map((probe) => [probe.name, probe]));
    for (const program of ["runc", "crun"]) expect(probes.get(`backend oci:${program}`)).toMatchObject({ state: "ok", detail: expect.stringMatching(new RegExp(`^${program} version .*has .*memory limits.*lacks .*disk limits`)) });
    expect(probes.get(`backend remote:${new URL(server.url).host}`)).toMatchObject({ state: "ok", detail: expect.stringContaining("lacks cpu limits") });
  });

  it("names a runtime that is not there, and how to get one", async () => {
    const refused = await mw(["sandbox", "run", "--backend", "oci:no-such-runtime", `dir:${image.directory}`, "--", "/bin/true"], { env });
    expect(refused).toMatchObject({ code: 3, stderr: expect.stringMatching(/no-such-runtime.*apt-get install runc/s) });
  });
});

describe("a service that dies in the middle", () => {
  it("loses the command, in bounded time, and names what is gone", async () => {
    const dying = await serve({ home: join(place, "dying"), key: KEY });
    const backend = await openRemoteBackend({ url: new URL(dying.url), key: KEY, log: () => undefined });
    try {
      const sandbox = await backend.create({ root: image.root });
      const exec = await sandbox.exec({ command: "echo begun; sleep 100" });
      const reading = (async () => {
        let text = "";
        for await (const { data } of exec.output) {
          text += Buffer.from(data).toString();
          if (text === "begun\n") await dying.stop("SIGKILL");
        }
        return text;
      })();
      expect((await exec.exit).ended).toBe("lost");
      expect(await reading).toBe("begun\n");
      await expect(sandbox.run({ command: "true" })).rejects.toMatchObject({ code: "sandbox_failed", retryable: true });
    } finally {
      await backend.close();
    }
  });
});

async function list(): Promise<readonly unknown[]> {
  const response = await fetch(`${server.url}/v2/sandboxes`, { headers: { "x-api-key": KEY } });
  return (await response.json()) as readonly unknown[];
}
